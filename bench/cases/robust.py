"""Combining updates some of which may lie: the rule alone on rows in memory, beside NumPy, torch and the frameworks'
own functions; and whole rounds of ten arrivals."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial

import numpy as np
import torch
from problem import Built, Candidate, Case, Problem, Skip
from torch import Tensor

import fastagg
from cases.arrival import arrival, in_turn

SIZES = (2_000_000, 11_000_000)
ROUND, TRIM = 10, 0.2


@cache
def _rows(count: int, size: int) -> Tensor:
    """All candidates read the same rows, [count, size]."""
    return torch.randn(count, size, generator=torch.Generator().manual_seed(0)).mul_(1e-2)


def _byzfl(name: str, *settings: object) -> Callable[[Tensor], Tensor]:
    try:
        import byzfl
    except ImportError:
        raise Skip("needs byzfl") from None
    return getattr(byzfl, name)(*settings)  # type: ignore[no-any-return]


def _flower_krum(rows: Tensor, f: int) -> Tensor:
    try:
        from flwr.server.strategy.aggregate import aggregate_krum
    except ImportError:
        raise Skip("needs flwr") from None
    return torch.as_tensor(aggregate_krum([([row.numpy()], 1) for row in rows], f, 0)[0])


def _ours(problem: Problem, count: int, rule: str, **settings: float) -> Built:
    rows, out = list(_rows(count, problem.size)), torch.zeros(problem.size)
    return Built(lambda: fastagg.ops.combine(rows, rule, out=out, **settings), lambda: out)


def _theirs(problem: Problem, count: int, function: Callable[[Tensor], Tensor]) -> Built:
    rows, out = _rows(count, problem.size), [torch.zeros(1)]

    def run() -> None:
        out[0] = function(rows)

    run()
    return Built(run, lambda: out[0])


def _floor(problem: Problem, count: int, function: Callable[[Tensor], object]) -> Built:
    rows = _rows(count, problem.size)
    return Built(lambda: function(rows), None)


def _read(rows: Tensor) -> object:
    return fastagg.ops.inspect(rows.view(-1))


def _middle(ordered: Tensor) -> Tensor:
    n = len(ordered)
    return (ordered[(n - 1) // 2] + ordered[n // 2]) / 2


def _trimmed(ordered: Tensor) -> Tensor:
    cut = int(TRIM * len(ordered))
    return ordered[cut : len(ordered) - cut].mean(0)


def _by_element(count: int, rule: str) -> list[Candidate]:
    settings = {"trim": TRIM} if rule == "trimmed" else {}
    of_sorted = _trimmed if rule == "trimmed" else _middle

    def numpy(rows: Tensor) -> Tensor:
        if rule == "median":
            return torch.as_tensor(np.median(rows.numpy(), axis=0))
        cut = int(TRIM * count)
        return _trimmed(torch.as_tensor(np.partition(rows.numpy(), (cut, count - cut - 1), axis=0)))

    named = _byzfl_later("Median") if rule == "median" else _byzfl_later("TrMean", int(TRIM * count))
    theirs = {"NumPy": numpy, "torch sort": lambda rows: of_sorted(rows.sort(0)[0]), "byzfl": named}
    return [
        Candidate("fastagg", partial(_ours, count=count, rule=rule, **settings), count + 1),
        Candidate("reading the rows", partial(_floor, count=count, function=_read), 0),
        *(Candidate(name, partial(_theirs, count=count, function=one), 4 * count) for name, one in theirs.items()),
    ]


def _byzfl_later(name: str, *settings: object) -> Callable[[Tensor], Tensor]:
    return lambda rows: _byzfl(name, *settings)(rows)


def _krum(count: int) -> list[Candidate]:
    f = (count - 3) // 2
    return [
        Candidate("fastagg", partial(_ours, count=count, rule="krum", f=f), count + 1),
        Candidate("torch's U @ U.T alone", partial(_floor, count=count, function=lambda rows: rows @ rows.T), 0),
        # byzfl keeps n - f + 1 neighbours, itself among them
        Candidate("byzfl", partial(_theirs, count=count, function=_byzfl_later("Krum", f + 1)), count),
        Candidate("Flower", partial(_theirs, count=count, function=partial(_flower_krum, f=f)), 3 * count),
    ]


def _round(problem: Problem) -> Built:
    update, direction = problem.update, fastagg.Robust("median", size=ROUND)
    server = fastagg.Server(problem.zeros(), direction, fastagg.SGD(1.0))
    return Built(in_turn(arrival(server, update), ROUND, ROUND), lambda: server.flat)


def _torch_round(problem: Problem) -> Built:
    update, model = problem.update, problem.zeros()
    rows = torch.empty(ROUND, problem.size, device=problem.device)

    def one(k: int) -> None:
        rows[k].copy_(update)
        if not bool(torch.isfinite(rows[k].dot(rows[k]))):
            raise ValueError("not finite")
        if k == ROUND - 1:
            model.add_(_middle(rows.sort(0)[0]))

    return Built(in_turn(one, ROUND, ROUND), lambda: model)


CASES = [
    *(Case(f"{rule} of {count}", 4 * count + 4, partial(_by_element, count, rule), "kernel",
           SIZES if count == ROUND else SIZES[:1], devices=("cpu",))
      for rule, count in (("median", 10), ("trimmed", 10), ("median", 50))),
    *(Case(f"krum of {count}", 4 * count, partial(_krum, count), "kernel", SIZES[:1], devices=("cpu",))
      for count in (10, 50)),
    Case("robust round", 0, lambda: [
        Candidate("fastagg", _round, ROUND + 5),
        Candidate("torch sort", _torch_round, 4 * ROUND),
    ], "path", SIZES, period=ROUND),
]  # fmt: skip
