"""A whole step of AMSGrad or Adam along a given direction, ``x + lr*m/(sqrt(v) + eps)``, with fp32 and 8-bit moments.

Peers keep their state in plain torch or NumPy memory, as users of these libraries do.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import count

import numpy as np
import torch
from peers import compiled, native_call, plain_loop
from problem import Built, Candidate, Case, Problem, huge, plain
from torch import Tensor

from fastagg import ops
from fastagg.rules import moments


def settings(problem: Problem) -> dict[str, object]:
    """Return the settings of a step, by keyword."""
    return {"lr": problem.lr, "betas": problem.betas, "eps": problem.eps}


def state(problem: Problem, optimizer: str, allocate: Callable[..., Tensor] = plain) -> list[Tensor]:
    """Return the model and its moments."""
    return problem.vectors(("x", *ops.OPTIMIZERS[optimizer]), allocate)


def _ours(problem: Problem, optimizer: str, aside: bool = False) -> Built:
    x, *vectors = state(problem, optimizer, huge)
    held = dict(zip(ops.OPTIMIZERS[optimizer], vectors, strict=True))
    out = huge(problem.size, problem.device) if aside else None
    given = settings(problem)
    return Built(
        lambda: ops.step_(x, problem.update, optimizer=optimizer, out=out, **given, **held),
        lambda: x if out is None else out,
    )


def _corrected(problem: Problem, optimizer: str) -> Tensor:
    """Return the model after one step with Adam's bias correction in round 1, as in torch.optim."""
    x, *vectors = state(problem, optimizer)
    held = dict(zip(ops.OPTIMIZERS[optimizer], vectors, strict=True))
    return ops.step_(x, problem.update, optimizer=optimizer, correction=1, **settings(problem), **held)


def _torch_optim(problem: Problem, optimizer: str, by_layer: bool = False, **form: bool) -> Built:
    x, *vectors = state(problem, optimizer)
    cut = problem.layers if by_layer else lambda vector: [vector]
    # One flat parameter if that is faster. Gradients already exist, so only a step is timed.
    parameters = [torch.nn.Parameter(piece) for piece in cut(x)]
    for parameter, piece in zip(parameters, cut(problem.negated), strict=True):
        parameter.grad = piece
    adam = torch.optim.Adam(parameters, **settings(problem), amsgrad=optimizer == "amsgrad", **form)
    names = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq")[: len(vectors)]
    for parameter, *pieces in zip(parameters, *(cut(vector) for vector in vectors), strict=True):
        pieces[0].neg_()  # the moment of the negated update
        step = torch.tensor(0.0, device=problem.device)
        adam.state[parameter] = {"step": step, **dict(zip(names, pieces, strict=True))}
    return Built(adam.step, lambda: x)


def _eager(problem: Problem, optimizer: str) -> Built:
    x, m, v, *top = state(problem, optimizer)
    d, scratch = problem.update, plain(problem.size, problem.device)
    (b1, b2), lr, eps = problem.betas, problem.lr, problem.eps

    def step() -> None:
        m.lerp_(d, 1 - b1)
        v.mul_(b2).addcmul_(d, d, value=1 - b2)
        second = torch.maximum(top[0], v, out=top[0]) if top else v
        x.addcdiv_(m, torch.sqrt(second, out=scratch).add_(eps), value=lr)

    return Built(step, lambda: x)


def _compiled(problem: Problem, optimizer: str) -> Built:
    held = state(problem, optimizer)
    (b1, b2), lr, eps = problem.betas, problem.lr, problem.eps

    def step(d: Tensor, x: Tensor, m: Tensor, v: Tensor, top: Tensor | None = None) -> None:
        m.mul_(b1).add_(d, alpha=1 - b1)
        v.mul_(b2).addcmul_(d, d, value=1 - b2)
        second = v if top is None else torch.maximum(top, v, out=top)
        x.addcdiv_(m, second.sqrt().add_(eps), value=lr)

    run = compiled(step, problem.update, *held)
    for vector, fresh in zip(held, state(problem, optimizer), strict=True):  # compiling has run the step once
        vector.copy_(fresh)
    return Built(run, lambda: held[0])


