"""Differences of methods: paired tests, their intervals, what they say and how often wrongly."""

import math
import statistics

import numpy as np
import pytest

from fastagg.sim.comparison.groups import Group, contrasts, holm, paired, scores
from fastagg.sim.runs.result import Result
from fastagg.sim.show.findings import sentences


@pytest.mark.parametrize("count", [2, 3, 5, 10, 33])
def test_the_interval_covers_the_true_difference_in_95_of_100(count):
    rng = np.random.default_rng(0)
    found = paired(dict(enumerate(rng.standard_normal(count))), dict.fromkeys(range(count), 0.0))
    quantile = (found.high - found.mean) / (statistics.stdev(found.pairs.values()) / math.sqrt(count))
    draws = rng.standard_normal((200_000, count))
    t = draws.mean(axis=1) / (draws.std(axis=1, ddof=1) / np.sqrt(count))
    assert (np.abs(t) < quantile).mean() == pytest.approx(0.95, abs=0.002)
    shown = abs(found.mean) / (statistics.stdev(found.pairs.values()) / math.sqrt(count))
    assert found.p == pytest.approx((np.abs(t) > shown).mean(), abs=0.004)


@pytest.fixture
def methods(tiny):
    """``methods({"A": [score or None by seed]})``: groups whose accuracies and times to the target these are."""

    def build(values, ended=5.0, stopped="finished"):
        groups = []
        for method, own in values.items():
            results = []
            for seed, value in enumerate(own):
                summary = {"last5_accuracy_mean": value, "time_to_target": value, "virtual_time": ended}
                summary |= {"stopped": stopped if value is None else "finished"}
                results.append(Result(configs[seed], [], summary, "1 s"))
            groups.append(Group(method, method, (), results))
        return groups

    configs = [tiny({"seed": seed}) for seed in range(10)]
    return build


NOISE = {
    "normal": lambda rng, shape: rng.standard_normal(shape),
    "skewed": lambda rng, shape: rng.exponential(size=shape) ** 2,
    "few values": lambda rng, shape: rng.integers(0, 3, shape).astype(float),
    "some never": lambda rng, shape: np.where(rng.random(shape) < 0.3, np.nan, rng.random(shape)),
}


@pytest.mark.parametrize("noise", NOISE)
@pytest.mark.parametrize("baseline", [None, "A"])
@pytest.mark.parametrize("seeds", [2, 3])
def test_equal_methods_are_told_apart_in_at_most_5_of_100_comparisons(seeds, baseline, noise, methods):
    """By the sentence about accuracies, and by the one about times: each is a test of its own."""
    rng, wrong, count = np.random.default_rng(3), np.zeros(2), 250
    for _ in range(count):
        drawn = 20.0 + NOISE[noise](rng, (3, seeds)) + 3 * rng.standard_normal(seeds)  # what a seed has in common
        said = sentences(
            methods({m: [None if v != v else v for v in own] for m, own in zip("ABC", drawn, strict=True)}, 40.0),
            baseline,
        )
        wrong[0] += any(f"{m} is above" in one for one in said for m in "ABC")
        wrong[1] += any(f"{m} reaches" in one and "(" not in one for one in said for m in "ABC")
    assert max(wrong) / count <= 0.05 + 2 * math.sqrt(0.05 * 0.95 / count)


def test_methods_that_differ_are_told_apart(methods):
    rng = np.random.default_rng(0)
    groups = methods({m: 3 * k + rng.standard_normal(6) / 2 for k, m in enumerate("ABC")})
    assert [(one.more, one.fewer) for one in contrasts(groups, "last5_accuracy_mean")] == [
        *map(tuple, ("BA", "CA", "CB"))
    ]
    assert all(one.p < 0.05 for one in contrasts(groups, "last5_accuracy_mean"))
    assert [one.more for one in contrasts(groups, "last5_accuracy_mean", "A")] == ["B", "C"]
    assert contrasts(methods({"A": [1.0], "B": [2.0]}), "last5_accuracy_mean") == []


def test_the_correction_is_holms():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.6, 0.5]) == [1.0, 1.0] and holm([]) == []


@pytest.mark.parametrize(
    ("sooner", "later", "stopped", "mean", "shown"),
    [
        ([1.0, 1.1, None], [2.0, 2.1, 2.2], "finished", (1 + 1 - 2.8) / 3, False),  # the third is 5 or more
        ([1.0, 1.1, 1.3], [None, None, None], "finished", 3.8666, True),
        ([None, None, None], [None, None, None], "finished", 0.0, False),
        ([1.0, 2.0, 6.0], [6.0, 6.5, None], "finished", 7 / 3, False),  # nothing is compared beyond 5
        ([None, None, None], [2.0, 2.1, 2.2], "diverged", -2.9, True),  # it will never arrive
        ([1.0, 1.0, 1.0], [2.0, 2.0, 2.0], "finished", 1.0, False),  # three equal numbers say little of a fourth
    ],
)
def test_a_run_that_never_arrives_is_later_than_those_that_do(sooner, later, stopped, mean, shown, methods):
    groups = methods({"late": later, "soon": sooner}, 5.0, stopped)
    difference = paired(*scores([group.summaries for group in groups], "time_to_target"))
    assert len(difference.pairs) == 3 and difference.mean == pytest.approx(mean, abs=1e-3)
    assert (difference.p <= 0.05) == shown


def test_a_diverged_run_has_the_worst_number(methods):
    sides = [group.summaries for group in methods({"A": [0.5, None], "B": [0.5, 0.5]}, stopped="diverged")]
    assert scores(sides, "last5_accuracy_mean", 100.0) == [{0: 50.0, 1: 0.0}, {0: 50.0, 1: 50.0}]
    (group,) = methods({"A": [0.5, None]})
    assert scores([group.summaries], "last5_accuracy_mean") == [{0: 0.5}]  # it was just not measured


def test_pairs_are_by_seed_and_decide():
    better, worse = {0: 5.0, 1: 7.0, 2: 9.0, 9: 100.0}, {0: 1.0, 1: 3.5, 2: 4.5, 5: 0.0}
    difference = paired(better, worse)
    assert dict(difference.pairs) == {0: 4.0, 1: 3.5, 2: 4.5} and difference.mean == pytest.approx(4.0)
    half = 4.302653 * statistics.stdev([4.0, 3.5, 4.5]) / 3**0.5
    assert (difference.low, difference.high) == (pytest.approx(4 - half), pytest.approx(4 + half))
    assert difference.p is not None and difference.p < 0.05 and paired(worse, better).mean == -difference.mean
    assert paired({0: 1.0}, {0: 0.0}).p is None
