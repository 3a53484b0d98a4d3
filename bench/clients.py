"""Arrivals per second against the number of clients, and what the server keeps for each of them, by format.

Every arrival is another client's, in a shuffled order, so each finds its row out of the caches as in a real server.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import machine
import peers.servers
import torch
import turns
from ours_cached import grid, whole
from problem import Problem
from records import Row

import fastagg

POPULATIONS = (10, 100, 1000)
FORMATS = {"fp32": 28, "bf16": 24, "int8": 22, "int4": 21}  # bytes per parameter and arrival: README.md
PEER = "torch eager, fp32 rows"
CANDIDATES = [*(f"fastagg, {format} rows" for format in FORMATS), PEER]
PERIOD = 10  # arrivals per sample
LR = 0.1


def arrivals(clients: int, size: int, rounds: int = 15) -> list[Row]:
    """ACE with every format, and the peer, for ``clients`` clients of ``size`` parameters each."""
    problem, update = Problem(size, lr=LR), grid(size, "int4")  # int4's levels: all formats hold them, or nearly
    order = random.Random(0).sample(range(clients), clients)
    runs: dict[str, Callable[[], object]] = {}
    skipped: dict[str, str] = {}
    kept: dict[str, float] = {}
    want: torch.Tensor | None = None
    for name in CANDIDATES:
        needs = clients * size * _row_bytes(name) + 12 * size
        if needs > 0.8 * machine.available_bytes():
            skipped[name] = f"needs {needs / 2**30:.0f} GiB, {machine.available_bytes() / 2**30:.0f} are free"
            continue
        receive, model, kept[name] = _ready(name, clients, size, problem)
        for client in order:  # every row is there, and written, before anything is timed
            receive(client, update)
        got = model()[: whole(size)].clone()
        want = got if want is None else want
        if not (got - want).norm() <= 0.02 * want.norm():
            raise AssertionError(f"{name}: its model differs from {CANDIDATES[0]}'s by more than 2%")
        runs[name] = _traffic(receive, order, update)
    leader = next(iter(runs))
    found: list[Row] = []
    by_bytes = {name: next((b for f, b in FORMATS.items() if f in name), 0) for name in runs}
    measured = turns.rows(
        "arrivals", runs, size, 0, rounds, period=PERIOD, leader=leader, clients=clients, per_client=kept,
        skipped=skipped,
    )  # fmt: skip
    for row in measured:
        if row.seconds is None:
            found.append(row)
            continue
        bytes_ = by_bytes[row.candidate]
        found.append(Row(**{**row.data(), "bytes": bytes_, "gbps": bytes_ * size / row.seconds[1] / 1e9}))
    return found


def _ready(
    name: str, clients: int, size: int, problem: Problem
) -> tuple[Callable[[int, Any], object], Callable[[], torch.Tensor], float]:
    """How to hand in an update, how to read the model, and bytes kept per client and parameter."""
    if name == PEER:
        x, rows = torch.zeros(size), torch.zeros(clients, size)
        return peers.servers.ace(x, rows, problem), lambda: x, rows.numel() * 4 / clients / size
    format = name.split()[1]
    server = fastagg.ACE(torch.zeros(size), lr=LR, num_clients=clients, cache=format)

    def receive(client: int, update: Any) -> None:
        server.dispatch(client)
        server.receive(client, update)

    cache = server._core.state.cache
    return receive, lambda: server.flat, cache.nbytes() / cache.slots / size


def _traffic(receive: Callable[[int, Any], object], order: list[int], update: torch.Tensor) -> Callable[[], None]:
    at = [0]

    def run() -> None:
        for _ in range(PERIOD):
            receive(order[at[0] % len(order)], update)
            at[0] += 1

    return run


def _row_bytes(name: str) -> float:
    sizes = {"fp32": 4.0, "bf16": 2.0, "int8": 1.02, "int4": 0.52}
    return next(size for format, size in sizes.items() if format in name)
