import itertools
import struct

import numpy as np
import pytest

from fastagg.drawing import save
from fastagg.sim.comparison.compare import Comparison
from fastagg.sim.comparison.groups import grouped
from fastagg.sim.recipes.tables import Cell
from fastagg.sim.runs.metrics import EvaluationRow
from fastagg.sim.runs.result import Result
from fastagg.sim.show.plots import curves, delay_tails, lines_over_key, to_target
from fastagg.sim.show.series import MOST_LINES, few_lines, line_labels, mean_curve, time_scale


@pytest.fixture
def group(group):
    return lambda *given, **more: group(*given, version=lambda place, time: int(time), **more)


LINE = (0.1, 0.5, 0.9)


def test_the_mean_curve_joins_the_seeds_points_and_ends_where_the_first_seed_does(group):
    seeds = [(0, 0.0), (10, 1.0), (20, 1.0)], [(0, 0.0), (5, 1.0), (12, 1.0)]
    x, mean, deviation = mean_curve(group("A", *seeds), "time")
    assert list(x) == [0, 5, 10, 12]
    assert list(mean) == [0, 75, 100, 100]
    assert deviation[1] == pytest.approx(np.std([50, 100], ddof=1))
    assert mean_curve(group("A", LINE), "time")[2] is None


def test_three_panels_over_time_versions_and_uploads_with_a_band(group):
    groups = [group("A", LINE, LINE), group("B", LINE)]
    figure = curves(groups, "Title")
    labels = [axes.get_xlabel() for axes in figure.axes]
    assert labels == ["virtual time (minutes)", "server versions", "client updates received"]
    assert figure.axes[0].get_ylabel() == "test accuracy (%)"
    for axes, end in zip(figure.axes, (200 / 60, 20, 10), strict=True):
        lines = {line.get_label(): line for line in axes.get_lines()}
        assert list(lines) == ["A", "B", "target 90%"]
        assert lines["A"].get_xdata()[-1] == pytest.approx(end)
        assert list(lines["A"].get_ydata()) == [10, 50, 90]
        assert len(axes.collections) == 1  # one seed has no band
    assert "Title" in figure.get_suptitle() and "over 2 seeds" in figure.get_suptitle()


def test_lines_over_a_key_with_three_numbers_or_more(group):
    low, high = [(0, 0.1), (10, 0.4)], [(0, 0.1), (10, 0.8)]
    groups = [group("A", low, high, choice=(("delay.suspension", v),)) for v in ("0.5", "0.0", "0.9")]
    groups += [group("B", high, choice=(("delay.suspension", v),)) for v in ("0.0", "0.5", "0.9")]  # as tables label
    figure = lines_over_key(groups)
    (axes,) = figure.axes
    assert "suspension" in axes.get_xlabel() and figure.get_suptitle().startswith("Accuracy of a run's last five")
    drawn = {line.get_label(): line for line in axes.get_lines() if not line.get_label().startswith("_")}
    assert list(drawn) == ["A", "B"]
    assert list(drawn["A"].get_xdata()) == [0.0, 0.5, 0.9]
    assert list(drawn["A"].get_ydata()) == pytest.approx([60, 60, 60])
    assert lines_over_key(groups[:2]) is None  # two places make no line
    named = [group("A", low, choice=(("algorithm.cache", v),)) for v in ("fp32", "bf16", "int8")]
    assert lines_over_key(named) is None


def test_the_values_of_a_grids_other_keys_have_lines_of_their_own(group):
    grid = [(("data.alpha", a), ("client.lr", b)) for a in (0.1, 0.3) for b in (1, 3, 9)]
    figure = lines_over_key([group("A", [(0, 0.1), (9, 0.1 * n)], choice=c) for n, c in enumerate(grid, start=1)])
    (axes,) = figure.axes
    drawn = {line.get_label(): line for line in axes.get_lines() if not line.get_label().startswith("_")}
    assert {name: list(line.get_ydata()) for name, line in drawn.items()} == {
        "alpha 0.1": pytest.approx([10, 20, 30]), "alpha 0.3": pytest.approx([40, 50, 60]),
    }  # fmt: skip
    assert axes.get_xlabel() == "client.lr" and axes.get_xscale() == "log"
    many = [group(method, LINE, choice=choice) for method in "ABCD" for choice in grid]
    assert lines_over_key(many) is None  # eight lines


