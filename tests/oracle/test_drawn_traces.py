"""The traces draw what they promise."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, find, given, settings
from hypothesis import strategies as st
from support.oracle import ASGD, FedBuff
from support.properties import examples
from support.traces import SHAPES, SIZES, Case, Return, Updates, cases, drive, traces, update_vector


@examples(50)
@given(st.data(), st.integers(1, 5))
def test_all_heard_begins_with_every_client_once(data: Any, n: int) -> None:
    trace = data.draw(traces(n, all_heard=True))
    assert sorted(e.client for e in trace[:n]) == sorted(e.client for e in trace[n : 2 * n]) == list(range(n))
    assert all(isinstance(e, Return) for e in trace[n : 2 * n])


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
