"""Comparisons: which runs there are, and that each ends as if it had been alone."""

import csv
import json
import signal
import subprocess
import sys
from typing import Any

import pytest

from fastagg.cli.runs import parse_choices
from fastagg.errors import ConfigError, DataError
from fastagg.sim.comparison.cells import cells, run_cells
from fastagg.sim.comparison.compare import compare
from fastagg.sim.recipes.tables import Cell
from fastagg.sim.runs.run import run
from fastagg.sim.runs.simulation import Simulation
from fastagg.sim.show.progress import Watcher

from .test_resume import Killed, same


class Silent(Watcher):
    """Remembers what it was told."""

    def __init__(self):
        self.told = []

    def started(self, cell):
        self.told.append(("started", cell.name))

    def ended(self, cell, outcome):
        self.told.append(("failed" if isinstance(outcome, str) else "ended", cell.name))


@pytest.fixture
def recipe(tmp_path, tiny_toml):
    path = tmp_path / "tiny.toml"
    path.write_text(tiny_toml)
    return str(path)


@pytest.mark.parametrize(
    ("text", "key", "values"),
    [
        ("client.lr=0.1", "client.lr", [0.1]),
        ("client.lr=0.1,0.3, 1", "client.lr", [0.1, 0.3, 1]),
        ("model.widths=[64, 32]", "model.widths", [[64, 32]]),
        ("model.widths=[64],[64,32]", "model.widths", [[64], [64, 32]]),
        ("algorithm.name=FADAS,FedBuff", "algorithm.name", ["FADAS", "FedBuff"]),
        ('label="a, b"', "label", ["a, b"]),
        ('label="a, b",c', "label", ["a, b", "c"]),
        ('delay={name="exponential", mean=2.0},{name="size-tied"}', "delay",
         [{"name": "exponential", "mean": 2.0}, {"name": "size-tied"}]),
    ],
)  # fmt: skip
def test_several_values_are_parted_at_commas_outside_of_brackets_and_quotes(text, key, values):
    assert parse_choices(text) == (key, values)


def test_cells_are_methods_times_grid_times_seeds(recipe, tmp_path, tiny_toml):
    other = tmp_path / "other.toml"
    other.write_text(tiny_toml.replace("tiny", "other"))
    grid = {"client.lr": [0.1, 0.3], "data.alpha": [0.1, 1.0]}
    found = cells([recipe, str(other)], {"run.uploads": 6, "seed": 4}, grid, seeds=3)
    assert len(found) == len({cell.name for cell in found}) == 2 * 4 * 3
    assert found[0].name == "tiny,client.lr=0.1,data.alpha=0.1/seed4"
    assert {cell.config.seed for cell in found} == {4, 5, 6}
    assert {(cell.config.client.lr, cell.config.data.alpha) for cell in found} == {
        (lr, alpha) for lr in (0.1, 0.3) for alpha in (0.1, 1.0)
    }
    assert {cell.config.run.uploads for cell in found} == {6}


