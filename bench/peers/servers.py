"""A buffering or mixing server in eager torch on one flat vector: the least that somebody without fastagg would write.

It favours the peer: no locks, no versions kept for clients in flight, no check of names and shapes, no delays.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from problem import Problem

Receive = Callable[[torch.Tensor], None]


def buffered(x: torch.Tensor, problem: Problem, flush: Callable[[torch.Tensor], None]) -> Receive:
    """``flush`` gets the sum of every M finite updates."""
    acc, held = torch.empty_like(x), [0]

    def receive(update: torch.Tensor) -> None:
        _refuse(update)
        acc.add_(update) if held[0] else acc.copy_(update)
        held[0] += 1
        if held[0] == problem.buffer_size:
            flush(acc)
            held[0] = 0

    return receive


def fadas(x: torch.Tensor, problem: Problem) -> Receive:
    """torch's fused AMSGrad at every M-th update."""
    parameter = torch.nn.Parameter(x)
    optimizer = torch.optim.Adam(
        [parameter], lr=problem.lr, betas=problem.betas, eps=problem.eps, amsgrad=True, fused=True
    )

    def flush(acc: torch.Tensor) -> None:
        parameter.grad = acc.mul_(-1.0 / problem.buffer_size)
        optimizer.step()

    return buffered(x, problem, flush)


def fedbuff(x: torch.Tensor, problem: Problem) -> Receive:
    """The mean is added at every M-th update."""
    return buffered(x, problem, lambda acc: x.add_(acc, alpha=1.0 / problem.buffer_size))


def fedasync(x: torch.Tensor, problem: Problem, alpha: float = 0.6) -> Receive:
    """Towards the client's model, which started from the version now current (a fresh update)."""
    base = x.clone()

    def receive(update: torch.Tensor) -> None:
        _refuse(update)
        x.mul_(1 - alpha).add_(base, alpha=alpha).add_(update, alpha=alpha)
        base.copy_(x)

    return receive


def _refuse(update: torch.Tensor) -> None:
    if not torch.isfinite(torch.linalg.vector_norm(update)):
        raise ValueError("update: NaN or infinity")


def ace(x: torch.Tensor, rows: torch.Tensor, problem: Problem) -> Callable[[int, torch.Tensor], None]:
    """ACE's incremental form: the mean of all rows follows the change of one; the model steps once all are heard."""
    mean, clients, heard = torch.zeros_like(x), rows.shape[0], set[int]()

    def receive(client: int, update: torch.Tensor) -> None:
        _refuse(update)
        row = rows[client]
        mean.add_(update, alpha=1 / clients).sub_(row, alpha=1 / clients)
        row.copy_(update)
        heard.add(client)
        if len(heard) == clients:
            x.sub_(mean, alpha=problem.lr)

    return receive