def test_runs_with_other_units_share_no_time_axis(group):
    figure = curves([group("A", LINE), group("B", LINE, unit="update")])
    assert [axes.get_xlabel() for axes in figure.axes] == ["server versions", "client updates received"]


def test_nothing_overlaps_however_many_and_long_the_labels(group):
    groups = [group(f"A method with a long name, number {n}", LINE) for n in range(MOST_LINES)]
    figure = curves(groups, "A long title of many words " * 12)
    figure.draw_without_rendering()
    legend = figure.legends[0].get_window_extent()
    assert legend.x0 >= 0 and legend.x1 <= figure.bbox.width and legend.y0 >= 0
    boxes = [axes.get_tightbbox() for axes in figure.axes]
    assert all(legend.y1 <= box.y0 for box in boxes)
    assert all(a.x1 <= b.x0 + 1 for a, b in itertools.pairwise(boxes))
    title = figure._suptitle.get_window_extent()
    assert title.x0 >= 0 and title.x1 <= figure.bbox.width and all(title.y0 >= box.y1 for box in boxes)


def test_many_lines_are_parted_by_the_first_keys(group):
    grid = [(("alpha", a), ("beta", b)) for a in range(3) for b in range(3)]
    groups = [group(m, LINE, choice=choice) for m in "AB" for choice in grid]
    parts = few_lines(groups)
    assert list(parts) == ["alpha 0", "alpha 1", "alpha 2"]
    assert all(len(part) == MOST_LINES for part in parts.values())
    assert line_labels(parts["alpha 1"])[:2] == ["A, beta 0", "A, beta 1"]  # what all share is in the title
    assert list(few_lines(groups[:6])) == [""]
    assert line_labels(groups[:2]) == ["beta 0", "beta 1"]
    assert line_labels([group("A", LINE)]) == ["A"]


def test_delays_are_drawn_as_a_tail_on_two_logarithmic_axes(group):
    figure = delay_tails([group("A", LINE, LINE, delays={0: 1, 2: 1, 3: 1, 9: 1})])
    (axes,) = figure.axes
    (line,) = axes.get_lines()
    assert list(line.get_xdata()) == [2, 3, 9]
    assert list(line.get_ydata()) == [0.75, 0.5, 0.25]
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    assert line.get_label() == "A (mean 1.5, max 9)"
    assert "server versions" in axes.get_xlabel()
    figure.draw_without_rendering()


def test_rounds_have_no_late_updates_and_are_drawn_all_the_same(group):
    figure = delay_tails([group("A", LINE, delays={0: 9})])
    figure.draw_without_rendering()  # a logarithmic axis without a number would fail here
    assert figure.axes[0].get_lines()[0].get_label() == "A (mean 1.5, max 0)"


def test_time_is_logarithmic_where_one_method_takes_much_longer(group):
    slow = [(0, 0.1), (100, 0.5), (200, 0.9)]
    figure = curves([group("A", LINE), group("B", slow)])
    assert [axes.get_xscale() for axes in figure.axes] == ["log", "log", "linear"]  # uploads are alike
    figure = curves([group("A", LINE), group("B", LINE)])
    assert [axes.get_xscale() for axes in figure.axes] == ["linear", "linear", "linear"]