def test_folders_hold_no_slashes_of_values_and_are_distinct(recipe):
    (cell,) = {c.name.rpartition("/")[0] for c in cells([recipe], {}, {"label": ["a/b: c"]}, 1)}
    assert cell == "tiny,label=a_b_c"
    with pytest.raises(ConfigError, match="given more than once"):
        cells([recipe], {}, {"label": ["a/b", "a:b"]}, 1)
    with pytest.raises(ConfigError, match="given more than once"):
        cells([recipe, recipe], {}, {}, 1)


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_comparison_leaves_what_its_runs_leave_names_who_fails_and_runs_nothing_twice(recipe, tmp_path, jobs):
    found = cells([recipe], {}, {"data.clients": [12, 5000, 13]}, seeds=1)
    good, bad = [found[0], found[2]], found[1].name
    watcher = Silent()
    done = compare(found, tmp_path, watcher, jobs=jobs, target=0.2)
    assert sorted(watcher.told) == sorted(
        [("started", cell.name) for cell in found] + [("ended", cell.name) for cell in good] + [("failed", bad)]
    )
    assert list(done.failed) == [bad] == ["tiny,data.clients=5000/seed0"]
    assert [group.label for group in done.groups] == ["Tiny, clients 12", "Tiny, clients 13"]
    for result, cell in zip(done.results, good, strict=True):
        assert result.rows[0] == Simulation(cell.config).evaluate()
    names = {"comparison.csv", "table.md", "accuracy.png", "delays.png", "report.html"}
    assert {path.name for path in tmp_path.iterdir()} - {"tiny.toml"} == names | {
        cell.name.partition("/")[0] for cell in good
    }
    for page in ("table.md", "report.html"):
        text = (tmp_path / page).read_text()
        assert "not in these tables" in text and bad in text
    lines = list(csv.DictReader((tmp_path / "comparison.csv").open()))
    assert [(line["name"], line["seed"], line["data.clients"]) for line in lines] == [
        ("tiny", "0", "12"),
        ("tiny", "0", "13"),
    ]
    for line, result in zip(lines, done.results, strict=True):
        first = next((row.time for row in result.rows if row.accuracy >= 0.2), None)
        assert line["target_accuracy"] == "0.2" and line["time_to_target"] == ("" if first is None else str(first))
    stamps = {p: p.stat().st_mtime_ns for p in tmp_path.glob("tiny,*/*/*")}
    outcomes = run_cells(cells([recipe], {}, {"data.clients": [12, 13, 14]}, seeds=1), tmp_path, jobs, Watcher())
    assert len(outcomes) == 3 and len(stamps) > 12
    assert {p: p.stat().st_mtime_ns for p in stamps} == stamps


@pytest.mark.parametrize(
    ("key", "values", "words"),
    [
        ("algorithm.buffer_size", [3, 0], "buffer_size"),
        ("algorithm.bufer_size", [3], "bufer_size"),
        ("algorithm.name", ["FedBuff", "ACE"], "client.steps must be 1|no such keyword"),
        ("delay", [{"name": "three-class", "counts": [1, 2, 3]}], "counts"),
        ("dropout.share", [0.0, 0.99], "must stay"),
        ("run.device", ["cpu", "gpu"], "run.device"),
        ("own.loss", ["tests.nothing:loss"], "own.loss"),
    ],
)
def test_every_cell_is_checked_before_the_first_runs(recipe, tmp_path, key, values, words):
    watcher = Silent()
    with pytest.raises(ConfigError, match=words):
        compare(cells([recipe], {}, {key: values}, 2), tmp_path / "out", watcher)
    assert watcher.told == [] and not (tmp_path / "out").exists()


def test_a_folder_with_another_run_is_refused_unless_it_may_be_replaced(recipe, tmp_path):
    run_cells(cells([recipe], {}, {}, 1), tmp_path, 1, Silent())
    longer = cells([recipe], {"run.uploads": 33}, {}, 1)
    refused = run_cells(longer, tmp_path, 1, Silent())["tiny/seed0"]
    assert "other settings (run.uploads)" in refused
    assert json.loads((tmp_path / "tiny" / "seed0" / "summary.json").read_text())["uploads"] == 30
    replaced = run_cells(longer, tmp_path, 1, Silent(), replace=True)["tiny/seed0"]
    assert replaced.summary["uploads"] == 33


def test_a_missing_data_folder_is_said_once_and_before_anything_runs(recipe, tmp_path):
    nowhere = {"data.dir": str(tmp_path / "nowhere")}
    missing = [*cells([recipe], {}, {}, 1), *cells(["cifar8-quick"], nowhere, {}, 1)]
    watcher = Silent()
    with pytest.raises(DataError, match="nowhere does not exist"):
        compare(missing, tmp_path / "out", watcher)
    assert watcher.told == [] and not (tmp_path / "out").exists()


