import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastagg.sim.one.metrics import DelayStatistics, Row, reaching, spread, summarise


def rows(*accuracies: float) -> list[Row]:
    return [Row(k, 10.0 * k, 5 * k, a, 1.0 - a, 2.0, 3) for k, a in enumerate(accuracies)]


@given(st.lists(st.integers(0, 20), min_size=1, max_size=50))
def test_delay_statistics_are_those_of_the_list(delays):
    statistics = DelayStatistics()
    for delay in delays:
        statistics[delay] += 1
    assert statistics.mean == pytest.approx(np.mean(delays))
    assert statistics.median == np.median(delays)
    assert statistics.maximum == max(delays)


def test_no_delays_count_as_zero():
    statistics = DelayStatistics()
    statistics[4] += 1
    statistics.clear()
    assert (statistics.mean, statistics.median, statistics.maximum) == (0.0, 0.0, 0)


@pytest.mark.parametrize(
    ("tested", "mean", "count"),
    [
        ([(0, 0.1), (1, 0.7), (2, 0.8)], 0.75, 2),  # nobody trained version 0
        ([(0, 0.1), (7, 0.5), (8, 0.6), (9, 0.7), (9, 0.7)], 0.6, 3),  # updates after the last step: it is tested twice
        ([(0, 0.1), (50, 0.2), (100, 0.4), (103, 0.6)], 0.5, 2),  # 50 is not among the last five
        ([(0, 0.1), *((v, v / 10) for v in range(1, 9))], 0.6, 5),
        ([(0, 0.1), (0, 0.1)], None, 0),
    ],
)
def test_the_accuracy_is_of_the_last_five_versions(tested, mean, count):
    found = [Row(v, 1.0 * k, k, a, 1.0, 0.0, 0) for k, (v, a) in enumerate(tested)]
    summary = summarise(found, 0.9)
    assert summary["last5_accuracy_mean"] == (None if mean is None else pytest.approx(mean))
    assert summary["last5_versions"] == count and summary["final_accuracy"] == tested[-1][1]
    summary = summarise(found, 0.9, "diverged")  # it has no model at its end
    gone = ("last5_accuracy_mean", "last5_accuracy_std", "final_accuracy", "final_loss")
    assert [summary[key] for key in gone] == [None] * 4 and summary["best_accuracy"] == max(a for _, a in tested)


def test_the_last_five_evaluations_are_reported_with_their_deviation():
    found = summarise(rows(0.1, 0.5, 0.6, 0.7, 0.8, 0.9), 0.9)
    assert found["last5_accuracy_mean"] == pytest.approx(0.7)
    assert found["last5_accuracy_std"] == pytest.approx(np.std([0.5, 0.6, 0.7, 0.8, 0.9]))


@pytest.mark.parametrize("place", [0, 1, 2])
def test_nan_is_never_the_best_and_always_the_worst(place):
    accuracies = [0.2, 0.5]
    accuracies.insert(place, math.nan)
    found = summarise(rows(*accuracies), 0.4)
    assert found["best_accuracy"] == 0.5 and found["time_to_target"] == 10.0 * accuracies.index(0.5)
    assert math.isnan(spread([*accuracies, *[0.9] * 7])[1])
    assert math.isnan(summarise(rows(math.nan), 0.4)["best_accuracy"])


def test_the_summary_takes_best_final_and_the_first_that_reaches_the_target_from_different_rows():
    summary = summarise(rows(0.2, 0.9, 0.7, 0.95), target=0.85)
    assert summary["best_accuracy"] == summary["final_accuracy"] == 0.95
    assert summary["time_to_target"] == reaching(rows(0.2, 0.9, 0.7, 0.95), 0.85).time == 10.0
    assert (summary["versions"], summary["uploads"], summary["virtual_time"]) == (3, 15, 30.0)
    summary = summarise(rows(0.2, 0.9, 0.7), target=0.95)
    assert (summary["best_accuracy"], summary["final_accuracy"], summary["time_to_target"]) == (0.9, 0.7, None)
