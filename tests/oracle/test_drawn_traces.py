"""The traces draw what they promise, and the driver sends only what is owed."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, find, given, settings
from hypothesis import strategies as st
from support.oracle import ASGD, FedAvg, FedBuff
from support.properties import examples
from support.traces import (
    SHAPES,
    SIZES,
    Case,
    Return,
    Send,
    Updates,
    cases,
    drive,
    synchronous_cases,
    traces,
    update_vector,
)


class Strict:
    """A server that only checks the driver: an update must be owed, an explicit version must be right."""

    def __init__(self, every: int) -> None:
        self.every, self.t, self.arrivals = every, 0, 0
        self.owed: set[tuple[int, int]] = set()
        self.last: dict[int, int] = {}

    def dispatch(self, client: int) -> Any:
        self.owed.add((client, self.t))
        self.last[client] = self.t
        return {"version": self.t, "local_steps": 7}

    def receive(self, client: int, update: Any, version: int | None = None, num_samples: int = 0) -> Any:
        self.owed.remove((client, self.last[client] if version is None else version))
        self.arrivals += 1
        self.t += self.arrivals % self.every == 0
        return {"applied": True, "version": self.t, "delay": 0, "step_size": 1.0}


@examples(100)
@given(cases(size=st.just(1)), st.integers(1, 3))
def test_the_driver_sends_only_what_is_owed(case: Case, every: int) -> None:
    records = drive(Strict(every), case.trace, Updates(1))
    assert all(r.local_steps == 7 for r in records if isinstance(r.event, Send))
    assert sum(isinstance(r.event, Send) for r in records) == sum(isinstance(e, Send) for e in case.trace)


@examples(50)
@given(st.data(), st.integers(1, 5))
def test_all_heard_begins_with_every_client_once(data: Any, n: int) -> None:
    trace = data.draw(traces(n, all_heard=True))
    assert sorted(e.client for e in trace[:n]) == sorted(e.client for e in trace[n : 2 * n]) == list(range(n))
    assert all(isinstance(e, Return) for e in trace[n : 2 * n])


@examples(50)
@given(synchronous_cases(size=st.just(2)))
def test_synchronous_traces_have_no_delay(drawn: tuple[Case, int]) -> None:
    case, m = drawn
    records = drive(FedAvg(case.x0, m), case.trace, Updates(2))
    arrivals = [r for r in records if isinstance(r.event, Return)]
    assert [r.applied for r in arrivals] == [(k + 1) % m == 0 for k in range(len(arrivals))]
    assert len(records) == len(case.trace) and all(r.delay == 0 for r in arrivals)


@pytest.mark.parametrize("want", ["stale", "repeat in a buffer", "two versions owed", "half full at the end"])
def test_interesting_traces_are_found(want: str) -> None:
    def interesting(case: Case) -> bool:
        server = ASGD(case.x0, 1.0) if want in ("stale", "two versions owed") else FedBuff(case.x0, 1.0, 3)
        records = drive(server, case.trace, Updates(1))
        arrivals = [r for r in records if isinstance(r.event, Return)]
        if want == "stale":
            return any((r.delay or 0) >= 3 for r in arrivals)
        if want == "two versions owed":
            return len({v for c, v in server.outstanding if c == 0}) >= 2
        if want == "half full at the end":
            return len(arrivals) > 3 and len(arrivals) % 3 == 2
        return any(a.event.client == b.event.client and not a.applied for a, b in pairwise(arrivals))

    find(
        cases(size=st.just(1)),
        interesting,
        settings=settings(
            max_examples=2000, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck)
        ),
    )


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("size", [0, *SIZES])
def test_update_vectors(shape: str, size: int) -> None:
    u = update_vector(5, size, (shape,))
    assert u.dtype == np.float32 and u.shape == (size,)
    assert np.array_equal(u, update_vector(5, size, (shape,)))
    assert np.all(np.isfinite(u)) and np.all(np.abs(u) <= 1e3)
    tiny = np.finfo(np.float32).tiny
    if size >= 41:
        assert (shape != "zero") == bool(u.any())
        assert (shape == "tiny") == bool(np.all((u != 0) & (np.abs(u) < tiny)))
        assert np.any(u == 0) == (shape in ("wide", "sparse", "zero"))
    if size >= 1023 and shape == "wide":
        small = np.abs(u[u != 0])
        assert small.min() < tiny and small.max() > 100
    if size >= 1023 and shape == "sparse":
        assert 0.4 < np.mean(u == 0) < 0.6
