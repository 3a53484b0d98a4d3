"""Rules with client caches against the independent transcription, and the equivalences between them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import inside, oracle
from support.properties import examples
from support.traces import Case, Updates, cases, drive
from test_traces import OPTIMIZERS, POLICIES, agree

import fastagg

pytestmark = pytest.mark.kernel

SHAPES = ("normal", "sparse", "zero")
LR = 0.1
common = st.fixed_dictionaries(
    {}, optional={"clip_norm": st.sampled_from([0.5, 3.0]), "weighting": st.sampled_from(["uniform", "samples"])}
)
warmups = st.sampled_from(["full", "partial"])


@given(case=cases(), common=common, warmup=warmups, mode=st.sampled_from(["incremental", "direct"]))
def test_ace(case: Case, common: dict[str, Any], warmup: str, mode: str) -> None:
    n = case.num_clients
    agree(
        fastagg.ACE(case.x0, lr=LR, num_clients=n, warmup=warmup, mode=mode, **common),
        oracle.ACE(case.x0, lr=LR, num_clients=n, warmup=warmup, **common),
        case,
        SHAPES,
    )


@given(case=cases(), warmup=warmups)
def test_ace_with_client_caches_is_ace(case: Case, warmup: str) -> None:
    n = case.num_clients
    ours = fastagg.ACE(case.x0, lr=LR, num_clients=n, warmup=warmup, mode="client")
    clients = [fastagg.clients.GradientDifference() for _ in range(n)]
    plain = Updates(case.size, SHAPES, torch.from_numpy)
    got = drive(ours, case.trace, lambda e: clients[e.client].difference(plain(e)), snapshot=lambda s: s.flat.clone())
    theirs = oracle.ACE(case.x0, lr=LR, num_clients=n, warmup=warmup)
    want = drive(theirs, case.trace, Updates(case.size, SHAPES), snapshot=lambda s: s.x.copy())
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a.x, b.x, rtol=1e-5, atol=2e-5 * (1 + np.abs(b.x).max()))


@given(
    case=cases(max_length=60),
    common=common,
    warmup=warmups,
    max_delay=st.integers(0, 6),
    freshness=st.sampled_from(["dispatch", "gradient"]),
)
@examples(300)
def test_aced(case: Case, common: dict[str, Any], warmup: str, max_delay: int, freshness: str) -> None:
    how = {"lr": LR, "num_clients": case.num_clients, "max_delay": max_delay, "freshness": freshness, "warmup": warmup}
    agree(fastagg.ACED(case.x0, **how, **common), oracle.ACED(case.x0, **how, **common), case, SHAPES)


@given(case=cases(), cache=st.sampled_from(["fp32", "bf16", "int8", "int4"]), warmup=warmups)
def test_aced_with_a_large_bound_is_ace_to_the_bit(case: Case, cache: str, warmup: str) -> None:
    how = {"lr": LR, "num_clients": case.num_clients, "cache": cache, "warmup": warmup}
    servers = [fastagg.ACED(case.x0, max_delay=10**6, **how), fastagg.ACE(case.x0, **how)]
    runs = [drive(s, case.trace, Updates(case.size), snapshot=lambda s: s.flat.clone()) for s in servers]
    assert all(torch.equal(a.x, b.x) for a, b in zip(*runs, strict=True))


@given(case=cases(max_length=60), common=common, m=st.integers(1, 4), repeat=st.sampled_from(["start", "latest"]))
@examples(200)
def test_ca2fl(case: Case, common: dict[str, Any], m: int, repeat: str) -> None:
    how = {"lr": 0.5, "num_clients": case.num_clients, "buffer_size": m, "repeat": repeat}
    agree(fastagg.CA2FL(case.x0, **how, **common), oracle.CA2FL(case.x0, **how, **common), case, SHAPES)


@given(case=cases(min_clients=4), m=st.integers(1, 4))
def test_ca2fl_before_any_repeat_is_fedbuff(case: Case, m: int) -> None:
    seen: set[int] = set()
    trace = []
    for event in case.trace:  # every client answers once
        if hasattr(event, "seed"):
            if event.client in seen or len(seen) == m:
                continue
            seen.add(event.client)
        trace.append(event)
    runs = []
    for server in (
        fastagg.CA2FL(case.x0, num_clients=case.num_clients, buffer_size=m, lr=0.5),
        fastagg.FedBuff(case.x0, buffer_size=m, lr=0.5),
    ):
        drive(server, trace, Updates(case.size, SHAPES))
        runs.append(server.flat)
    torch.testing.assert_close(runs[0], runs[1], rtol=1e-6, atol=1e-6)


DIRECTIONS = {
    "all": (lambda n: fastagg.AllClients(n), lambda n: oracle.AllClients(n)),
    "active": (lambda n: fastagg.ActiveSet(n, max_delay=2), lambda n: oracle.ActiveSet(n, 2)),
    "calibrated": (lambda n: fastagg.Calibrated(n, 3), lambda n: oracle.Calibrated(n, 3)),
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("policy", POLICIES)
@given(case=cases(max_length=20, size=st.sampled_from([1, 17, 1025])))
@examples(15)
def test_any_cached_direction_with_any_optimizer_and_any_policy(
    optimizer: str, direction: str, policy: str, case: Case
) -> None:
    ours, theirs = DIRECTIONS[direction]
    kind = "delta" if direction == "calibrated" else "gradient"
    n = case.num_clients
    agree(
        fastagg.Server(case.x0, ours(n), OPTIMIZERS[optimizer][0](), POLICIES[policy][0]()),
        oracle.Composed(case.x0, theirs(n), OPTIMIZERS[optimizer][1](), POLICIES[policy][1](), kind=kind),
        case,
        SHAPES,
    )


BUILDS: dict[str, Any] = {
    "ace": lambda c, x, **k: fastagg.ACE(x, lr=LR, num_clients=c.num_clients, **k),
    "aced": lambda c, x, **k: fastagg.ACED(x, lr=LR, num_clients=c.num_clients, max_delay=2, **k),
    "ca2fl": lambda c, x, **k: fastagg.CA2FL(x, lr=0.5, num_clients=c.num_clients, buffer_size=2, **k),
}


@pytest.mark.parametrize("format", ["bf16", "int8", "int4"])
@pytest.mark.parametrize("rule", BUILDS)
@given(case=cases(max_length=25, size=st.sampled_from([5, 300])))
@examples(25)
def test_a_small_cache_is_the_fp32_rule_on_what_is_stored(rule: str, format: str, case: Case) -> None:
    """The oracle, given rows rounded exactly as the package stores them, makes the same steps."""
    ours = BUILDS[rule](case, case.x0, cache=format, seed=3)
    arrivals = [0]

    def stored(client: int, row: Any) -> Any:
        values = torch.from_numpy(np.asarray(row, dtype=np.float32))
        bits = fastagg.reference.random_bits(3, arrivals[0], client, len(row))
        arrivals[0] += 1
        data, scales = fastagg.reference.encode(values, bits, format)
        return fastagg.reference.decode(data, scales, format, len(row)).double().numpy()

    n = case.num_clients
    theirs = {
        "ace": lambda: oracle.ACE(case.x0, lr=LR, num_clients=n, store=stored),
        "aced": lambda: oracle.ACED(case.x0, lr=LR, num_clients=n, max_delay=2, store=stored),
        "ca2fl": lambda: oracle.CA2FL(case.x0, lr=0.5, num_clients=n, buffer_size=2, store=stored),
    }[rule]()
    agree(ours, theirs, case, SHAPES)


@pytest.mark.parametrize("format", ["bf16", "int8", "int4"])
def test_small_caches_equal_fp32_in_expectation(format: str) -> None:
    size, n, seeds = 400, 4, 300
    gradients = torch.from_numpy(np.random.default_rng(0).standard_normal((8, size)).astype(np.float32))

    def run(cache: str, seed: int) -> torch.Tensor:
        server = fastagg.ACE(torch.zeros(size), lr=LR, num_clients=n, cache=cache, seed=seed)
        for turn, gradient in enumerate(gradients):
            server.dispatch(turn % n)
            server.receive(turn % n, gradient)
        return server.flat.double()

    exact = run("fp32", 0)
    runs = torch.stack([run(format, seed) - exact for seed in range(seeds)])
    score = runs.mean(0) / (runs.std(0) + 1e-9) * seeds**0.5
    assert float(score.abs().max()) < 6
    assert abs(float(score.mean())) < 5 / size**0.5
    # Each step's mean is off by at most a scale, 1/n of it for each row.
    bound = {"bf16": 2**-7, "int8": 1 / 127, "int4": 1 / 7}[format] * float(gradients.abs().max())
    assert float(runs.abs().max()) <= LR * 5 * bound


@given(case=cases(max_length=30), cut=st.integers(0, 60), rule=st.sampled_from(list(BUILDS)))
def test_resuming_is_never_having_stopped(case: Case, cut: int, rule: str) -> None:
    from test_traces import Resuming

    def build() -> fastagg.Server:
        return BUILDS[rule](case, case.x0, cache="int8", seed=5)

    whole = build()
    drive(whole, case.trace, Updates(case.size))
    resuming = Resuming(build(), build, cut)
    drive(resuming, case.trace, Updates(case.size))
    assert torch.equal(resuming.server.flat, whole.flat)
    assert resuming.server.version == whole.version


@pytest.mark.slow
@pytest.mark.parametrize("format", ["fp32", "int8"])
@pytest.mark.parametrize("bias", [0.0, 1.0])
def test_the_mean_does_not_drift_in_a_million_arrivals(format: str, bias: float) -> None:
    """With bias the rows agree, so that the sum is n times a row and a plain fp32 sum would lose tens of ulp."""
    size, n, arrivals = 4, 100, 1_000_000
    server = fastagg.ACE(torch.zeros(size), lr=0.0, num_clients=n, cache=format, warmup="partial", seed=1)
    rng = np.random.default_rng(0)
    pool = [torch.from_numpy((rng.standard_normal(size) * 0.1 + bias).astype(np.float32)) for _ in range(997)]
    for i in range(arrivals):
        client = i * 7919 % n
        server.dispatch(client)
        server.receive(client, pool[i % 997])
    state = inside.direction(server)
    rows = torch.stack([state.cache.row(slot) for slot in range(n)])
    exact = rows.double().mean(0)
    largest = float(rows.abs().max())
    error = (state.sum.double() / n - exact).abs().max()
    # Added up again every 400 arrivals, and off by up to half an ulp of the sum at each of those since.
    assert float(error) <= 12 * float(np.spacing(np.float32(largest)))
