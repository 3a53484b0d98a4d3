"""A million clients cost what a hundred do: a few bytes each, and nothing at an arrival."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support import inside
from support.presets import update

import fastagg

pytestmark = [pytest.mark.kernel, pytest.mark.slow]

D, MILLION = 64, 10**6
Make = Callable[[int], fastagg.Server]


def of(name: str, **settings: Any) -> Make:
    return lambda n: getattr(fastagg, name)(torch.zeros(D), num_clients=n, **settings)


NUMBERED: dict[str, Make] = {
    "FedBuff": of("FedBuff", buffer_size=3),
    "FADAS": of("FADAS", lr=0.01, buffer_size=2),
    "FedAsync": of("FedAsync"),
    "AsyncFedED": of("AsyncFedED", lam=1.0, eps=1.0),
    "ASGD": of("ASGD", lr=0.1),
    "DelayAdaptiveASGD": of("DelayAdaptiveASGD", lr=0.1, delay_threshold=1, stale="scaled"),
    "FedAC": of("FedAC", lr=0.01, buffer_size=2),
    "ACE": of("ACE", lr=0.1, warmup="partial", cache="int8"),
    "ACE, by clients": of("ACE", lr=0.1, warmup="partial", mode="client"),
    "ACED": of("ACED", lr=0.1, warmup="partial", cache="int4", max_delay=50),
    "ACED, gradient": of("ACED", lr=0.1, warmup="partial", cache="int4", max_delay=50, freshness="gradient"),
    "CA2FL": of("CA2FL", buffer_size=4, cache="int4"),
}
OPEN: dict[str, Make] = {
    name: (lambda n, name=name, how=how: getattr(fastagg, name)(torch.zeros(D), **how))
    for name, how in {"FedBuff": {"buffer_size": 3}, "FedAsync": {}, "ASGD": {"lr": 0.1}}.items()
}
MOST_BYTES = 40  # of a client, in the ledger and the direction's state, beside its row
# Where clients are not numbered, the ledger keeps their ids, too: a number, or a name as an entry of a map. Here, each
# client has an open task, which takes 40.
MOST_BYTES_OPEN = {False: 64, True: 128}


def rows(server: fastagg.Server) -> int:
    cache = getattr(inside.direction(server), "cache", None)
    return 0 if cache is None else cache.nbytes()


@pytest.mark.parametrize("name", NUMBERED)
def test_numbered(name: str) -> None:
    """What an arrival costs, benchmarks measure."""
    server = NUMBERED[name](MILLION)
    held = []
    for first in (0, 2000):  # what a client is told about its steps gets its memory when the first is told
        for client in range(first, first + 2000):
            server.dispatch(client * 499 % MILLION)
            server.receive(client * 499 % MILLION, update(0, D))
        held.append(server.memory())
    assert held[0]["clients"] <= 12 * MILLION + 2**20
    assert held[0]["clients"] + held[0]["direction"] - rows(server) <= MOST_BYTES * MILLION
    assert all(held[1][part] - held[0][part] < 2**20 for part in ("clients", "direction"))


@pytest.mark.parametrize("text", [False, True])
@pytest.mark.parametrize("name", OPEN)
def test_who_is_known_is_found(name: str, text: bool) -> None:
    """Without a given number of clients, a hundred thousand come and each answers once."""
    server, given, count = OPEN[name](0), update(0, D), 100_000
    for number in range(count):
        server.dispatch(str(number) if text else number)
    assert inside.known(server) == count
    assert server.memory()["clients"] <= MOST_BYTES_OPEN[text] * count + 2**20
    for number in range(0, count, 50):
        assert server.receive(str(number) if text else number, given).client == (str(number) if text else number)
    assert server.version > 500
