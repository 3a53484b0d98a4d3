"""The cases of waiting: what the model of a queue says where the answer is known."""

from __future__ import annotations

import math
import random

import pytest


@pytest.mark.parametrize("load", [0.3, 0.7])
def test_the_queue_waits_as_long_as_queueing_theory_says(load):
    """One server, Poisson arrivals, constant service: a mean wait of load/(2*(1 - load)) services (Pollaczek)."""
    from cases import waiting

    came = waiting.arrivals(200_000, load, 1, seed=3)
    done = waiting.model(came, [1.0], seed=4)
    waited = sum(end - begin - 1.0 for begin, end in zip(came, done, strict=True)) / len(came)
    assert waited == pytest.approx(load / (2 * (1 - load)), rel=0.05)


def test_bursts_come_together_at_the_same_rate():
    from cases import waiting

    came = waiting.arrivals(80_000, 50.0, 8, seed=5)
    assert len(set(came)) == 10_000 and came[-1] == pytest.approx(80_000 / 50, rel=0.05)
    assert came == sorted(came)


def test_waiting_of_a_run():
    from cases import waiting

    draw = random.Random(0)
    came = sorted(draw.uniform(0, 1) for _ in range(100))
    done = [at + 2.0 for at in came]  # all of them wait at once
    middle, late, queue = waiting.waits(came, done)
    assert queue == 100 and math.isclose(middle, 2.0) and math.isclose(late, 2.0)
