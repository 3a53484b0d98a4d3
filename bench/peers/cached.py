"""Arrivals through client caches, staleness norms and mixing as one would write them in torch: in place, and the same
compiled. Quantised rows are kept as int8 (or two in a byte) with one scale for every 256 elements, rounded
stochastically, which is what the fused arrival does."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from ours_cached import CLIENTS, grid, whole
from problem import Built, Candidate, Problem
from torch import Tensor

from peers.compiled import compiled

_BLOCK = 256


def _encode(g: Tensor, levels: float) -> tuple[Tensor, Tensor]:
    blocks = g.view(-1, _BLOCK)
    scale = blocks.abs().amax(dim=1, keepdim=True).div_(levels).clamp_min_(2.0**-126)
    q = (blocks / scale).add_(torch.rand_like(blocks).mul_(0.998).add_(0.001)).floor_().clamp_(-levels, levels)
    return q, scale


def _decode4(packed: Tensor) -> Tensor:
    return torch.cat([packed & 15, packed >> 4], dim=1).to(torch.float32).sub_(8.0)


class _Rows:
    """One client's row, and how to exchange it."""

    def __init__(self, size: int, format: str) -> None:
        self.format = format
        padded = -(-size // _BLOCK) * _BLOCK
        if format in ("fp32", "bf16"):
            self.row = torch.zeros(size, dtype=torch.float32 if format == "fp32" else torch.bfloat16)
            self.scale = torch.zeros(1)
        else:
            width, dtype = (_BLOCK, torch.int8) if format == "int8" else (_BLOCK // 2, torch.uint8)
            self.row = torch.zeros(padded // _BLOCK, width, dtype=dtype)
            self.row.fill_(0x88 if format == "int4" else 0)
            self.scale = torch.zeros(padded // _BLOCK, 1)


def _difference(g: Tensor, row: Tensor, scale: Tensor, format: str) -> Tensor:
    """``deq(new) - deq(old)``; the row is replaced."""
    if format == "fp32":
        change = g - row
        row.copy_(g)
        return change
    if format == "bf16":
        bits = g.view(torch.int32) + torch.randint_like(row, 1 << 16, dtype=torch.int32)
        new = bits.bitwise_and_(-65536).view(torch.float32)
        change = new - row
        row.copy_(new)
        return change
    levels = 127.0 if format == "int8" else 7.0
    q, s = _encode(g, levels)
    old = row.to(torch.float32) if format == "int8" else _decode4(row)
    change = (q * s).sub_(old.mul_(scale))
    if format == "int8":
        row.copy_(q)
    else:
        nibbles = (q + 8.0).to(torch.uint8)
        row.copy_(nibbles[:, : _BLOCK // 2] | (nibbles[:, _BLOCK // 2 :] << 4))
    scale.copy_(s)
    return change.view(-1)


def _ace_step(x: Tensor, g: Tensor, u: Tensor, row: Tensor, scale: Tensor, lr: float, format: str) -> None:
    u.add_(_difference(g, row, scale, format), alpha=1.0 / CLIENTS)
    x.sub_(u, alpha=lr)


def _ace_amsgrad_step(
    x: Tensor, g: Tensor, u: Tensor, row: Tensor, scale: Tensor, lr: float, format: str,
    m: Tensor, v: Tensor, vhat: Tensor,
) -> None:  # fmt: skip
    u.add_(_difference(g, row, scale, format), alpha=1.0 / CLIENTS)
    m.mul_(0.9).sub_(u, alpha=0.1)
    v.mul_(0.99).addcmul_(u, u, value=0.01)
    torch.maximum(vhat, v, out=vhat)
    x.addcdiv_(m, vhat.sqrt().add_(1e-8), value=lr)


def _ace(problem: Problem, format: str, amsgrad: bool, compile_: bool) -> Built:
    size = whole(problem.size) if format in ("int8", "int4") else problem.size
    x, g, u = problem.vector("x"), grid(problem.size, format)[:size], torch.zeros(size)
    rows = _Rows(size, format)
    moments = [torch.zeros(size) for _ in range(3)] if amsgrad else []
    step: Callable[..., None] = _ace_amsgrad_step if amsgrad else _ace_step
    # Whole blocks of 256 only: the few elements after them change no timing.
    state = (x[:size], g, u, rows.row, rows.scale, problem.lr, format, *moments)
    run = compiled(step, *state) if compile_ else partial(step, *state)
    if compile_:  # compiling ran it
        fresh = _Rows(size, format)
        rows.row.copy_(fresh.row)
        for tensor in (rows.scale, u, *moments):
            tensor.zero_()
        x.copy_(problem.vector("x"))
    return Built(run, lambda: x[: whole(problem.size)])


def _aced_step(
    x: Tensor,
    g: Tensor,
    u: Tensor,
    row: Tensor,
    scale: Tensor,
    lr: float,
    format: str,
    other: Tensor,
    other_scale: Tensor,
) -> None:
    u.add_(_difference(g, row, scale, format), alpha=1.0 / CLIENTS)
    u.sub_((other.to(torch.float32) * other_scale).view(-1), alpha=1.0 / CLIENTS)
    x.sub_(u, alpha=lr)


def _aced(problem: Problem, format: str, compile_: bool) -> Built:
    size = whole(problem.size)
    x, g, u = problem.vector("x"), grid(problem.size, format)[:size], torch.zeros(size)
    mine, other = _Rows(size, format), _Rows(size, format)
    state = (x[:size], g, u, mine.row, mine.scale, problem.lr, format, other.row, other.scale)
    run = compiled(_aced_step, *state) if compile_ else partial(_aced_step, *state)
    if compile_:
        for tensor in (mine.row, mine.scale, u):
            tensor.zero_()
        x.copy_(problem.vector("x"))
    return Built(run, lambda: x[:size])


def _ca2fl_step(acc: Tensor, g: Tensor, old: Tensor, new: Tensor) -> None:
    acc.add_(g).sub_(old)
    new.copy_(g)


def _ca2fl_arrival(problem: Problem, compile_: bool) -> Built:
    acc, g = problem.vector("acc"), grid(problem.size, "fp32")
    old, new = torch.zeros(problem.size), torch.zeros(problem.size)
    run = compiled(_ca2fl_step, acc, g, old, new) if compile_ else partial(_ca2fl_step, acc, g, old, new)
    if compile_:
        acc.copy_(problem.vector("acc"))
    return Built(run, lambda: acc)


def _distances(problem: Problem, compile_: bool) -> Built:
    x, base, d, found = problem.vector("x"), problem.vector("base"), problem.update, torch.zeros(2)

    def norms(x: Tensor, base: Tensor, d: Tensor) -> None:
        found[0] = torch.linalg.vector_norm(x - base)
        found[1] = torch.linalg.vector_norm(d)

    run = compiled(norms, x, base, d) if compile_ else partial(norms, x, base, d)
    return Built(run, lambda: found)


def _mixing(problem: Problem, compile_: bool) -> Built:
    x, base, d, lr = problem.vector("x"), problem.vector("base"), problem.update, problem.lr

    def mix(x: Tensor, base: Tensor, d: Tensor) -> None:
        x.mul_(1 - lr).add_(base, alpha=lr).add_(d, alpha=lr)

    run = compiled(mix, x, base, d) if compile_ else partial(mix, x, base, d)
    if compile_:
        x.copy_(problem.vector("x"))
    return Built(run, lambda: x)


def _pair(build: Callable[..., Built], vectors: float, **how: object) -> list[Candidate]:
    return [
        Candidate("torch eager in place", partial(build, compile_=False, **how), vectors),
        Candidate("torch.compile", partial(build, compile_=True, **how), vectors),
    ]


CACHED: dict[str, list[Candidate]] = {
    **{f"ace {f}": _pair(_ace, 9, format=f, amsgrad=False) for f in ("fp32", "bf16", "int8", "int4")},
    "ace int8 amsgrad": _pair(_ace, 12, format="int8", amsgrad=True),
    "aced int8": _pair(_aced, 10, format="int8"),
    "ca2fl arrival": _pair(_ca2fl_arrival, 4),
    "distances": _pair(_distances, 3),
    "sketch": [],
    "mixing": _pair(_mixing, 2),
}
