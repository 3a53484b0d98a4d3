import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastagg.sim.clock.schedule import VirtualClock


def drain(clock: VirtualClock) -> list:
    return [(clock.next(), clock.now) for _ in range(len(clock))]


def test_delays_count_from_now():
    clock = VirtualClock()
    clock.schedule(2.0, "first")
    clock.next()
    assert clock.schedule(1.5, "second") == 3.5
    assert drain(clock) == [("second", 3.5)]


@given(st.lists(st.integers(0, 3), max_size=40))
def test_events_come_in_the_order_of_their_times_and_of_scheduling(delays):
    clock = VirtualClock()
    for number, delay in enumerate(delays):
        clock.schedule(float(delay), number)
    expected = sorted(range(len(delays)), key=lambda number: delays[number])  # sorted() is stable
    assert clock.in_flight() == expected and clock.now == 0.0
    assert not delays or clock.next_time() == min(delays)
    assert drain(clock) == [(number, float(delays[number])) for number in expected]


def test_items_need_not_be_comparable():
    clock = VirtualClock()
    clock.schedule(1.0, {"x": 1})
    clock.schedule(1.0, {"x": 0})
    assert [item["x"] for item, _ in drain(clock)] == [1, 0]


@pytest.mark.parametrize("delay", [-1e-9, math.nan, math.inf])
def test_an_impossible_delay_is_refused(delay):
    clock = VirtualClock()
    with pytest.raises(ValueError, match="delay"):
        clock.schedule(delay, "x")
    assert len(clock) == 0


def test_an_empty_clock_has_no_next_event():
    with pytest.raises(IndexError):
        VirtualClock().next()
