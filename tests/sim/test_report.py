import csv
import io

import pytest
from rich.console import Console

from fastagg.sim.groups import grouped
from fastagg.sim.report import COMPARISON_COLUMNS, comparison_csv, time_table
from fastagg.sim.result import Result
from fastagg.sim.sweep import Cell
from fastagg.sim.sweep_tables import terminal


def text_of(table) -> str:
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(table)
    return " ".join(console.export_text().split())  # as one line, however it was folded


@pytest.fixture
def result(tiny):
    summary = dict.fromkeys(COMPARISON_COLUMNS, 0)
    summary |= {
        "stopped": "finished",
        "final_accuracy": 0.5,
        "best_accuracy": 0.75,
        "last5_accuracy_mean": 0.625,
        "last5_accuracy_std": 0.0123,
        "time_to_target": 12.34,
        "uploads": 200,
        "wall_seconds": {
            "training": 2.0,
            "server": 0.5,
            "evaluation": 0.5,
            "setup": 0.25,
            "other": 0.75,
            "total": 4.0,
        },
    }

    def build(**changes):
        return Result(tiny(), [], summary | changes, "10 s")

    return build


def test_the_table_of_times_has_seconds_and_shares(result):
    text = text_of(time_table([("Tiny", result().summary["wall_seconds"])]))
    for cell in ("2.00 50%", "0.50 12%", "0.25 6%", "0.75 19%", "4.00"):
        assert cell in text


def test_the_comparison_reads_back(result):
    cell = Cell(result().config, (("client.lr", 0.1),))
    runs = [(cell, result()), (cell, result(time_to_target=None))]
    lines = list(csv.DictReader(io.StringIO(comparison_csv(runs))))
    assert [line["client.lr"] for line in lines] == ["0.1", "0.1"]
    assert [line["time_to_target"] for line in lines] == ["12.34", ""]
    assert lines[0]["best_accuracy"] == "0.75"


def test_the_tables_fit_into_eighty_columns(result):
    console = Console(width=80, record=True, file=io.StringIO())
    summary = result().summary | {"uploads": 2500, "versions": 2500, "delay_mean": 22.8, "delay_max": 1005}
    wide = Result(result().config.model_copy(update={"label": "FedAsync"}), [], summary, "10 s")
    for table in (terminal(grouped([(Cell(wide.config), wide)])), time_table([("FedAsync", summary["wall_seconds"])])):
        console.print(table)
    text = console.export_text()
    assert "…" not in text and "FedAsync" in text and max(map(len, text.splitlines())) <= 80
