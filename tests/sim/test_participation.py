import numpy as np
import pytest

from fastagg.errors import ConfigError
from fastagg.sim.clock.participation import Participation


def test_concurrency_keeps_exactly_m_c_distinct_clients_training():
    rule = Participation(clients=20, concurrency=7, seed=0)
    training = rule.initial()
    assert len(set(training)) == 7
    rng = np.random.default_rng(0)
    for _ in range(500):
        arrived = training.pop(rng.integers(len(training)))
        drawn = rule.next(arrived)
        assert drawn not in training
        assert 0 <= drawn < 20
        training.append(drawn)
        assert len(training) == 7


def test_the_next_client_is_drawn_uniformly_from_the_idle_ones():
    clients, rounds = 10, 6_000
    rule = Participation(clients, concurrency=4, seed=1)
    training = rule.initial()
    drawn_while_idle, idle_times, again = np.zeros(clients), np.zeros(clients), 0
    for _ in range(rounds):
        arrived = training.pop(0)
        idle = [c for c in range(clients) if c not in training]
        assert len(idle) == 7  # the six that idled and the one that has just arrived
        idle_times[idle] += 1
        drawn = rule.next(arrived)
        drawn_while_idle[drawn] += 1
        again += drawn == arrived
        training.append(drawn)
    # Each idle client must be drawn with probability 1/7 each time it is idle: 5 binomial deviations.
    deviation = np.sqrt(idle_times * (1 / 7) * (6 / 7))
    assert (np.abs(drawn_while_idle - idle_times / 7) < 5 * deviation).all()
    assert abs(again - rounds / 7) < 5 * np.sqrt(rounds * (1 / 7) * (6 / 7))  # the one that arrived is like the others


def test_the_client_that_arrived_can_be_drawn_again():
    rule = Participation(clients=3, concurrency=3, seed=0)
    assert sorted(rule.initial()) == [0, 1, 2]
    assert [rule.next(c) for c in (2, 0, 1)] == [2, 0, 1]  # it is the only idle one


def test_the_first_clients_depend_on_the_seed():
    starts = {tuple(Participation(50, 10, seed).initial()) for seed in range(5)}
    assert len(starts) == 5
    assert Participation(50, 10, 3).initial() == Participation(50, 10, 3).initial()


@pytest.mark.parametrize("concurrency", [0, -1, 1000])
def test_concurrency_out_of_range_is_refused(tiny, concurrency):
    with pytest.raises(ConfigError, match=r"participation\.concurrency"):
        tiny({"participation": {"rule": "concurrency", "concurrency": concurrency}})


def test_all_clients_train_all_the_time():
    rule = Participation(4, None, seed=0)
    assert rule.initial() == [0, 1, 2, 3]
    assert [rule.next(c) for c in (2, 2, 0)] == [2, 2, 0]
