"""The last update of a buffer: one pass steps AMSGrad along the mean of all."""

from __future__ import annotations

import torch
from peers import compiled, native_call, plain_loop
from problem import Built, Candidate, Case, Problem, huge, plain
from torch import Tensor

from fastagg import ops

KINDS = ("x", "m", "v", "vhat", "acc")


def _flush(problem: Problem, vectors: list[Tensor], correction: int | None = None) -> Tensor:
    x, m, v, vhat, acc = vectors
    return ops.step_(
        x, problem.update, optimizer="amsgrad", lr=problem.lr, betas=problem.betas, eps=problem.eps,
        correction=correction, m=m, v=v, vhat=vhat, acc=acc, scale=1.0 / problem.buffer_size,
    )  # fmt: skip


def _ours(problem: Problem) -> Built:
    vectors = problem.vectors(KINDS, huge)
    return Built(lambda: _flush(problem, vectors), lambda: vectors[0])


def _torch(problem: Problem) -> Built:
    x, m, v, vhat, acc = problem.vectors(KINDS)
    d, scratch = problem.update, plain(problem.size, problem.device)
    (b1, b2), lr, eps, scale = problem.betas, problem.lr, problem.eps, 1.0 / problem.buffer_size

    def run() -> None:
        mean = torch.add(acc, d, out=scratch).mul_(scale)
        m.lerp_(mean, 1 - b1)
        v.mul_(b2).addcmul_(mean, mean, value=1 - b2)
        torch.maximum(vhat, v, out=vhat)
        x.addcdiv_(m, torch.sqrt(vhat, out=scratch).add_(eps), value=lr)

    return Built(run, lambda: x)


def _fused(problem: Problem) -> Built:
    """torch's fused Adam along the mean of the buffer, which one expression computes first."""
    x, m, v, vhat, acc = problem.vectors(KINDS)
    d, scale = problem.update, -1.0 / problem.buffer_size
    parameter = torch.nn.Parameter(x)
    parameter.grad = plain(problem.size, problem.device)
    adam = torch.optim.Adam([parameter], problem.lr, problem.betas, problem.eps, amsgrad=True, fused=True)
    moments = {"exp_avg": m.neg_(), "exp_avg_sq": v, "max_exp_avg_sq": vhat}
    adam.state[parameter] = {"step": torch.tensor(0.0, device=problem.device), **moments}

    def run() -> None:
        torch.add(acc, d, out=parameter.grad).mul_(scale)
        adam.step()

    return Built(run, lambda: x)


def _compiled(problem: Problem) -> Built:
    state = problem.vectors(KINDS)
    (b1, b2), lr, eps, scale = problem.betas, problem.lr, problem.eps, 1.0 / problem.buffer_size

    def flush(x: Tensor, m: Tensor, v: Tensor, vhat: Tensor, acc: Tensor, d: Tensor) -> None:
        mean = (acc + d) * scale
        m.mul_(b1).add_(mean, alpha=1 - b1)
        v.mul_(b2).addcmul_(mean, mean, value=1 - b2)
        torch.maximum(vhat, v, out=vhat)
        x.addcdiv_(m, vhat.sqrt().add_(eps), value=lr)

    run = compiled(flush, *state, problem.update)
    for vector, fresh in zip(state, problem.vectors(KINDS), strict=True):
        vector.copy_(fresh)
    return Built(run, lambda: state[0])


def _candidates() -> list[Candidate]:
    return [
        Candidate("fastagg", _ours, 5),
        *native_call("fadas flush"),
        Candidate("torch.optim fused", _fused, 6, corrected=True, note="after add(out=) and mul_"),
        Candidate("torch.compile", _compiled, 5),
        Candidate("torch eager in place", _torch, 6),
        *plain_loop("fadas flush"),
    ]


CASES = [Case("fadas flush", 40, _candidates, corrected=lambda p: _flush(p, p.vectors(KINDS), 1))]
