"""AMSGrad and Adam steps as others write them. All of them step along ``problem.update``, ``x + lr*m/(sqrt(v) + eps)``.

State lies in plain torch or NumPy memory, as these libraries' users have it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from problem import Built, Candidate, Problem
from torch import Tensor

from peers.compiled import compiled
from peers.libraries import libraries


def adaptive(amsgrad: bool) -> list[Candidate]:
    """The peers of a whole step, strongest first."""
    state = 4 if amsgrad else 3

    def bind(build: Callable[..., Built], **options: object) -> Callable[[Problem], Built]:
        return partial(build, amsgrad=amsgrad, **options)

    return [
        Candidate("torch.optim fused", bind(_torch_optim, fused=True), state, corrected=True),
        Candidate("torch.compile", bind(_compiled), state),
        Candidate(
            "torch eager in place",
            bind(_eager),
            state + 1,
            note="lerp_, mul_, addcmul_, maximum(out=), sqrt(out=), add_, addcdiv_ with one kept scratch vector",
        ),
        Candidate(
            "torch eager in place, by layer",
            bind(_eager, by_layer=True),
            state + 1,
            note="the same, layer by layer (62 layers)",
        ),
        Candidate(
            "torch eager, as usually written",
            bind(_eager_usual),
            state + 1,
            note="mul_, add_, mul_, addcmul_, maximum(out=), sqrt().add_(), addcdiv_: the denominator is a new vector",
        ),
        Candidate(
            "torch.optim foreach",
            bind(_torch_optim, foreach=True, by_layer=True),
            state + 2,
            corrected=True,
            note="62 layers",
        ),
        *([] if amsgrad else libraries()),  # neither has AMSGrad
        Candidate("NumPy in place", bind(_numpy_in_place), state + 1, note="one kept scratch vector; one thread"),
        Candidate(
            "NumPy as Flower writes it",
            bind(_flower),
            2 * state + 1,
            note="a list of arrays (62 layers), new arrays for every term",
        ),
    ]


def _start(problem: Problem, amsgrad: bool) -> list[Tensor]:
    kinds = ("x", "m", "v", "vhat") if amsgrad else ("x", "m", "v")
    return problem.vectors(kinds)


def _torch_optim(problem: Problem, amsgrad: bool, by_layer: bool = False, **form: bool) -> Built:
    x, *moments = _start(problem, amsgrad)
    cut = problem.layers if by_layer else lambda vector: [vector]
    # One flat parameter where that is faster; gradients are there already, so a step is all that is timed.
    parameters = [torch.nn.Parameter(piece) for piece in cut(x)]
    for parameter, piece in zip(parameters, cut(problem.negated), strict=True):
        parameter.grad = piece
    optimizer = torch.optim.Adam(
        parameters, lr=problem.lr, betas=problem.betas, eps=problem.eps, amsgrad=amsgrad, **form
    )
    names = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq")[: len(moments)]
    for parameter, *pieces in zip(parameters, *(cut(moment) for moment in moments), strict=True):
        pieces[0].neg_()  # the moment of the negated update
        optimizer.state[parameter] = {"step": torch.tensor(0.0), **dict(zip(names, pieces, strict=True))}
    return Built(optimizer.step, lambda: x)


def _eager(problem: Problem, amsgrad: bool, by_layer: bool = False) -> Built:
    x, *moments = _start(problem, amsgrad)
    scratch = torch.empty(problem.size)
    (b1, b2), lr, eps = problem.betas, problem.lr, problem.eps
    cut = problem.layers if by_layer else lambda vector: [vector]
    pieces = list(zip(*(cut(vector) for vector in (x, problem.update, scratch, *moments)), strict=True))

    def step() -> None:
        for x, d, s, m, v, *vhat in pieces:
            m.lerp_(d, 1 - b1)
            v.mul_(b2).addcmul_(d, d, value=1 - b2)
            second = torch.maximum(vhat[0], v, out=vhat[0]) if vhat else v
            torch.sqrt(second, out=s).add_(eps)
            x.addcdiv_(m, s, value=lr)

    return Built(step, lambda: x)


def _formula(problem: Problem) -> Callable[..., None]:
    """The step as it is usually written in torch: in place but for the denominator."""
    (b1, b2), lr, eps = problem.betas, problem.lr, problem.eps

    def step(d: Tensor, x: Tensor, m: Tensor, v: Tensor, vhat: Tensor | None = None) -> None:
        m.mul_(b1).add_(d, alpha=1 - b1)
        v.mul_(b2).addcmul_(d, d, value=1 - b2)
        second = v if vhat is None else torch.maximum(vhat, v, out=vhat)
        x.addcdiv_(m, second.sqrt().add_(eps), value=lr)

    return step


def _eager_usual(problem: Problem, amsgrad: bool) -> Built:
    state, step = _start(problem, amsgrad), _formula(problem)
    return Built(lambda: step(problem.update, *state), lambda: state[0])


def _compiled(problem: Problem, amsgrad: bool) -> Built:
    state = _start(problem, amsgrad)
    run = compiled(_formula(problem), problem.update, *state)
    # Compiling ran it once: start over.
    for vector, fresh in zip(state, _start(problem, amsgrad), strict=True):
        vector.copy_(fresh)
    return Built(run, lambda: state[0])


def _numpy_in_place(problem: Problem, amsgrad: bool) -> Built:
    x, m, v, *vhat = (vector.numpy() for vector in _start(problem, amsgrad))
    d, scratch = problem.update.numpy(), np.empty(problem.size, np.float32)
    (b1, b2), lr, eps = problem.betas, problem.lr, problem.eps

    def step() -> None:
        np.multiply(m, b1, out=m)
        np.multiply(d, 1 - b1, out=scratch)
        np.add(m, scratch, out=m)
        np.multiply(v, b2, out=v)
        np.multiply(d, d, out=scratch)
        np.multiply(scratch, 1 - b2, out=scratch)
        np.add(v, scratch, out=v)
        second = np.maximum(vhat[0], v, out=vhat[0]) if vhat else v
        np.sqrt(second, out=scratch)
        np.add(scratch, eps, out=scratch)
        np.divide(m, scratch, out=scratch)
        np.multiply(scratch, lr, out=scratch)
        np.add(x, scratch, out=x)

    return Built(step, lambda: torch.from_numpy(x))


def _flower(problem: Problem, amsgrad: bool) -> Built:
    """The form of ``aggregate_fit`` in Flower's FedAdam strategy: one list comprehension per line of the paper.

    It favours the peer three times: the update is given (Flower subtracts two models first), the learning rate is a
    Python float (Flower's NumPy scalar turns everything into float64), and no round trip through bytes is timed.
    """
    held = [[p.numpy() for p in problem.layers(vector)] for vector in _start(problem, amsgrad)]
    delta = [p.numpy() for p in problem.layers(problem.update)]
    (b1, b2), eta, tau = problem.betas, problem.lr, problem.eps

    def step() -> None:
        weights, m_t, v_t = held[:3]
        m_t = [np.multiply(b1, m) + (1 - b1) * d for m, d in zip(m_t, delta, strict=True)]
        v_t = [b2 * v + (1 - b2) * np.multiply(d, d) for v, d in zip(v_t, delta, strict=True)]
        top = [np.maximum(old, v) for old, v in zip(held[3], v_t, strict=True)] if amsgrad else v_t
        weights = [w + eta * m / (np.sqrt(s) + tau) for w, m, s in zip(weights, m_t, top, strict=True)]
        held[:] = [weights, m_t, v_t, top] if amsgrad else [weights, m_t, v_t]

    return Built(step, lambda: torch.from_numpy(np.concatenate([w.ravel() for w in held[0]])))
