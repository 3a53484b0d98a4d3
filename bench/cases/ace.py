"""ACE's and ACED's fused arrival: a client's row is replaced, the sum is updated, the model steps along the mean.

Quantised rows are compared on updates that every level represents exactly (``peers/rows.py``), because two random
roundings cannot agree. Bytes are those that the rule needs, without scales (0.016) and the sum's scrub (0.6 to 1.6).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from peers import compiled, grid, native_call, plain_loop, whole
from peers.rows import Rows, difference
from problem import Built, Candidate, Case, Problem, huge
from torch import Tensor

from fastagg import ClientCache, ops

ROWS = 4  # rows that really exist; what an arrival reads and writes does not depend on their number
FLOOR = {"int8": (0.35, "torch eager in place", 4.0)}
ROW_BYTES = {"fp32": 4.0, "bf16": 2.0, "int8": 1.0, "int4": 0.5}


def _ours(problem: Problem, format: str, optimizer: str = "sgd", expires: bool = False) -> Built:
    x, update, total = problem.vector("x", huge), grid(problem, format), problem.zeros()
    cache = ClientCache(problem.size, ROWS, format, problem.device)
    cache.data.zero_()
    cache.scales.zero_()
    moments = {name: problem.zeros() for name in ops.OPTIMIZERS[optimizer]}
    turn = 0

    def run() -> None:
        nonlocal turn
        slot, terms = turn % ROWS, None
        if expires:  # another client expires; the next arrival adds the same amount back
            slot, other = turn % 2, 2 + turn % 2
            terms = [(other, -1.0 if turn % 4 < 2 else 1.0)]
        ops.cached_step_(
            x, update, cache=cache, write=slot, read=slot, sum=total, sum_scale=-1.0 / ROWS, client=slot, arrival=turn,
            **({} if terms is None else {"terms": terms}), optimizer=optimizer, lr=problem.lr, **moments,
        )  # fmt: skip
        turn += 1

    return Built(run, lambda: x[: whole(problem.size)])


def _sgd(x: Tensor, g: Tensor, u: Tensor, row: Tensor, scale: Tensor, lr: float, format: str) -> None:
    u.add_(difference(g, row, scale, format), alpha=1.0 / ROWS)
    x.sub_(u, alpha=lr)


def _amsgrad(
    x: Tensor, g: Tensor, u: Tensor, row: Tensor, scale: Tensor, lr: float, format: str, m: Tensor, v: Tensor,
    top: Tensor,
) -> None:  # fmt: skip
    u.add_(difference(g, row, scale, format), alpha=1.0 / ROWS)
    m.mul_(0.9).sub_(u, alpha=0.1)
    v.mul_(0.99).addcmul_(u, u, value=0.01)
    torch.maximum(top, v, out=top)
    x.addcdiv_(m, top.sqrt().add_(1e-8), value=lr)


def _expiring(
    x: Tensor, g: Tensor, u: Tensor, row: Tensor, scale: Tensor, lr: float, format: str, other: Tensor, units: Tensor
) -> None:
    u.add_(difference(g, row, scale, format), alpha=1.0 / ROWS)
    u.sub_((other.to(torch.float32) * units).view(-1), alpha=1.0 / ROWS)
    x.sub_(u, alpha=lr)


def _torch(
    problem: Problem, format: str, how: Callable[..., Callable[[], None]], optimizer: str = "sgd", expires: bool = False
) -> Built:
    # Only whole blocks of 256. The few elements after them change no timing.
    size = whole(problem.size) if format in ("int8", "int4") else problem.size
    x, g, u = problem.vector("x"), grid(problem, format)[:size], problem.zeros()[:size]
    rows = Rows(size, format, problem.device)
    more = [problem.zeros()[:size] for _ in ops.OPTIMIZERS[optimizer]]
    if expires:
        other = Rows(size, format, problem.device)
        more = [other.row, other.scale]
    step: Callable[..., None] = _expiring if expires else _amsgrad if more else _sgd
    run = how(step, x[:size], g, u, rows.row, rows.scale, problem.lr, format, *more)
    return Built(run, lambda: x[: whole(problem.size)])


def _candidates(name: str, format: str, **how: object) -> list[Candidate]:
    own = 3 + (0 if how.get("optimizer", "sgd") == "sgd" else 3)
    pair = {"torch eager in place": partial, "torch.compile": compiled}
    return [
        Candidate("fastagg", partial(_ours, format=format, **how), own + ROWS * ROW_BYTES[format] / 4),
        *native_call(name),
        *(Candidate(peer, partial(_torch, format=format, how=way, **how), 6 + own) for peer, way in pair.items()),
        *plain_loop(name),
    ]


def _case(name: str, bytes_: float, format: str, rounding: float = 2e-6, floor: Any = None, **how: object) -> Case:
    return Case(name, bytes_, partial(_candidates, name, format, **how), lr=0.1, rounding=rounding, floor=floor)


# The update is read. The model, the sum and a row are read and written.
CASES = [
    *(_case(f"ace {format}", 20 + 2 * size, format, floor=FLOOR.get(format)) for format, size in ROW_BYTES.items()),
    # In some processes torch's own sqrt had 12 correct bits on its second thread, and all bits on ours and the first
    # one.
    _case("ace int8 amsgrad", 46, "int8", 1e-5, optimizer="amsgrad"),
    _case("aced int8", 23, "int8", expires=True),  # another client's row is also read
]
