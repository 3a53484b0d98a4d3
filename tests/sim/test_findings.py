"""What a comparison says of itself agrees with its numbers, and names who loses."""

from __future__ import annotations

import pytest

from fastagg.sim.many.groups import Group, speedups
from fastagg.sim.one.metrics import ACTIVITIES, Row, duration, seconds, summarise
from fastagg.sim.one.result import Result
from fastagg.sim.show import findings
from fastagg.sim.show.findings import factor, find, verdict


@pytest.fixture
def group(tiny):
    """``group("A", [(time, accuracy), ...], ...)``: a method with a seed for each list."""

    def build(method, *runs, unit="10 s", rule=None, choice=(), notes=(), target=0.9):
        results = []
        for points in runs:
            rows = [Row(k, time, 10 * k, accuracy, 1.0, 0.0, 0) for k, (time, accuracy) in enumerate(points)]
            summary = dict.fromkeys(findings.RUN_NUMBERS, 1.0) | summarise(rows, 0.9)
            summary |= {
                "wall_seconds": dict.fromkeys((*ACTIVITIES, "other"), 1.0) | {"total": 5.0},
                "notes": list(notes),
            }
            summary |= {"stopped": "finished", "uploads": 1000}
            config = tiny({"run.target": target})
            if rule is not None:
                config = config.model_copy(
                    update={"participation": config.participation.model_copy(update={"rule": rule})}
                )
            results.append(Result(config, rows, summary, unit))
        return Group(method.lower(), method, choice, results)

    return build


FAST, SLOW, NEVER = [(0, 0.1), (10, 0.9)], [(0, 0.1), (200, 0.5), (410, 0.9)], [(0, 0.1), (50, 0.3)]


def test_the_verdict_is_the_ratio_of_the_mean_times(group):
    groups = [group("Waits", SLOW, SLOW, rule="round"), group("Fast", FAST, FAST)]
    assert verdict(groups, "waits") == "Fast reaches 90% 41 times sooner than Waits"
    assert speedups(groups, "Waits")[1] == 41
    first, why, _ = findings.sentences(groups, "Waits")
    assert first == "Fast reaches 90% 41 times sooner than Waits."
    assert why == "Waits waits in every round for the slowest client."


def test_who_never_arrives_is_named(group):
    groups = [group("Base", NEVER), group("Fast", FAST)]
    said = findings.sentences(groups, "Base")
    assert said[0] == "Fast reaches 90%, Base does not."
    assert verdict([group("A", NEVER), group("B", NEVER)], "A") == ""
    half = [group("A", FAST, NEVER), group("B", FAST, FAST)]  # one seed is enough to miss it
    assert verdict(half, "A") == "B reaches 90%, A does not"


def test_a_baseline_that_wins_is_said_to_be_first(group):
    groups = [group("Base", FAST), group("Late", SLOW)]
    assert verdict(groups, "Base") == verdict(groups, None) == "Base reaches 90% first"


def test_a_target_that_everybody_has_from_the_start_makes_no_ratio(group):
    groups = [group("Base", FAST, target=0.05), group("Other", SLOW, target=0.05)]
    assert verdict(groups, "Base") == "Base reaches 5% first"
    assert verdict(groups, "Other") == "Base reaches 5% first"


def test_times_in_different_units_are_not_compared(group):
    assert verdict([group("A", FAST), group("B", SLOW, unit="update")], "A") == ""


def test_the_end_is_compared_with_what_seeds_differ_by(group):
    groups = [group("A", FAST, [(0, 0.1), (10, 0.95)]), group("B", SLOW, SLOW)]
    *_, end = findings.sentences(groups, "B")
    assert end.startswith(
        "Accuracy at the end: A is first and B last, 1.2 points below: not more than the seeds differ"
    )


def test_a_grid_has_tables_and_no_sentences(group):
    one = [group("A", FAST, choice=(("lr", v),), notes=["the same note"]) for v in (1, 2)]
    found = find(one)
    assert found.sentences == [] and [sheet.title for sheet in found.sheets] == ["Methods by settings", "Test accuracy"]
    assert found.notes == ["the same note"]
    assert find([group("A", FAST)]).sentences == []


@pytest.mark.parametrize(
    ("ratio", "words"), [(41.3, "41 times"), (9.5, "10 times"), (9.4, "9.4 times"), (1, "1.0 times")]
)
def test_a_factor_has_two_digits_that_mean_something(ratio, words):
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
