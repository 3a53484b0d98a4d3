"""Statistics over several seeds: means, deviations, times to target, ratios, and their tables."""

import math

import pytest

from fastagg.sim.comparison.cells import cells
from fastagg.sim.comparison.groups import Group, grouped, speedups
from fastagg.sim.recipes.tables import Cell
from fastagg.sim.show import findings


@pytest.fixture
def group(group):
    """Groups of runs whose target is 50%, by default."""
    return lambda *given, unit="s", target=0.5, **more: group(*given, unit=unit, target=target, **more)


@pytest.fixture
def result(group):
    return lambda *accuracies: group("A", accuracies).results[0]


def test_deviations_are_over_the_sample_and_missing_values_are_counted(group):
    found = group("A", (0, 0.1), (0, 0, 0, 0, 0.4), stopped="diverged").over("last5_accuracy_mean")
    assert (found.mean, found.missing) == (None, 2)
    assert group("A", (0, 0.5), (0, 0, 0, 0, 0.5)).over("time_to_target", 0.1).deviation == pytest.approx(
        math.sqrt(4.5)
    )
    found = group("A", (0, 0.5), (0, 0, 0.1)).over("time_to_target")
    assert (found.mean, found.deviation, found.missing, found.least, found.of_all) == (15.0, None, 1, True, None)
    found = group("A", (0, 0.1)).over("time_to_target")
    assert (found.mean, found.deviation, found.least) == (None, None, False)


def test_seeds_are_grouped_by_method_and_setting(tmp_path, tiny_toml, result):
    path, other = tmp_path / "tiny.toml", tmp_path / "other.toml"
    path.write_text(tiny_toml)
    other.write_text(tiny_toml.replace('"tiny"', '"other"'))
    found = cells([str(path), str(other)], {}, {"client.lr": [0.1, 0.3]}, seeds=2)
    groups = grouped([(cell, result(0.1)) for cell in found])
    assert [len(g.results) for g in groups] == [2, 2, 2, 2]
    # Both recipes are labelled "Tiny": they go by their names.
    assert [g.label for g in groups] == ["tiny, lr 0.1", "tiny, lr 0.3", "other, lr 0.1", "other, lr 0.3"]
    assert [g.label for g in grouped([(c, result(0.1)) for c in found[:4]])] == ["Tiny, lr 0.1", "Tiny, lr 0.3"]


def test_keys_with_the_same_last_part_are_told_apart(result, tiny):
    choice = (("client.lr", 0.1), ("algorithm.lr", 1.0), ("data.alpha", 0.3))
    (one,) = grouped([(Cell(tiny(), choice), result(0.1))])
    assert one.setting == "client.lr 0.1, algorithm.lr 1.0, alpha 0.3"


def test_the_speedup_is_the_mean_ratio_of_the_baselines_times_to_the_methods(group):
    slow = group("FedAvg", (0, 0, 0, 0.6), (0, 0, 0, 0, 0, 0.5))  # 30 and 50
    fast = group("FADAS", (0, 0.5), (0, 0.7))  # 10 and 10
    assert speedups([slow, fast], "FedAvg") == pytest.approx([1.0, 15**0.5])
    assert speedups([slow, fast], "fedavg") == pytest.approx([1.0, 15**0.5])
    slow = group("FedAvg", (0, 0, 0, 0.6), (0, 0, 0, 0, 0, 0.5), target=0.6)
    fast = group("FADAS", (0, 0.5), (0, 0.7), target=0.6)
    assert speedups([slow, fast], "FADAS") == [None, None]  # a seed of each never gets there
    assert speedups([slow, fast], None) == [None, None]


def test_no_speedup_where_a_seed_misses_the_target_or_the_units_differ(group):
    never = group("A", (0, 0.5), (0, 0.4))
    other = group("B", (0, 0.5), unit="arrival")
    base = group("C", (0, 0, 0.5))
    assert speedups([never, other, base], "C") == [None, None, 1.0]


def test_speedups_compare_within_one_setting(group):
    lines = [group(m, run, choice=(("alpha", a),)) for a, m, run in (
        (0.1, "Base", (0, 0, 0, 0.5)), (0.1, "Fast", (0, 0.5)), (0.3, "Base", (0, 0, 0.5)), (0.3, "Fast", (0, 0.5)),
        (0.7, "Fast", (0, 0.5)),
    )]  # fmt: skip
    assert speedups(lines, "Base") == [*map(pytest.approx, (1.0, 3.0, 1.0, 2.0)), None]