def test_the_picture_tells_its_verdict_without_a_text(group):
    slow = [(0, 0.1), (100, 0.5), (200, 0.9)]
    slower = [(0, 0.1), (100, 0.5), (201, 0.9)]
    groups = [group("Waits", slow, slower, slow), group("Fast", *[LINE] * 3), group("Never", [(0, 0.1), (9, 0.2)])]
    figure = to_target(groups, "What it is.", "waits")
    assert figure.get_suptitle().strip() == "Fast reaches 90% 10 times sooner than Waits"
    bars, axes = figure.axes
    assert [round(bar.get_width()) for bar in bars.patches] == [200, 20]
    words = ["33 min", "3 min\n10 times sooner", "not reached with every seed"]
    assert [text.get_text() for text in bars.texts] == words
    assert axes.get_ylim()[0] == 0  # no zoom
    figure.draw_without_rendering()
    assert all(text.get_window_extent().x1 <= axes.get_tightbbox().x0 for text in bars.texts)
    below = [box.y0 for box in (bars.get_tightbbox(), axes.get_tightbbox())]
    assert figure.legends[0].get_window_extent().y1 <= min(below)
    lower = figure.texts[-1].get_window_extent()
    assert lower.y1 <= figure._suptitle.get_window_extent().y1 and lower.y0 >= axes.get_tightbbox().y1


@pytest.mark.parametrize("width", [3.3, 6.8])
@pytest.mark.parametrize("lines", [2, 6, 12])
@pytest.mark.parametrize("name", ["accuracy", "target", "delays"])
def test_a_picture_of_a_paper_s_width_holds_all_its_text(group, width, lines, name):
    choices = [(("lr", v), ("alpha", 0.1)) for v in (1, 2)]
    slow = [[(0, 0.1), (100 + 10 * k, 0.5), (200 + 10 * k, 0.9)] for k in range(3)]
    methods = [f"Method {n}" + " with a long name" * (n == 1) for n in range(lines)]
    groups = [group(m, *(slow if m == methods[0] else [LINE] * 3), choice=c, delays={0: 9, 1: 5, 7: 2})
              for c in choices for m in methods]  # fmt: skip
    found = Comparison(groups, {}, [], None, "A title", methods[0])
    figure = found.figure(name, width=width, at={"lr": 2})
    figure.draw_without_rendering()
    assert figure.get_size_inches()[0] == width
    edge = figure.bbox.expanded(1.02, 1.02)
    for axes in figure.axes:
        box, inside = axes.get_tightbbox(), axes.get_window_extent()
        assert edge.x0 <= box.x0 and box.x1 <= edge.x1 and edge.y0 <= box.y0 and box.y1 <= edge.y1
        assert inside.width > 0.35 * figure.bbox.width / (1 if width < 6 else 3) and inside.height > 40
    boxes = [axes.get_tightbbox().padded(-1) for axes in figure.axes]
    assert not any(a.overlaps(b) for a, b in itertools.combinations(boxes, 2))
    legend = figure.legends[0].get_window_extent()
    assert edge.x0 <= legend.x0 and legend.x1 <= edge.x1 and edge.y0 <= legend.y0


def test_no_verdict_no_picture(group):
    never = [(0, 0.1), (9, 0.2)]
    assert to_target([group("A", never), group("B", never)], "", "A") is None
    assert to_target([group("A", LINE)], "", "A") is None
    other = [group("A", LINE), group("B", LINE, unit="update")]
    assert to_target(other, "", "A") is None


@pytest.fixture
def drawn(tiny):
    def drawn(about="What it is about.", unit="10 s", target=0.9, accuracies=(0.1, 0.5, 0.9)):
        rows = [EvaluationRow(k, 10.0 * k, 5 * k, a, 1.0, 0.0, 0) for k, a in enumerate(accuracies)]
        config = tiny({"label": "First", "about": about, "run.target": target})
        return curves(grouped([(Cell(config), Result(config, rows, {"stopped": "finished"}, unit))]), about, ["time"])

    return drawn


@pytest.mark.parametrize(("suffix", "magic"), [("pdf", b"%PDF"), ("svg", b"<?xml"), ("png", b"\x89PNG")])
def test_the_suffix_says_the_format(drawn, tmp_path, suffix, magic):
    png = save(drawn(), tmp_path / f"plot.{suffix}")
    assert (tmp_path / f"plot.{suffix}").read_bytes().startswith(magic)
    assert png.startswith(b"\x89PNG") and struct.unpack(">II", png[16:24]) == (1000, 640)  # for the report


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
