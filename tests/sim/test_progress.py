"""A bar with how many of how many, the share and the time left; without a terminal a line every 30 seconds."""

from __future__ import annotations

import io
import re
from typing import Any

import pytest
from rich.console import Console
from support.stderr import said

from fastagg.cli import bars
from fastagg.cli.bars import CellsBar, ProgressBar
from fastagg.sim.one.metrics import Row
from fastagg.sim.one.result import Result
from fastagg.sim.recipes.tables import Cell


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
            bar.evaluated(Row(version, 1.0, 1, 0.5, 1.0, 0.0, 0))
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
