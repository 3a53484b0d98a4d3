"""What a comparison says of itself agrees with its numbers, and names who loses."""

import csv
import io
from dataclasses import replace

import pytest

from fastagg.sim.comparison.groups import speedups
from fastagg.sim.recipes.tables import Cell
from fastagg.sim.runs.metrics import duration, seconds
from fastagg.sim.show import findings
from fastagg.sim.show.findings import comparison_csv, factor, find, verdict


@pytest.fixture
def group(group):
    return lambda *given, **more: group(*given, version=lambda place, time: place, **more)


FAST, SLOW, NEVER = [(0, 0.1), (10, 0.9)], [(0, 0.1), (200, 0.5), (410, 0.9)], [(0, 0.1), (50, 0.3)]
SLOWER = [(0, 0.1), (200, 0.5), (411, 0.9)]


def test_the_verdict_is_the_ratio_of_the_mean_times(group):
    groups = [group("Waits", SLOW, SLOWER, SLOW, rule="round"), group("Fast", FAST, FAST, FAST)]
    assert verdict(groups, "waits") == "Fast reaches 90% 41 times sooner than Waits"
    assert round(speedups(groups, "Waits")[1]) == 41
    first, why, *_ = findings.sentences(groups, "Waits")
    assert first == "Fast reaches 90% 41 times sooner than Waits."
    assert why == "Waits waits in every round for the slowest client."


def test_who_never_arrives_is_named(group):
    groups = [group("Base", NEVER), group("Fast", FAST)]
    said = findings.sentences(groups, "Base")
    assert said[0] == "Fast reaches 90%, Base does not (one seed)."
    assert verdict([group("A", NEVER), group("B", NEVER)], "A") == ""
    half = [group("A", FAST, NEVER), group("B", FAST, FAST)]  # one seed is enough to miss it
    assert verdict(half, "A") == "B reaches 90% 2.24 times sooner than A (not beyond chance)"
    assert "A misses the target with 1 of 2 seeds." in findings.sentences(half, "A")


def test_a_baseline_that_wins_is_said_to_be_first(group):
    groups = [group("Base", FAST), group("Late", SLOW)]
    assert verdict(groups, "Base") == verdict(groups, None) == "Base reaches 90% first (one seed)"


def test_a_target_that_everybody_has_from_the_start_makes_no_ratio(group):
    groups = [group("Base", FAST, target=0.05), group("Other", SLOW, target=0.05)]
    assert verdict(groups, "Base") == verdict(groups, "Other") == ""


def test_times_in_different_units_are_not_compared(group):
    assert verdict([group("A", FAST), group("B", SLOW, unit="update")], "A") == ""


def test_the_end_is_compared_by_a_test_that_is_named(group):
    near = [group("A", FAST, [(0, 0.1), (10, 0.95)]), group("B", SLOW, SLOW)]
    at = "(at the level of 5%, by paired t-tests over seeds"
    assert findings.sentences(near, "B")[-1] == f"Accuracy at the end: no method is above another {at})."
    runs = [[(0, 0.1), (10, 0.9 + k / 100)] for k in (1, 2, 3, 2)]
    groups = [group("A", *runs), group("B", *[SLOW] * 4), group("C", *[SLOW] * 4)]
    told = f"A is above B, +22.0 [+20.7, +23.3] {at}, with Holm's correction for 2 of them)"
    assert findings.sentences(groups, "B")[-1] == f"Accuracy at the end: {told}."
    sheet = findings.differences(groups, "B")
    assert [row[0] for row in sheet.rows] == ["accuracy: A - B", "accuracy: B - C", "time: B / A", "time: B / C"]
    assert sheet.rows[0][1:3] == ["+22.0 [+20.7, +23.3]", "4"]
    assert sheet.rows[2][1:3] == ["41x", "4"]  # all are alike
    assert findings.differences([group("A", FAST), group("B", SLOW)]) is None


def test_a_run_that_misses_or_diverges_is_in_the_tests_and_sentences_of_its_table(group):
    """Who is sooner in the table of differences is sooner in words, also where it misses the target once."""
    b, late = [[(0, 0.1), (200, 0.5), (410 + k, 0.9)] for k in range(6)], [(0, 0.1), (450, 0.5)]
    c = [[(0, 0.1), (9 + k, 0.9)] for k in range(5)]
    first, *_ = findings.sentences([group("B", *b), group("C", *c, late)], None)
    assert first == "C reaches 90% first."
    groups = [group("A", *[[(0, 0.1), (10, 0.5 + k / 100)] for k in range(4)])]
    groups += [group("C", *[[(0, 0.1), (10, 0.9)]] * 4, stopped="diverged")]
    said = findings.sentences(groups, "A")
    assert said == [
        "A misses the target with 4 of 4 seeds.", "C diverged with 4 of 4 seeds.",
        "Accuracy at the end: A is above C, +51.5 [+49.4, +53.6] (at the level of 5%, by paired t-tests over seeds).",
    ]  # fmt: skip


