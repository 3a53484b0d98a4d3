import io
import json
import math
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from support.stderr import said

from fastagg import bars, timing
from fastagg.bars import CellsBar, ProgressBar
from fastagg.errors import DataError
from fastagg.sim.recipes.tables import Cell
from fastagg.sim.runs.metrics import ACTIVITIES, ClientRow, DelayStatistics, EvaluationRow, reaching, spread, summarise
from fastagg.sim.runs.output import read_rows, rows_csv, summary_json, write_text
from fastagg.sim.runs.result import Result
from fastagg.storage import files


def rows(*accuracies: float) -> list[EvaluationRow]:
    return [EvaluationRow(k, 10.0 * k, 5 * k, a, 1.0 - a, 2.0, 3) for k, a in enumerate(accuracies)]


@given(st.lists(st.integers(0, 20), min_size=1, max_size=50))
def test_delay_statistics_are_those_of_the_list(delays):
    statistics = DelayStatistics()
    for delay in delays:
        statistics[delay] += 1
    assert statistics.mean == pytest.approx(np.mean(delays))
    assert statistics.median == np.median(delays)
    assert statistics.maximum == max(delays)


def test_no_delays_count_as_zero():
    statistics = DelayStatistics()
    statistics[4] += 1
    statistics.clear()
    assert (statistics.mean, statistics.median, statistics.maximum) == (0.0, 0.0, 0)


@pytest.mark.parametrize(
    ("tested", "mean", "count"),
    [
        ([(0, 0.1), (1, 0.7), (2, 0.8)], 0.75, 2),  # nobody trained version 0
        ([(0, 0.1), (7, 0.5), (8, 0.6), (9, 0.7), (9, 0.7)], 0.6, 3),  # updates after the last step: it is tested twice
        ([(0, 0.1), (50, 0.2), (100, 0.4), (103, 0.6)], 0.5, 2),  # 50 is not among the last five
        ([(0, 0.1), *((v, v / 10) for v in range(1, 9))], 0.6, 5),
        ([(0, 0.1), (0, 0.1)], None, 0),
    ],
)
def test_the_accuracy_is_of_the_last_five_versions(tested, mean, count):
    found = [EvaluationRow(v, 1.0 * k, k, a, 1.0, 0.0, 0) for k, (v, a) in enumerate(tested)]
    summary = summarise(found, 0.9)
    assert summary["last5_accuracy_mean"] == (None if mean is None else pytest.approx(mean))
    assert summary["last5_versions"] == count and summary["final_accuracy"] == tested[-1][1]
    summary = summarise(found, 0.9, "diverged")  # it has no model at its end
    gone = ("last5_accuracy_mean", "last5_accuracy_std", "final_accuracy", "final_loss")
    assert [summary[key] for key in gone] == [None] * 4 and summary["best_accuracy"] == max(a for _, a in tested)


def test_the_last_five_evaluations_are_reported_with_their_deviation():
    found = summarise(rows(0.1, 0.5, 0.6, 0.7, 0.8, 0.9), 0.9)
    assert found["last5_accuracy_mean"] == pytest.approx(0.7)
    assert found["last5_accuracy_std"] == pytest.approx(np.std([0.5, 0.6, 0.7, 0.8, 0.9]))


@pytest.mark.parametrize("place", [0, 1, 2])
def test_nan_is_never_the_best_and_always_the_worst(place):
    accuracies = [0.2, 0.5]
    accuracies.insert(place, math.nan)
    found = summarise(rows(*accuracies), 0.4)
    assert found["best_accuracy"] == 0.5 and found["time_to_target"] == 10.0 * accuracies.index(0.5)
    assert math.isnan(spread([*accuracies, *[0.9] * 7])[1])
    assert math.isnan(summarise(rows(math.nan), 0.4)["best_accuracy"])


def test_the_summary_takes_best_final_and_the_first_that_reaches_the_target_from_different_rows():
    summary = summarise(rows(0.2, 0.9, 0.7, 0.95), target=0.85)
    assert summary["best_accuracy"] == summary["final_accuracy"] == 0.95
    assert summary["time_to_target"] == reaching(rows(0.2, 0.9, 0.7, 0.95), 0.85).time == 10.0
    assert (summary["versions"], summary["uploads"], summary["virtual_time"]) == (3, 15, 30.0)
    summary = summarise(rows(0.2, 0.9, 0.7), target=0.95)
    assert (summary["best_accuracy"], summary["final_accuracy"], summary["time_to_target"]) == (0.9, 0.7, None)


def test_rows_read_back_to_the_same_bits(tmp_path):
    rows = [
        EvaluationRow(0, 0.0, 0, 0.1, 1 / 3, 0.0, 0),
        EvaluationRow(10, 1e-17 + 2 / 3, 50, 0.9, math.pi, 2.5, 7, 2**40, 3, 0.1 + 0.2, 0.0, 1 / 7),
    ]
    clients = [ClientRow(0, 5, 2, None), ClientRow(1, 7, 0, 2 / 3)]
    for kind, written in ((EvaluationRow, rows), (ClientRow, clients)):
        write_text(tmp_path / "rows.csv", rows_csv(kind, written))
        assert read_rows(kind, tmp_path / "rows.csv") == written