def _flower(problem: Problem, optimizer: str) -> Built:
    """The form of ``aggregate_fit`` in Flower's FedAdam strategy: one list comprehension per line of the paper.

    It favours the peer in three ways. The update is given, but Flower subtracts two models first. The learning rate is
    a Python float, but Flower's NumPy scalar turns everything into float64. No conversion to bytes and back is timed.
    """
    held = [[p.numpy() for p in problem.layers(vector)] for vector in state(problem, optimizer)]
    delta = [p.numpy() for p in problem.layers(problem.update)]
    (b1, b2), eta, tau, amsgrad = problem.betas, problem.lr, problem.eps, optimizer == "amsgrad"

    def step() -> None:
        weights, m_t, v_t = held[:3]
        m_t = [np.multiply(b1, m) + (1 - b1) * d for m, d in zip(m_t, delta, strict=True)]
        v_t = [b2 * v + (1 - b2) * np.multiply(d, d) for v, d in zip(v_t, delta, strict=True)]
        top = [np.maximum(old, v) for old, v in zip(held[3], v_t, strict=True)] if amsgrad else v_t
        weights = [w + eta * m / (np.sqrt(s) + tau) for w, m, s in zip(weights, m_t, top, strict=True)]
        held[:] = [weights, m_t, v_t, top] if amsgrad else [weights, m_t, v_t]

    return Built(step, lambda: torch.from_numpy(np.concatenate([w.ravel() for w in held[0]])))


def _candidates(optimizer: str) -> list[Candidate]:
    def bind(build: Callable[..., Built], **options: object) -> Callable[[Problem], Built]:
        return partial(build, optimizer=optimizer, **options)

    held = 1 + len(ops.OPTIMIZERS[optimizer])
    return [
        Candidate("fastagg", bind(_ours), held, note="state in huge pages, as a Server keeps it"),
        Candidate("fastagg, into a new version", bind(_ours, aside=True), held + 1, note="as when a client holds x"),
        *native_call(optimizer),
        Candidate("torch.optim fused", bind(_torch_optim, fused=True), held, corrected=True),
        Candidate("torch.compile", bind(_compiled), held),
        Candidate("torch eager in place", bind(_eager), held + 1, note="one kept scratch vector"),
        Candidate(
            "torch.optim foreach", bind(_torch_optim, foreach=True, by_layer=True), held + 2, corrected=True,
            note="62 layers",
        ),
        Candidate(
            "NumPy as Flower writes it", bind(_flower), 2 * held + 1, devices=("cpu",),
            note="a list of arrays (62 layers), new arrays for every term",
        ),
        *plain_loop(optimizer),
    ]  # fmt: skip


def _from_zeros(problem: Problem, optimizer: str, format: str) -> Built:
    x = problem.vector("x", huge)
    held = moments.zeros(optimizer, format, problem.size, problem.device)
    steps = count()

    def run() -> None:
        rounding = {"rounding": (0, next(steps))} if format == "8bit" else {}
        ops.step_(x, problem.update, optimizer=optimizer, **settings(problem), **held, **rounding)

    return Built(run, lambda: x)


def _coded(optimizer: str) -> list[Candidate]:
    """8-bit moments compared with fp32 ones. Both start from zeros, so their first steps agree."""
    owned = len(ops.OPTIMIZERS[optimizer])
    return [
        Candidate("fastagg", partial(_from_zeros, optimizer=optimizer, format="8bit"), 1 + owned / 4),
        Candidate(
            "fastagg, fp32 moments", partial(_from_zeros, optimizer=optimizer, format="fp32"), 1 + owned,
            note=f"moves {12 + 8 * owned} bytes per parameter, not what the columns count",
        ),
    ]  # fmt: skip


def _case(optimizer: str) -> Case:
    bytes_ = 12 + 8 * len(ops.OPTIMIZERS[optimizer])  # d is read; x and each moment are read and written
    return Case(optimizer, bytes_, lambda: _candidates(optimizer), corrected=partial(_corrected, optimizer=optimizer))


def _coded_case(optimizer: str) -> Case:
    # Each moment is a byte, read and written. For every 256 elements there is an fp32 unit for m, and one for v and
    # vhat.
    names = ops.OPTIMIZERS[optimizer]
    bytes_ = 12 + 2 * len(names) + 8 * (2 if "v" in names else 1) / 256
    return Case(f"{optimizer} 8bit", bytes_, lambda: _coded(optimizer))


CASES = [_case("amsgrad"), _case("adam"), _coded_case("amsgrad"), _coded_case("adam"), _coded_case("momentum")]
