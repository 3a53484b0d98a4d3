"""`Server.receive` end to end, per arrival: dispatch, checks, inspection, the fused step, the receipt.

The peer is the same algorithm in eager torch; `the kernels alone` is what ops costs without a server around it, so
the difference to `fastagg` is the server's own overhead.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import peers.servers
import torch
import turns
from problem import Problem, huge, resnet18_shapes
from records import Row
from suite import OURS

import fastagg
from fastagg import ops

Run = Callable[[], object]

CANDIDATES = {
    OURS: "flat torch tensors",
    "fastagg, list of arrays": "62 NumPy arrays, shaped like ResNet-18's",
    "torch eager, flat": "no versions, no locks, no checks of names",
    "the kernels alone": "ops without a server",
}


@dataclass(frozen=True)
class Arrival:
    """One algorithm's traffic.

    Attributes:
        make: the server for these parameters.
        bytes: read and written per parameter and arrival, on average over a round of ``period`` arrivals.
        period: arrivals per run that is timed.
        peer: the same in eager torch.
        kernels: the kernel calls of one round, or None.
    """

    name: str
    make: Callable[[Any, Problem], fastagg.Server]
    bytes: float
    period: int
    peer: Callable[[torch.Tensor, Problem], peers.servers.Receive]
    kernels: Callable[[Problem], Run]


def _fadas_kernels(problem: Problem) -> Run:
    x, m, v, vhat, acc = (huge(problem.size).zero_() for _ in range(5))
    aside = huge(problem.size).zero_()

    def run() -> None:
        for arrival in range(problem.buffer_size):
            ops.inspect(problem.update)
            if arrival < problem.buffer_size - 1:
                ops.accumulate_(acc, problem.update, fresh=arrival == 0)
        ops.step_(
            x, problem.update, optimizer="amsgrad", lr=problem.lr, m=m, v=v, vhat=vhat, acc=acc,
            scale=1.0 / problem.buffer_size, out=aside,
        )  # fmt: skip

    return run


def _fedbuff_kernels(problem: Problem) -> Run:
    x, acc, aside = (huge(problem.size).zero_() for _ in range(3))

    def run() -> None:
        for arrival in range(problem.buffer_size):
            ops.inspect(problem.update)
            if arrival < problem.buffer_size - 1:
                ops.accumulate_(acc, problem.update, fresh=arrival == 0)
        ops.step_(x, problem.update, optimizer="sgd", lr=1.0, acc=acc, scale=1.0 / problem.buffer_size, out=aside)

    return run


def _fedasync_kernels(problem: Problem) -> Run:
    x, base, aside = (huge(problem.size).zero_() for _ in range(3))

    def run() -> None:
        ops.inspect(problem.update)
        ops.step_(x, problem.update, optimizer="sgd", lr=0.6, base=base, out=aside)

    return run


_M = Problem(0).buffer_size
ARRIVALS = [
    Arrival(
        "FADAS",
        lambda params, p: fastagg.FADAS(params, lr=p.lr, buffer_size=_M, bias_correction=True),
        # inspected 4 each; the first is written 8, the others are added 12, the last goes into the flush 40
        4 + (8 + 12 * (_M - 2) + 40) / _M,
        _M,
        peers.servers.fadas,
        _fadas_kernels,
    ),
    Arrival(
        "FedBuff",
        lambda params, p: fastagg.FedBuff(params, lr=1.0, buffer_size=_M),
        4 + (8 + 12 * (_M - 2) + 16) / _M,
        _M,
        peers.servers.fedbuff,
        _fedbuff_kernels,
    ),
    Arrival(
        "FedAsync",
        lambda params, p: fastagg.FedAsync(params, alpha=0.6, policy="constant"),
        4 + 16,  # the client's base version is read as well: it sends a delta
        1,
        peers.servers.fedasync,
        _fedasync_kernels,
    ),
]  # fmt: skip


def arrivals(arrival: Arrival, size: int, rounds: int = 15) -> list[Row]:
    """Every form of update and the peer, interleaved; results are compared first."""
    problem = Problem(size)
    flat = arrival.make(torch.zeros(size), problem)
    x = torch.zeros(size)
    peer = arrival.peer(x, problem)
    runs: dict[str, Run] = {
        OURS: _turns(flat, problem.update, arrival.period),
        "torch eager, flat": lambda: [peer(problem.update) for _ in range(arrival.period)],
        "the kernels alone": arrival.kernels(problem),
    }
    if layered := _layered(arrival, problem):
        runs["fastagg, list of arrays"] = layered
    for run in runs.values():
        run()
    expected, got = x, flat.flat
    if not torch.allclose(got, expected, rtol=1e-4, atol=1e-6):
        raise AssertionError(f"{arrival.name}: fastagg's model and the peer's differ by {(got - expected).abs().max()}")
    return turns.rows(
        f"receive {arrival.name}", runs, size, arrival.bytes, rounds, period=arrival.period, notes=CANDIDATES
    )


def _layered(arrival: Arrival, problem: Problem) -> Run | None:
    """The same updates as a list of NumPy arrays, as frameworks carry them."""
    pieces = [piece.numpy() for piece in problem.layers(problem.update)]
    if len(pieces) == 1:
        return None
    shapes = resnet18_shapes()
    if sum(piece.size for piece in pieces) == sum(torch.Size(shape).numel() for shape in shapes):
        pieces = [piece.reshape(shape) for piece, shape in zip(pieces, shapes, strict=True)]
    server = arrival.make([torch.zeros(piece.shape) for piece in pieces], problem)
    return _turns(server, pieces, arrival.period)


def _turns(server: fastagg.Server, update: Any, period: int) -> Run:
    def run() -> None:
        for client in range(period):
            server.dispatch(client)
            server.receive(client, update)

    return run
