import struct

import pytest

from fastagg.sim.many.groups import grouped
from fastagg.sim.one.metrics import Row
from fastagg.sim.one.result import Result
from fastagg.sim.recipes.tables import Cell
from fastagg.sim.show.plots import curves
from fastagg.sim.show.series import time_scale
from fastagg.sim.show.style import save


@pytest.fixture
def drawn(tiny):
    def drawn(about="What it is about.", unit="10 s", target=0.9, accuracies=(0.1, 0.5, 0.9)):
        rows = [Row(k, 10.0 * k, 5 * k, a, 1.0, 0.0, 0) for k, a in enumerate(accuracies)]
        config = tiny({"label": "First", "about": about, "run.target": target})
        return curves(grouped([(Cell(config), Result(config, rows, {"stopped": "finished"}, unit))]), about, ["time"])

    return drawn


def test_a_run_is_a_line_in_percent_over_virtual_time(drawn):
    figure = drawn()
    axes = figure.axes[0]
    lines = {line.get_label(): line for line in axes.get_lines()}
    assert list(lines) == ["First", "target 90%"]
    assert list(lines["First"].get_xdata()) == pytest.approx([0.0, 100 / 60, 200 / 60])
    assert list(lines["First"].get_ydata()) == [10.0, 50.0, 90.0]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == list(lines)


def test_the_file_is_a_png_of_the_promised_size(drawn, tmp_path):
    save(drawn(), tmp_path / "plot.png")
    data = (tmp_path / "plot.png").read_bytes()
    assert data.startswith(b"\x89PNG")
    assert struct.unpack(">II", data[16:24]) == (1000, 640)


@pytest.mark.parametrize(("suffix", "magic"), [("pdf", b"%PDF"), ("svg", b"<?xml"), ("png", b"\x89PNG")])
def test_the_suffix_says_the_format(drawn, tmp_path, suffix, magic):
    save(drawn(), tmp_path / f"plot.{suffix}")
    assert (tmp_path / f"plot.{suffix}").read_bytes().startswith(magic)


def test_accuracy_begins_at_zero_and_ends_above_every_point(drawn):
    low, high = drawn().axes[0].get_ylim()
    assert low == 0 and 90 < high <= 100.5
    small = drawn(target=0.3, accuracies=(0.1, 0.3, 0.4))
    assert 40 < small.axes[0].get_ylim()[1] < 50  # what learns little fills its picture, too


@pytest.mark.parametrize(
    ("longest", "unit", "factor", "name"),
    [(7200, "10 s", 1 / 360, "hours"), (2, "10 s", 10, "seconds"), (30, "10 s", 1 / 6, "minutes"),
     (60_000, "10 s", 1 / 8640, "days"), (50, "update", 1, "updates"), (50, "time unit", 1, "time units")],
)  # fmt: skip
def test_virtual_time_has_a_unit_that_fits(longest, unit, factor, name):
    assert time_scale(longest, unit) == (f"virtual time ({name})", pytest.approx(factor))