def test_the_table_says_mean_deviation_never_and_ratio(group):
    lines = [group("FedAvg", (0, 0.2, 0.4, 0.5), (0, 0.2, 0.4, 0.4)), group("FADAS", (0, 0.5), (0, 0.5))]
    sheet = findings.table(lines, "fedavg")  # a recipe's name stands for its method
    table = [dict(zip(sheet.headings, row, strict=True)) for row in sheet.rows]
    assert [row["method"] for row in table] == ["FedAvg", "FADAS"]
    assert table[0]["accuracy"] == "35.0±2.4"  # 36.7 and 33.3, of versions 3, 5 and 7
    assert table[0]["time to 50%"] == "≥ 30.0 (1 never)"
    assert table[0]["uploads to 50%"] == "≥ 15 (1 never)"
    assert table[1]["time to 50%"] == "10.0±0.0"
    assert table[1]["delays"] == "1.5, 0.0, 3"
    assert "count as long as they ran" in sheet.caption and "of every 4th version" in sheet.caption
    assert [row["vs FedAvg"] for row in table] == ["–", "–"]


def test_another_target_needs_no_other_run(result):
    sheet = findings.table(grouped([(Cell(one.config), one) for one in [result(0, 0.2, 0.4, 0.9).at(0.4)]]))
    assert sheet.rows[0][sheet.headings.index("time to 40%")] == "20.0"


def test_a_time_in_seconds_is_said_in_words(group):
    sheet = findings.table([group("A", *[(0, 0.2, 0.9)] * 2, unit="10 s"), group("B", (0, 0.1), unit="10 s")])
    assert [row[sheet.headings.index("time to 50%")] for row in sheet.rows] == ["3 min±0 s", "never"]
    assert "Time is virtual;" in sheet.caption


def test_runs_that_did_not_finish_are_marked(group):
    one = group("A", (0, 0.1), stopped="diverged")
    both = Group("a", "A", (), [*one.results, *group("A", (0, 0.2)).results])
    assert findings.table([one]).rows[0][0] == "A (diverged)"
    sheet = findings.table([both])
    assert sheet.rows[0][:2] == ["A (1 diverged)", "10.0 (n=1)"] and "the mean is over" in sheet.caption


def test_methods_by_settings(group):
    lines = [group("A", (0.5,), choice=(("setting", s),)) for s in ("Dir(0.1)", "Dir(0.3)", "none")]
    lines += [group("B", (0.25,), (0.75,), choice=(("setting", "none"),))]
    sheet = findings.pivot(lines)
    assert sheet.headings == ["method", "Dir(0.1)", "Dir(0.3)", "none"]
    few = "50.0 (n=1)"
    assert sheet.rows == [["A", few, few, few], ["B", "–", "–", "50.0±35.4"]]
    assert findings.pivot(lines[:1]) is None
    assert findings.pivot([lines[0], group("B", (0.5,), stopped="diverged")]).rows[1] == ["B", "–", "– (diverged)"]


@pytest.mark.parametrize(
    ("measure", "scale"),
    [("last5_accuracy_mean", 100), ("best_accuracy", 100), ("client_worst", 100), ("server_share", 100),
     ("time_to_target", 1), ("uploads_to_target", 1), ("final_loss", 1), ("delay_mean", 1)],
)  # fmt: skip
def test_only_a_share_is_in_percent(measure, scale):
    assert findings.scale(measure) == scale


def test_a_table_of_another_measure_has_its_numbers(group):
    late = [group("A", (0, 0, 0.5), choice=(("lr", v),), measure="time_to_target") for v in (1, 2)]
    sheet = findings.pivot(late)
    assert sheet.rows == [["A", "20.0", "20.0"]] and sheet.caption.startswith("Virtual time to the target accuracy:")


def test_markdown_has_a_cell_for_every_column_and_escapes_bars(group):
    text = findings.table([group("a|b", (0.1,), (0.2,)), group("c", (0.3,), (0.2,))], "c").markdown()
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert len({line.replace(r"\|", "").count("|") for line in lines}) == 1
    assert r"a\|b" in lines[2]
    assert "over 2 seeds" in text