def test_tables_that_cannot_be_written_are_said(recipe, tmp_path, monkeypatch):
    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("fastagg.sim.show.findings.comparison_csv", full)
    with pytest.raises(DataError, match=r"cannot write results to .*No space left"):
        compare(cells([recipe], {}, {}, 1), tmp_path / "out", Silent())
    assert not list((tmp_path / "out").glob("*.partial"))


def test_an_unknown_baseline_is_refused_before_anything_runs(recipe, tmp_path):
    with pytest.raises(ConfigError, match=r"no baseline 'FedAvg'.*known: tiny"):
        compare(cells([recipe], {}, {}, 1), tmp_path / "out", Silent(), baseline="FedAvg")
    assert not (tmp_path / "out").exists()


REDRAW = """
import sys
from fastagg import sim
found = sim.compare(["tiny.toml"], {"run.uploads": 6}, rules={"A": "FedAsync"}, out="out")
assert len(found.results) == 1 and found.pictures
print("torch" in sys.modules)
"""


def test_a_comparison_that_is_over_is_read_and_drawn_without_torch(recipe, tmp_path):
    heard = [subprocess.run([sys.executable, "-c", REDRAW], cwd=tmp_path, capture_output=True, text=True, check=True)
             for _ in range(2)]  # fmt: skip
    assert [done.stdout for done in heard] == ["True\n", "False\n"]


# Each run ends as if it had been alone, whatever becomes of the others

METHODS: dict[str, dict[str, Any]] = {
    "FADAS": {"algorithm": {"name": "FADAS", "lr": 0.01, "buffer_size": 3, "delay_threshold": 2}},
    "FedAvg": {"algorithm": {"name": "FedAvg", "clients_per_round": 4}, "participation": {"rule": "round"}},
    "dropout": {"dropout.share": 0.4},
    "torch": {"run.fused": False},
}


def different(tiny: Any, **changes: Any) -> list[Cell]:
    return [Cell(tiny({**change, **changes}), folder=name) for name, change in METHODS.items()]


class Interrupting(Watcher):
    """Interrupts like the terminal, or kills, when a cell has come so far."""

    def __init__(self, share: float, error: type[BaseException] | None = None) -> None:
        self.share, self.error, self.done = share, error, False

    def advanced(self, cell: Cell, share: float) -> None:
        if share >= self.share and not self.done:
            self.done = True
            if self.error is not None:
                raise self.error
            signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize("killed", [False, True])
def test_stopped_at_any_time_they_end_as_if_unbroken(tiny: Any, tmp_path: Any, killed: bool) -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        found = different(tiny, **({"run.checkpoint_every": 0.0} if killed else {}))
        for share in (0.3, 0.5, 0.8):
            if killed:
                with pytest.raises(Killed):
                    run_cells(found, tmp_path / "cut", 1, Interrupting(share, Killed))
            else:
                outcomes = run_cells(found, tmp_path / "cut", 1, Interrupting(share))
                assert any(outcome.summary["interrupted"] for outcome in outcomes.values())  # type: ignore[union-attr]
        run_cells(found, tmp_path / "cut", 1, Watcher())
    finally:
        signal.signal(signal.SIGINT, before)
    for cell in found:
        run(cell.config, tmp_path / "whole" / cell.name)
        same(tmp_path / "whole" / cell.name, tmp_path / "cut" / cell.name)


def test_a_process_that_dies_takes_only_its_own_cell(tiny: Any, tmp_path: Any) -> None:
    deadly = {"name": "tests.sim.engine_models:deadly", "flag": str(tmp_path / "flag"), "once": False}
    (tmp_path / "flag").touch()
    dying = [Cell(tiny({"model": deadly, "seed": seed}), folder="dying") for seed in (0, 1)]
    living = [Cell(tiny({"model": {**deadly, "flag": str(tmp_path / "none")}, "seed": 2}), folder="living")]
    outcomes = run_cells([dying[0], *living, dying[1]], tmp_path / "out", 2, Watcher())
    assert {outcomes[cell.name] for cell in dying} == {"its process died"}
    assert outcomes["living/seed2"].summary["stopped"] == "finished"  # type: ignore[union-attr]
