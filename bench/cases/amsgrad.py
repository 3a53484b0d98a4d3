"""A whole step of AMSGrad or Adam, ``x + lr*m/(sqrt(v) + eps)``, with fp32 and 8-bit moments: along an update, or along
the mean of a full buffer whose last update it is.

Peers keep their state in plain torch or NumPy memory, as users of these libraries do.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import count

import numpy as np
import torch
from peers import native_call, plain_loop
from problem import Built, Candidate, Case, Problem, huge, plain
from torch import Tensor

from cases.kernels import by_compiler, eager
from fastagg import ops
from fastagg.rules import moments


def kinds(optimizer: str, flush: bool = False) -> tuple[str, ...]:
    """Return the vectors of a step: the model, its moments and the buffer."""
    return ("x", *ops.OPTIMIZERS[optimizer], *("acc",) * flush)


def settings(problem: Problem) -> dict[str, object]:
    """Return the settings of a step, by keyword."""
    return {"lr": problem.lr, "betas": problem.betas, "eps": problem.eps}


def _step(
    problem: Problem, optimizer: str, flush: bool = False, allocate: Callable[..., Tensor] = plain, **more: object
) -> Callable[[], Tensor]:
    names = kinds(optimizer, flush)
    x, *vectors = problem.vectors(names, allocate)
    if flush:
        more["scale"] = 1.0 / problem.buffer_size
    held = dict(zip(names[1:], vectors, strict=True))
    return partial(ops.step_, x, problem.update, optimizer=optimizer, **settings(problem), **held, **more)


def _ours(problem: Problem, optimizer: str, flush: bool = False, aside: bool = False) -> Built:
    run = _step(problem, optimizer, flush, huge, out=huge(problem.size, problem.device) if aside else None)
    return Built(run, lambda: run.keywords["out"] if aside else run.args[0])  # type: ignore[attr-defined]


def _torch_optim(problem: Problem, optimizer: str, flush: bool = False, by_layer: bool = False, **form: bool) -> Built:
    x, *vectors = problem.vectors(kinds(optimizer, flush))
    cut = problem.layers if by_layer else lambda vector: [vector]
    acc = vectors.pop() if flush else None
    along = plain(problem.size, problem.device) if flush else problem.negated
    # One flat parameter if that is faster. Gradients already exist, so only a step is timed.
    parameters = [torch.nn.Parameter(piece) for piece in cut(x)]
    for parameter, piece in zip(parameters, cut(along), strict=True):
        parameter.grad = piece
    adam = torch.optim.Adam(parameters, **settings(problem), amsgrad=optimizer == "amsgrad", **form)
    names = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq")[: len(vectors)]
    for parameter, *pieces in zip(parameters, *(cut(vector) for vector in vectors), strict=True):
        pieces[0].neg_()  # the moment of the negated update
        step = torch.tensor(0.0, device=problem.device)
        adam.state[parameter] = {"step": step, **dict(zip(names, pieces, strict=True))}

    def run() -> None:
        torch.add(acc, problem.update, out=along).mul_(-1.0 / problem.buffer_size)
        adam.step()

    return Built(run if flush else adam.step, lambda: x)


def _eager(problem: Problem) -> Callable[..., None]:
    (b1, b2), lr, eps, scale = problem.betas, problem.lr, problem.eps, 1.0 / problem.buffer_size
    scratch = plain(problem.size, problem.device)

    def step(x: Tensor, d: Tensor, m: Tensor, v: Tensor, top: Tensor | None = None, acc: Tensor | None = None) -> None:
        if acc is not None:
            d = torch.add(acc, d, out=scratch).mul_(scale)
        m.lerp_(d, 1 - b1)
        v.mul_(b2).addcmul_(d, d, value=1 - b2)
        second = v if top is None else torch.maximum(top, v, out=top)
        x.addcdiv_(m, torch.sqrt(second, out=scratch).add_(eps), value=lr)

    return step


def _fused(problem: Problem) -> Callable[..., None]:
    """The form that a compiler makes one loop of."""
    (b1, b2), lr, eps, scale = problem.betas, problem.lr, problem.eps, 1.0 / problem.buffer_size

    def step(x: Tensor, d: Tensor, m: Tensor, v: Tensor, top: Tensor | None = None, acc: Tensor | None = None) -> None:
        d = d if acc is None else (acc + d) * scale
        m.mul_(b1).add_(d, alpha=1 - b1)
        v.mul_(b2).addcmul_(d, d, value=1 - b2)
        second = v if top is None else torch.maximum(top, v, out=top)
        x.addcdiv_(m, second.sqrt().add_(eps), value=lr)

    return step


def _flower(problem: Problem, optimizer: str) -> Built:
    """The form of ``aggregate_fit`` in Flower's FedAdam strategy: one list comprehension per line of the paper.

    It favours the peer in three ways. The update is given, but Flower subtracts two models first. The learning rate is
    a Python float, but Flower's NumPy scalar turns everything into float64. No conversion to bytes and back is timed.
    """
    held = [[p.numpy() for p in problem.layers(vector)] for vector in problem.vectors(kinds(optimizer))]
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


def _candidates(name: str, optimizer: str, flush: bool) -> list[Candidate]:
    def bind(build: Callable[..., Built], **options: object) -> Callable[[Problem], Built]:
        return partial(build, optimizer=optimizer, **options)

    vectors = kinds(optimizer, flush)
    held = len(vectors)
    note = "after add(out=) and mul_" if flush else ""
    both = [
        Candidate("fastagg", bind(_ours, flush=flush), held, note="state in huge pages, as a Server keeps it"),
        *native_call(name),
        Candidate("torch.optim fused", bind(_torch_optim, flush=flush, fused=True), held + flush, True, note),
        by_compiler(_fused, vectors),
        eager(_eager, vectors, "one kept scratch vector", scratch=1),
        *plain_loop(name),
    ]
    return both if flush else [
        *both,
        Candidate("fastagg, into a new version", bind(_ours, aside=True), held + 1, note="as when a client holds x"),
        Candidate(
            "torch.optim foreach", bind(_torch_optim, foreach=True, by_layer=True), held + 2, corrected=True,
            note="62 layers",
        ),
        Candidate(
            "NumPy as Flower writes it", bind(_flower), 2 * held + 1, devices=("cpu",),
            note="a list of arrays (62 layers), new arrays for every term",
        ),
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


def _case(name: str, optimizer: str, flush: bool = False) -> Case:
    # d is read, and so is the buffer; x and each moment are read and written
    bytes_ = 12 + 8 * len(ops.OPTIMIZERS[optimizer]) + 4 * flush
    corrected = lambda problem: _step(problem, optimizer, flush, correction=1)()  # noqa: E731  as in torch.optim
    return Case(name, bytes_, partial(_candidates, name, optimizer, flush), corrected=corrected)


def _coded_case(optimizer: str) -> Case:
    # Each moment is a byte, read and written. For every 256 elements there is an fp32 unit for m, and one for v and
    # vhat.
    names = ops.OPTIMIZERS[optimizer]
    bytes_ = 12 + 2 * len(names) + 8 * (2 if "v" in names else 1) / 256
    return Case(f"{optimizer} 8bit", bytes_, lambda: _coded(optimizer))


CASES = [
    _case("amsgrad", "amsgrad"), _case("adam", "adam"), _case("fadas flush", "amsgrad", flush=True),
    *map(_coded_case, ("amsgrad", "adam", "momentum")),
]  # fmt: skip