def test_methods_are_compared_in_each_setting_of_a_grid(group):
    runs = {"A": [[(0, 0.1), (10, 0.9 + k / 100)] for k in (1, 2, 3, 2)], "B": [SLOW, SLOWER, SLOW, SLOW]}
    grid = [group(m, *(runs[m] if v == 1 else runs["B"]), choice=(("lr", v),)) for v in (1, 2) for m in runs]
    found = find(grid, baseline="B")
    assert [text.partition(":")[0] for text in found.sentences] == ["lr 1"] * 3 + ["lr 2"]
    assert found.sentences[0] == "lr 1: A reaches 90% 41 times sooner than B."
    sheet = next(sheet for sheet in found.sheets if sheet.title == "Differences")
    assert [row[:2] for row in sheet.rows] == [
        ["lr 1", "accuracy: A - B"], ["lr 1", "time: B / A"], ["lr 2", "accuracy: A - B"], ["lr 2", "time: A / B"],
    ]  # fmt: skip
    assert "of a setting" in sheet.caption


def test_fewer_seeds_are_marked_and_a_method_without_any_has_its_line(group):
    choice = [(("lr", v),) for v in (1, 2)]
    groups = [group("A", FAST, FAST, FAST, choice=c) for c in choice] + [group("B", FAST, FAST, choice=choice[0])]
    lost = [group("B", choice=choice[1])]
    first, second, *_ = find(groups, lost=lost).sheets
    assert first.rows == [["A", "90.0±0.0", "90.0±0.0"], ["B", "90.0±0.0 (n=2)", "– (n=0)"]]
    assert "90.0$\\pm$0.0 (n=2)" in first.latex() and "-- (n=0)" in first.latex()
    assert [row[0] for row in second.rows] == ["A, lr 1", "A, lr 2", "B, lr 1", "B, lr 2 (failed)"]
    assert second.rows[2][second.headings.index("accuracy")] == "90.0±0.0 (n=2)"


def test_a_grid_of_one_method_has_tables_and_no_sentences(group):
    one = [group("A", FAST, choice=(("lr", v),), notes=["the same note"]) for v in (1, 2)]
    found = find(one)
    assert found.sentences == [] and [sheet.title for sheet in found.sheets] == ["Methods by settings", "Test accuracy"]
    assert found.notes == ["the same note"]
    assert find([group("A", FAST)]).sentences == []


def test_a_note_stands_beside_its_runs_and_weights_that_differ_are_noted(group):
    groups = [group("A", FAST, FAST, notes=["n"]), group("B", FAST, notes=["n", "m"], weighting="samples")]
    groups.append(group("C", FAST, seed=1, notes=["m"]))
    assert find(groups).notes == [
        "A, seeds 0, 1; B, seed 0: n", "B, seed 0; C, seed 1: m",
        "updates are weighed all alike by A, C; by their clients' samples by B",
    ]  # fmt: skip


def test_a_table_says_what_is_not_in_it(group):
    groups = [group("A", FAST, SLOW), group("B", FAST, seed=1)]
    *_, absent = find(groups, absent={"b/seed0": "its process died"}).sheets
    assert absent.rows == [("b/seed0", "its process died")] and "not in these tables" in absent.markdown()
    sheet = findings.table(groups)
    assert sheet.headings[1] == "seeds" and [row[1] for row in sheet.rows] == ["0, 1", "1"]
    assert "over the seeds of the line" in sheet.caption


@pytest.mark.parametrize(
    ("ratio", "words"), [(41.34, "41.3 times"), (1.152, "1.15 times"), (123.4, "123 times"), (1, "1 times")]
)
def test_a_factor_has_the_digits_of_the_table(ratio, words):
    assert factor(ratio) == words


@pytest.mark.parametrize(
    ("value", "words"),
    [(0, "0 s"), (5.9, "59 s"), (6, "1 min"), (359, "1 h"), (360, "1 h"), (366, "1 h 1 min"), (3_600, "10 h"),
     (8_640, "1 d"), (9_000, "1 d 1 h"), (86_400, "10 d")],
)  # fmt: skip
def test_a_duration_is_in_words(value, words):
    assert duration(value, "10 s") == words


def test_only_units_of_time_become_seconds():
    assert [seconds(unit) for unit in ("10 s", "1 s", "update", "time unit", "s")] == [10, 1, 0, 0, 0]
    assert duration(54, "update") == "54.0 updates"


@pytest.fixture
def result(group):
    """``result(key=value)``: a run of four seconds, with these changes of its summary."""
    wall = {"training": 2.0, "server": 0.5, "evaluation": 0.5, "setup": 0.25, "other": 0.75, "total": 4.0}

    def build(**changes):
        (one,) = group("A", (0.25, 0.75, 0.5)).results
        return replace(one, summary=one.summary | {"wall_seconds": wall, "time_to_target": 12.34} | changes)

    return build


def test_the_comparison_holds_full_numbers_and_every_key_of_the_grids(result):
    runs = [
        (Cell(result().config, (("data.alpha", 0.1),)), result(final_accuracy=1 / 3)),
        (Cell(result().config), result(time_to_target=None)),
    ]
    first, second = csv.DictReader(io.StringIO(comparison_csv(runs)))
    assert (float(first["final_accuracy"]), first["data.alpha"], second["data.alpha"]) == (1 / 3, "0.1", "")
    assert (first["time_to_target"], second["time_to_target"], first["best_accuracy"]) == ("12.34", "", "0.75")
