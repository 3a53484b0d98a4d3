"""A whole arrival and its kernels alone: the same native calls on structs that are ready, on memory like a server's.

Where a client may hold the model, a step writes the next version beside it; the kernels alone write two vectors in
turn.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import arrival_rules
import torch
from arrival_rules import LR
from problem import Problem, huge
from torch import Tensor

import fastagg
from fastagg._build import native

Call = tuple[object, object]  # a direction and an optimizer
OWN_TIME = Callable[[], float]


@dataclass(frozen=True)
class Traffic:
    """One kind of arrival.

    Attributes:
        whole: one arrival at a server, task and all; gives its seconds.
        kernels: the native calls of one; gives their seconds.
        bytes: read and written per parameter by the kernels, by the table in README.md.
        clients: how many take turns.
    """

    whole: OWN_TIME
    kernels: OWN_TIME
    bytes: float
    clients: int = 1


def fill(size: int) -> Traffic:
    """FedBuff: an update joins a sum."""
    server = fastagg.FedBuff(torch.zeros(size), buffer_size=10**9)
    update = Problem(size).update
    acc, struct = _zeros(size), _struct(update)
    at = acc.data_ptr()

    def kernels() -> float:
        began = time.perf_counter()
        native.accumulate(struct, acc=at, weight=1.0, out=at)
        taken = time.perf_counter() - began
        _kept = acc, update  # their addresses are in the structs
        return taken

    return Traffic(_arrivals(server, update, 1), kernels, 12)


def flush(size: int) -> Traffic:
    """FedBuff: the last of a buffer steps along the mean, into a new version."""
    server = fastagg.FedBuff(torch.zeros(size), buffer_size=2)
    update = Problem(size).update
    one, acc = _arrivals(server, update, 1), _zeros(size)
    along = native.Direction.flush(buffer=native.Buffer(acc=acc.data_ptr(), scale=0.5))

    def whole() -> float:
        one()  # joins the sum
        return one()

    return Traffic(whole, _steps(update, [along], 1.0, (acc,)), 16)


def asgd(size: int) -> Traffic:
    """ASGD: a step into a new version."""
    update = Problem(size).update
    along = native.Direction.single(gain=-1.0)
    server = arrival_rules.asgd(size)
    return Traffic(_arrivals(server, update, 1), _steps(update, [along], LR), 12)


def ace(size: int, format: str, bytes_: float) -> Traffic:
    """ACE: a row is exchanged, the sum follows, the model steps along the mean into a new version."""
    clients, update = arrival_rules.heard(size), Problem(size).update
    server = arrival_rules.ace(format)(size)
    cache, total = fastagg.ClientCache(size, clients, format), _zeros(size)
    cache.data.zero_()
    cache.scales.zero_()
    sum = native.Sum(values=total.data_ptr(), scale=-1.0 / clients)
    along = [
        native.Direction.mean(
            row=native.Exchange(
                key=native.RandomKey(seed=0, step=client, client=client), rows=cache.native, read=client, write=client
            ),
            sum=sum,
        )
        for client in range(clients)
    ]
    return Traffic(
        _arrivals(server, update, clients), _steps(update, along, LR, (cache, total)), bytes_, clients
    )  # fmt: skip


ARRIVALS: dict[str, Callable[[int], Traffic]] = {
    "FedBuff, an update joins the sum": fill,
    "FedBuff, the last of a buffer": flush,
    "ASGD, into a new version": asgd,
    "ACE fp32": lambda size: ace(size, "fp32", 28),
    "ACE int8": lambda size: ace(size, "int8", 22),
}


def _zeros(size: int) -> Tensor:
    return huge(size).zero_()


def _struct(update: Tensor) -> object:
    return native.Update([(update.data_ptr(), update.numel(), 0)])


def _arrivals(server: fastagg.Server, update: Tensor, clients: int) -> OWN_TIME:
    turn = 0

    def whole() -> float:
        nonlocal turn
        client, turn = turn % clients, turn + 1
        began = time.perf_counter()
        task = server.dispatch(client)
        server.receive(client, update)
        taken = time.perf_counter() - began
        del task
        return taken

    return whole


def _steps(update: Tensor, directions: list[object], lr: float, held: tuple[object, ...] = ()) -> OWN_TIME:
    """SGD along one direction after the other, from one vector into another and back."""
    x, aside = _zeros(update.numel()), _zeros(update.numel())
    hyper, moments = native.Hyper(lr=lr), native.Moments()
    sgd = [
        native.Optimizer(kind="sgd", hyper=hyper, moments=moments, x=here.data_ptr(), x_out=there.data_ptr())
        for here, there in ((x, aside), (aside, x))
    ]
    struct, turn = _struct(update), 0

    def kernels() -> float:
        nonlocal turn
        along, optimizer = directions[turn % len(directions)], sgd[turn % 2]
        turn += 1
        began = time.perf_counter()
        native.step(struct, along, optimizer)
        taken = time.perf_counter() - began
        _kept = x, aside, update, held  # their addresses are in the structs
        return taken

    return kernels
