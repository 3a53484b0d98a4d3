import csv
import io
from dataclasses import replace

import pytest

from fastagg.sim.recipes.tables import Cell
from fastagg.sim.show.findings import comparison_csv


@pytest.fixture
def result(group):
    """``result(key=value)``: a run of four seconds, with these changes of its summary."""
    wall = {"training": 2.0, "server": 0.5, "evaluation": 0.5, "setup": 0.25, "other": 0.75, "total": 4.0}

    def build(**changes):
        (one,) = group("A", (0.25, 0.75, 0.5)).results
        return replace(one, summary=one.summary | {"wall_seconds": wall, "time_to_target": 12.34} | changes)

    return build


def test_the_comparison_reads_back(result):
    cell = Cell(result().config, (("client.lr", 0.1),))
    runs = [(cell, result()), (cell, result(time_to_target=None))]
    lines = list(csv.DictReader(io.StringIO(comparison_csv(runs))))
    assert [line["client.lr"] for line in lines] == ["0.1", "0.1"]
    assert [line["time_to_target"] for line in lines] == ["12.34", ""]
    assert lines[0]["best_accuracy"] == "0.75"


def test_the_comparison_holds_full_numbers_and_every_key_of_the_grids(result):
    runs = [
        (Cell(result().config, (("data.alpha", 0.1),)), result(final_accuracy=1 / 3)),
        (Cell(result().config), result()),
    ]
    first, second = csv.DictReader(io.StringIO(comparison_csv(runs)))
    assert (float(first["final_accuracy"]), first["data.alpha"], second["data.alpha"]) == (1 / 3, "0.1", "")
