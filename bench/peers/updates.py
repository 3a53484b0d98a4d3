"""Buffering an update, applying it, flushing a buffer, inspecting: as others write them."""

from __future__ import annotations

import numpy as np
import torch
from problem import Built, Candidate, Problem
from torch import Tensor

from peers.compiled import compiled


def _accumulate_torch(problem: Problem) -> Built:
    acc, d = problem.vector("acc"), problem.update
    return Built(lambda: acc.add_(d), lambda: acc)


def _accumulate_foreach(problem: Problem) -> Built:
    acc = problem.vector("acc")
    sums, pieces = problem.layers(acc), problem.layers(problem.update)
    return Built(lambda: torch._foreach_add_(sums, pieces), lambda: acc)


def _accumulate_numpy(problem: Problem) -> Built:
    acc, d = problem.vector("acc").numpy(), problem.update.numpy()
    return Built(lambda: np.add(acc, d, out=acc), lambda: torch.from_numpy(acc))


def _accumulate_flower(problem: Problem) -> Built:
    held = [[p.numpy() for p in problem.layers(problem.vector("acc"))]]
    d = [p.numpy() for p in problem.layers(problem.update)]

    def run() -> None:
        held[0] = [a + 1.0 * b for a, b in zip(held[0], d, strict=True)]

    return Built(run, lambda: torch.from_numpy(np.concatenate([a.ravel() for a in held[0]])))


def _apply_torch(problem: Problem) -> Built:
    x, d = problem.vector("x"), problem.update
    return Built(lambda: x.add_(d, alpha=problem.lr), lambda: x)


def _apply_numpy(problem: Problem) -> Built:
    x, d, scratch = problem.vector("x").numpy(), problem.update.numpy(), np.empty(problem.size, np.float32)

    def run() -> None:
        np.multiply(d, problem.lr, out=scratch)
        np.add(x, scratch, out=x)

    return Built(run, lambda: torch.from_numpy(x))


def _flush_torch(problem: Problem) -> Built:
    x, acc, d = problem.vector("x"), problem.vector("acc"), problem.update
    step = problem.lr / problem.buffer_size

    def run() -> None:
        # The buffer is cleared next anyway, so it may as well hold the sum; only a first run's result means something.
        acc.add_(d)
        x.add_(acc, alpha=step)

    return Built(run, lambda: x)


def _flush_compiled(problem: Problem) -> Built:
    x, acc = problem.vector("x"), problem.vector("acc")
    step = problem.lr / problem.buffer_size

    def flush(x: Tensor, acc: Tensor, d: Tensor) -> None:
        x.add_((acc + d) * step)

    run = compiled(flush, x, acc, problem.update)
    x.copy_(problem.vector("x"))
    return Built(run, lambda: x)


def _adaptive_flush_torch(problem: Problem) -> Built:
    x, m, v, vhat, acc = problem.vectors(("x", "m", "v", "vhat", "acc"))
    d, scratch = problem.update, torch.empty(problem.size)
    (b1, b2), lr, eps, scale = problem.betas, problem.lr, problem.eps, 1.0 / problem.buffer_size

    def run() -> None:
        mean = torch.add(acc, d, out=scratch).mul_(scale)
        m.lerp_(mean, 1 - b1)
        v.mul_(b2).addcmul_(mean, mean, value=1 - b2)
        torch.maximum(vhat, v, out=vhat)
        x.addcdiv_(m, torch.sqrt(vhat, out=scratch).add_(eps), value=lr)

    return Built(run, lambda: x)


def _adaptive_flush_fused(problem: Problem) -> Built:
    """torch's fused Adam on the mean of the buffer, formed first in one expression."""
    x, acc = problem.vector("x"), problem.vector("acc")
    m, v, vhat = problem.vectors(("m", "v", "vhat"))
    d, scale = problem.update, -1.0 / problem.buffer_size
    parameter = torch.nn.Parameter(x)
    parameter.grad = torch.empty(problem.size)
    optimizer = torch.optim.Adam(
        [parameter], lr=problem.lr, betas=problem.betas, eps=problem.eps, amsgrad=True, fused=True
    )
    moments = {"exp_avg": m.neg_(), "exp_avg_sq": v, "max_exp_avg_sq": vhat}
    optimizer.state[parameter] = {"step": torch.tensor(0.0), **moments}

    def run() -> None:
        torch.add(acc, d, out=parameter.grad).mul_(scale)
        optimizer.step()

    return Built(run, lambda: x)


def _adaptive_flush_compiled(problem: Problem) -> Built:
    kinds = ("x", "m", "v", "vhat", "acc")
    state = problem.vectors(kinds)
    (b1, b2), lr, eps, scale = problem.betas, problem.lr, problem.eps, 1.0 / problem.buffer_size

    def flush(x: Tensor, m: Tensor, v: Tensor, vhat: Tensor, acc: Tensor, d: Tensor) -> None:
        mean = (acc + d) * scale
        m.mul_(b1).add_(mean, alpha=1 - b1)
        v.mul_(b2).addcmul_(mean, mean, value=1 - b2)
        torch.maximum(vhat, v, out=vhat)
        x.addcdiv_(m, vhat.sqrt().add_(eps), value=lr)

    run = compiled(flush, *state, problem.update)
    for vector, fresh in zip(state, problem.vectors(kinds), strict=True):
        vector.copy_(fresh)
    return Built(run, lambda: state[0])


def _inspect_torch(problem: Problem) -> Built:
    found = torch.zeros(1)

    def run() -> None:
        # A norm is finite exactly when every element is (short of overflow): one read where two are usual.
        found[0] = torch.linalg.vector_norm(problem.update).item()

    return Built(run, lambda: found)


def _inspect_usual(problem: Problem) -> Built:
    found = torch.zeros(1)

    def run() -> None:
        if bool(torch.isfinite(problem.update).all()):
            found[0] = problem.update.norm().item()

    return Built(run, lambda: found)


def _inspect_numpy(problem: Problem) -> Built:
    found, d = torch.zeros(1), problem.update.numpy()

    def run() -> None:
        found[0] = float(np.sqrt(np.dot(d, d)))

    return Built(run, lambda: found)


UPDATES: dict[str, list[Candidate]] = {
    "accumulate": [
        Candidate("torch add_", _accumulate_torch, 1),
        Candidate("torch _foreach_add_", _accumulate_foreach, 1, note="62 layers"),
        Candidate("NumPy in place", _accumulate_numpy, 1),
        Candidate("NumPy as Flower writes it", _accumulate_flower, 2.5, note="a list of arrays (62 layers)"),
    ],
    "apply": [
        Candidate("torch add_", _apply_torch, 1),
        Candidate("NumPy in place", _apply_numpy, 2),
    ],
    "fedbuff flush": [
        Candidate("torch add_, add_", _flush_torch, 2, note="24 bytes per parameter in two passes"),
        Candidate("torch.compile", _flush_compiled, 2),
    ],
    "fadas flush": [
        Candidate("torch.optim fused", _adaptive_flush_fused, 6, corrected=True, note="after add(out=) and mul_"),
        Candidate("torch.compile", _adaptive_flush_compiled, 5),
        Candidate("torch eager in place", _adaptive_flush_torch, 6),
    ],
    "inspect": [
        Candidate("torch vector_norm", _inspect_torch, 0, note="finite if the norm is; fp32 sums"),
        Candidate("torch isfinite, norm", _inspect_usual, 0.25, note="as usually written"),
        Candidate("NumPy dot", _inspect_numpy, 0, note="fp32 sums"),
    ],
}