def test_rows_with_other_columns_are_refused(tmp_path):
    path = tmp_path / "metrics.csv"
    columns, line = rows_csv(EvaluationRow, [EvaluationRow(3, 1.5, 9, 0.5, 0.25, 2.0, 4)]).splitlines()
    for wrong in (columns.rpartition(",")[0], columns.replace("loss", "cost"), ""):
        path.write_text(f"{wrong}\n{line}\n")
        with pytest.raises(DataError, match=r"cannot read .*metrics"):
            read_rows(EvaluationRow, path)


def test_a_loss_that_is_not_a_number_becomes_null():
    assert json.loads(summary_json({"loss": math.nan, "time": math.inf, "n": 1})) == {
        "loss": None,
        "time": None,
        "n": 1,
    }


def test_a_file_is_replaced_whole_or_stays(tmp_path):
    write_text(tmp_path / "a.txt", "old")
    with (tmp_path / "a.txt").open() as reader:
        write_text(tmp_path / "a.txt", "new")
        assert reader.read() == "old"  # another file took the name: nobody ever sees half of one
    with pytest.raises(OSError, match="No space"), files.whole(tmp_path / "a.txt") as file:
        file.write(b"ha")
        raise OSError(28, "No space left on device")
    assert (tmp_path / "a.txt").read_text() == "new"
    assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]


def test_the_stopwatch_splits_all_of_the_time():
    watch = timing.Stopwatch(ACTIVITIES)
    with watch.timing("training"):
        pass
    with pytest.raises(KeyError), watch.timing("sleeping"):
        pass
    split = watch.split()
    assert set(split) == {"training", "server", "evaluation", "setup", "other", "total"}
    assert split["training"] > 0 == split["server"]
    parts = (split[key] for key in ("training", "server", "evaluation", "setup", "other"))
    assert sum(parts) == pytest.approx(split["total"])


@pytest.fixture
def clock(monkeypatch):
    """Return a list whose only number is the time in seconds."""
    now = [1000.0]
    monkeypatch.setattr(bars.time, "monotonic", lambda: now[0])
    return now


def cells(tiny, count: int) -> list[Cell]:
    return [Cell(tiny({"seed": seed})) for seed in range(count)]


def test_a_terminal_of_eighty_columns_shows_how_many_the_share_and_what_is_left(tiny, clock):
    console = Console(width=80, force_terminal=True, color_system=None, file=io.StringIO())
    first, second, *_ = cells(tiny, 12)
    with CellsBar(console) as bar:
        bar.begun(12)
        bar.get_time = lambda: clock[0]
        for number in range(1, 11):
            clock[0] += 6
            if number == 1:
                bar.started(first)
                bar.started(second)
            bar.advanced(first, number / 10)
        bar.refresh()
    shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", console.file.getvalue())
    lines = [line.strip() for line in re.split(r"[\r\n]+", shown) if "runs" in line]
    assert max(map(len, lines)) <= 80
    assert lines[-1].startswith("0 of 12 runs, 2 running ━") and re.search(
        r" 8% \d:\d\d:\d\d left: \d:\d\d:\d\d$", lines[-1]
    )


def test_without_a_terminal_it_is_a_line_every_thirty_seconds(tiny, clock):
    console = Console(width=80, file=io.StringIO(), soft_wrap=True)
    done = Result(tiny(), [], {"final_accuracy": 0.5, "wall_seconds": {"total": 60.0}}, "10 s")
    first, second = cells(tiny, 2)
    with CellsBar(console) as bar:
        bar.begun(2)
        bar.get_time = lambda: clock[0]
        bar.started(first)
        for second_of_run in range(1, 101):
            clock[0] += 1
            bar.advanced(first, second_of_run / 100)
        bar.ended(first, done)
        bar.started(second)
    lines = console.file.getvalue().splitlines()
    assert [line for line in lines if "left" in line or "%" in line][:3] == lines[:3]
    assert [re.match(r"0 of 2 runs, 1 running: (\d+)% after", line)[1] for line in lines[:3]] == ["15", "30", "45"]
    assert lines[3] == f"{first.name}: 50.0%, 60.0 s" and len(lines) == 4
    assert said(console.file.getvalue()) == lines[3:]
    assert re.search(r", [23] min left$", lines[2])  # 110 s more at this pace


def test_a_run_says_its_version_and_accuracy(clock):
    console = Console(width=80, file=io.StringIO(), soft_wrap=True)
    with ProgressBar("FADAS: one", console) as bar:
        for version in range(3):
            clock[0] += 31
            bar.advanced(0.1 * (version + 1))
            bar.evaluated(EvaluationRow(version, 1.0, 1, 0.5, 1.0, 0.0, 0))
    lines = console.file.getvalue().splitlines()
    assert len(lines) == 3 and lines[-1].startswith("FADAS: one: version 1, accuracy 50.0%: 30% after")
    assert said(console.file.getvalue()) == []


def test_a_failed_run_is_said_in_one_line(tiny):
    console: Any = Console(width=80, file=io.StringIO(), soft_wrap=True)
    (cell,) = cells(tiny, 1)
    with CellsBar(console) as bar:
        bar.begun(1)
        bar.started(cell)
        bar.ended(cell, "it\nfailed [red]")
    assert console.file.getvalue() == f"{cell.name}: failed: it failed [red]\n"
