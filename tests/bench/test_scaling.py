"""bench/scaling.py and bench/ingest.py: what the models say where the answer is known."""

from __future__ import annotations

import math
import random

import pytest


def test_the_fit_finds_a_line():
    import scaling

    found = scaling.fit([(size, 5e-6 + 1e-9 * size) for size in (1e3, 1e7, 1e8)])
    assert found.constant == pytest.approx(5e-6, rel=1e-2) and found.per_parameter == pytest.approx(1e-9, rel=1e-2)
    with pytest.raises(SystemExit, match="small and large"):
        scaling.fit([(1e3, 1e-6)])


def test_a_size_is_told_what_ends_first():
    import scaling

    machine = scaling.Machine(memory=100e9, store=1e13, network=1e9, disk=2e9, hour=3.6, egress=0.0)
    time, rule = scaling.Time(1e-5, 1e-9), scaling.RULES["ACE, int8"]
    small = scaling.cost(rule, time, 1e6, 10, machine)
    assert small.memory == 12e6 + 1.016e7 + 240 and small.machines == 1
    assert small.rates == {"memory bandwidth": 1 / 0.00101, "network": 250.0, "disk": 500.0}
    assert small.limit == "network" and small.rate == 250 and small.euros == pytest.approx(1e6 / 250 * 1e-3)
    large = scaling.cost(rule, time, 1e6, 1e6, machine)
    assert large.limit == "memory" and large.machines == 11 and large.rates["network"] == pytest.approx(11 * 250)
    assert large.helps == "rows on a disk, int4 rows, then shards"
    on_disk = scaling.cost(scaling.RULES["ACE, int8 on a disk"], time, 1e6, 1e6, machine)
    assert on_disk.memory == 12e6 + 1000 * 1.016e6 + 36e6 and on_disk.machines == 1
    assert on_disk.limit == "network" and on_disk.rates["disk"] == pytest.approx(2e9 / (4e6 + 2.25 * 1.016e6))
    full = scaling.cost(scaling.RULES["ACE, int8 on a disk"], time, 1e6, 1e8, machine)
    assert full.limit == "disk space" and full.machines == 11
    tiny = scaling.cost(rule, time, 100, 10, machine)
    assert (tiny.limit, tiny.helps) == ("memory bandwidth", "receive_many")


@pytest.mark.parametrize("load", [0.3, 0.7])
def test_the_queue_waits_as_long_as_queueing_theory_says(load):
    """One server, Poisson arrivals, constant service: a mean wait of load/(2*(1 - load)) services (Pollaczek)."""
    import ingest

    came = ingest.arrivals(200_000, load, 1, seed=3)
    done = ingest.model(came, [1.0], seed=4)
    waited = sum(end - begin - 1.0 for begin, end in zip(came, done, strict=True)) / len(came)
    assert waited == pytest.approx(load / (2 * (1 - load)), rel=0.05)


def test_bursts_come_together_at_the_same_rate():
    import ingest

    came = ingest.arrivals(80_000, 50.0, 8, seed=5)
    assert len(set(came)) == 10_000 and came[-1] == pytest.approx(80_000 / 50, rel=0.05)
    assert came == sorted(came)


def test_waiting_of_a_run():
    import ingest

    draw = random.Random(0)
    came = sorted(draw.uniform(0, 1) for _ in range(100))
    done = [at + 2.0 for at in came]  # all of them wait at once
    found = ingest.Waiting.of(came, done)
    assert found.queue == 100 and math.isclose(found.p50, 2.0) and math.isclose(found.p99, 2.0)
