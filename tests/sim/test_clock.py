import math
import random
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastagg.errors import ConfigError, DataError
from fastagg.sim.clock.sampling import AvailabilitySampling, read_traces
from fastagg.sim.clock.schedule import VirtualClock
from fastagg.sim.runs.passed import configured
from fastagg.sim.runs.run import run
from fastagg.sim.runs.simulation import Simulation
from fastagg.sim.seeds import below, generator, integer, permutations, uniform, words


def drain(clock: VirtualClock) -> list:
    return [(clock.next(), clock.now) for _ in range(len(clock))]


@given(st.lists(st.integers(0, 3), max_size=40))
def test_events_come_in_the_order_of_their_times_and_of_scheduling(delays):
    clock = VirtualClock()
    for number, delay in enumerate(delays):
        clock.schedule(float(delay), {number})  # which cannot be compared
    expected = sorted(range(len(delays)), key=lambda number: delays[number])  # sorted() is stable
    assert clock.in_flight() == [{number} for number in expected] and clock.now == 0.0
    assert not delays or clock.next_time() == min(delays)
    assert drain(clock) == [({number}, float(delays[number])) for number in expected]
    assert clock.schedule(1.5, "later") == clock.now + 1.5


@pytest.mark.parametrize("delay", [-1e-9, math.nan, math.inf])
def test_an_impossible_delay_is_refused_and_an_empty_clock_has_no_next_event(delay):
    clock = VirtualClock()
    with pytest.raises(ValueError, match="delay"):
        clock.schedule(delay, "x")
    with pytest.raises(IndexError):
        clock.next()


def test_single_draws_are_those_of_a_fresh_generator():
    draw = random.Random(0)
    for _ in range(2000):
        key = (draw.randrange(2**31), "stream", draw.randrange(10**6), draw.randrange(10**6))
        assert uniform(*key) == generator(*key).random()
        count = draw.choice([1, 2, 3, 50, 2**31 - 1, 3 * 2**30, 2**32 - 1, draw.randrange(1, 2**32)])
        assert below(count, *key) == generator(*key).integers(count)
        assert integer(*key) == generator(*key).integers(2**31 - 1)


@pytest.mark.parametrize("size", [0, 1, 2, 3, 29, 50, 1000, 70_001])
def test_permutations_are_those_of_a_generator(size):
    for number in range(20):
        numpy = generator(5, "batches", number, size)
        expected = np.concatenate([numpy.permutation(size) for _ in range(3)])
        assert permutations(3, size, words(5, "batches", number, size)).tolist() == expected.tolist()


@pytest.mark.parametrize("other", [(1, "a", 2), (0, "b", 2), (0, "a", 3), (0, "a", 2, 0)])
def test_seed_stream_and_key_all_count(other):
    assert uniform(0, "a", 2) != uniform(*other)


@pytest.mark.parametrize("period", [None, 10.0, 12.5])
def test_availability_is_that_of_the_trace_at_every_time(period):
    rng = np.random.default_rng(0)
    drawn = rng.integers(0, 7, (6, 3)), rng.integers(1, 4, (6, 3))
    traces = [list(zip(begins, begins + lengths, strict=True)) for begins, lengths in zip(*drawn, strict=True)]
    rule = AvailabilitySampling(0, traces, period)

    def there(client, at):
        at = at if period is None else at % period
        return any(begin <= at < end for begin, end in traces[client])

    for client in range(6):
        for now in np.arange(0, 40, 0.25):
            opens = rule.opens(client, now)
            waits = np.arange(now, min(opens, 60), 0.25)
            assert not any(there(client, at) for at in waits) and (opens == math.inf or there(client, opens))
            assert (opens == now) == there(client, now)


@pytest.mark.parametrize("period", [24.0, 0.7, 86.4, 10.0])
def test_a_time_that_a_decimal_trace_opens_is_open(period):
    """The end of a wait is a rounded sum; a client that is there then may be drawn then."""
    cuts = [period * share for share in (0.1, 0.3, 0.7, 0.9)]
    rule = AvailabilitySampling(
        0, [[(cuts[0], cuts[1]), (cuts[2], cuts[3])], [(0.0, cuts[1])], [(cuts[2], period)]], period
    )
    rng, now = np.random.default_rng(0), 0.0
    for step in range(3000):
        opens = [rule.opens(client, now) for client in range(3)]
        assert all(now <= at == rule.opens(client, at) for client, at in enumerate(opens))
        now = opens[step % 3] if step % 2 else now + period * float(rng.random()) / 3


ROUND = {"algorithm": {"name": "FedAvg", "clients_per_round": 2}}


def changes_of(rule, folder, period=10.0):
    """Changes to four clients whose times are in a file, each task of which takes 1.0."""
    traces = {0: [(0, 3)], 1: [(2, 6)], 2: [(0, 1), (5, 9)], 3: [(4, 10)]}
    lines = [f"{client},{begin},{end}" for client, own in traces.items() for begin, end in own]
    (folder / "there.csv").write_text("\n".join(["client,begin,end", *lines]))
    how = {"rule": rule, "sampling": "availability", "file": str(folder / "there.csv")}
    how |= {"concurrency": 2} if rule == "concurrency" else {}
    how |= {"period": period} if period else {}
    return traces, {"data.clients": 4, "participation": how, **(ROUND if rule == "round" else {})}


@pytest.mark.parametrize("rule", ["concurrency", "all", "round"])
def test_nobody_is_sent_the_model_when_the_trace_says_no(rule, tmp_path, tiny):
    traces, changes = changes_of(rule, tmp_path)
    config = given_law(tiny, changes)
    simulation = Simulation(config)
    seen, training = Counter(), Counter()
    for _ in range(60):
        job = simulation.schedule.next()
        sent = (simulation.schedule.now - 1.0) % 10.0
        assert any(begin <= round(sent, 9) < end for begin, end in traces[job.client]), (job.client, sent)
        seen[job.client] += 1
        simulation.server.receive(job.client, job.task.flat * 0, version=job.task.version, num_samples=1)
        simulation.schedule.arrived(job)
        training[len(simulation.schedule.in_flight())] += 1
    assert len(seen) == 4 and max(training) <= (4 if rule == "all" else 2)


def given_law(tiny, changes):
    return configured(tiny(changes), {"delay": lambda client, number, steps, rng: 1.0})


@pytest.mark.parametrize(("rule", "words"), [("concurrency", "no client is available"), ("round", "never available")])
def test_a_trace_that_ends_ends_the_run_by_name(rule, words, tmp_path, tiny):
    config = given_law(tiny, changes_of(rule, tmp_path, None)[1])
    with pytest.raises(ConfigError, match=words):
        run(config)


def test_traces_that_are_none_are_refused_with_their_line(tmp_path):
    path = tmp_path / "t.csv"
    for text, told in (
        ("0,1,2\n0,3,2\n", "line 2: expected client,begin,end"), ("0,1\n", "line 1"), ("0,-1,2\n", "line 1"),
        ("0,0,11\n", "at most participation.period, 10"), ("0,0,nan\n", "line 1"), ("", "got none"),
    ):  # fmt: skip
        path.write_text(text)
        with pytest.raises(DataError, match=told):
            read_traces(path, 3, 0, 10.0)
    with pytest.raises(DataError, match=r"cannot read .*absent.csv"):
        read_traces(tmp_path / "absent.csv", 3, 0, None)
