"""fastagg's own candidates for each operation: on a Server's memory (huge pages) and on a user's plain tensors."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import count

import torch
from problem import Allocate, Built, Candidate, Problem, huge, plain

from fastagg import ops
from fastagg.parts import moments

Build = Callable[[Problem, Allocate], Built]


def adaptive(optimizer: str) -> list[Candidate]:
    """The whole optimizer step on a given direction."""
    state = 1 + len(ops.OPTIMIZERS[optimizer])
    return [
        *_both(partial(_step, optimizer=optimizer), state),
        Candidate(
            "fastagg, right after a torch op",
            partial(_step, optimizer=optimizer, allocate=huge, after_torch=True),
            state + 1,
            note="torch's OpenMP threads are still spinning on the cores",
        ),
        Candidate(
            "fastagg, into a new version",
            partial(_step, optimizer=optimizer, allocate=huge, aside=True),
            state + 1,
            note="x is read and the next version written beside it, as when a client holds x",
        ),
    ]


def coded(optimizer: str) -> list[Candidate]:
    """The step with moments in 8 bits, and with fp32 ones. Both start from zeros, so their first steps agree."""
    owned = len(ops.OPTIMIZERS[optimizer])
    return [
        Candidate("fastagg", partial(_from_zeros, optimizer=optimizer, format="8bit"), 1 + owned / 4),
        Candidate(
            "fastagg, fp32 moments",
            partial(_from_zeros, optimizer=optimizer, format="fp32"),
            1 + owned,
            note=f"moves {12 + 8 * owned} bytes per parameter, not what the columns count",
        ),
    ]


def _from_zeros(problem: Problem, optimizer: str, format: str) -> Built:
    x, state = problem.vector("x", huge), moments.zeros(optimizer, format, problem.size)
    settings = {"lr": problem.lr, "betas": problem.betas, "eps": problem.eps, **state}
    steps = count()

    def run() -> None:
        rounding = {"rounding": (0, next(steps))} if format == "8bit" else {}
        ops.step_(x, problem.update, optimizer=optimizer, **settings, **rounding)

    return Built(run, lambda: x)


def updates(operation: str) -> list[Candidate]:
    """Buffering, applying, flushing, inspecting."""
    build, state = _UPDATES[operation]
    return _both(build, state)


def _both(build: Build, state: float) -> list[Candidate]:
    return [
        Candidate("fastagg", partial(build, allocate=huge), state, note="state in huge pages, as a Server keeps it"),
        Candidate("fastagg, plain tensors", partial(build, allocate=plain), state, note="state from torch.empty"),
    ]


def _step(
    problem: Problem, allocate: Allocate, optimizer: str, after_torch: bool = False, aside: bool = False
) -> Built:
    names = ops.OPTIMIZERS[optimizer]
    x, *vectors = problem.vectors(("x", *names), allocate)
    held = dict(zip(names, vectors, strict=True))
    out = allocate(problem.size) if aside else None

    settings = {"lr": problem.lr, "betas": problem.betas, "eps": problem.eps}

    def run() -> None:
        ops.step_(x, problem.update, optimizer=optimizer, out=out, **settings, **held)

    busy = torch.ones(1 << 20) if after_torch else None
    return Built(run, lambda: x if out is None else out, None if busy is None else lambda: busy.mul_(1.0))


def corrected(problem: Problem, optimizer: str) -> torch.Tensor:
    """The model after one step with Adam's bias correction in round 1, as torch.optim takes it."""
    names = ops.OPTIMIZERS[optimizer]
    x, *vectors = problem.vectors(("x", *names))
    held = dict(zip(names, vectors, strict=True))
    settings = {"lr": problem.lr, "betas": problem.betas, "eps": problem.eps}
    return ops.step_(x, problem.update, optimizer=optimizer, correction=1, **settings, **held)


def corrected_flush(problem: Problem) -> torch.Tensor:
    """The same from a full buffer."""
    x, m, v, vhat, acc = problem.vectors(("x", "m", "v", "vhat", "acc"))
    return ops.step_(
        x, problem.update, optimizer="amsgrad", lr=problem.lr, betas=problem.betas, eps=problem.eps, correction=1,
        m=m, v=v, vhat=vhat, acc=acc, scale=1.0 / problem.buffer_size,
    )  # fmt: skip


def _accumulate(problem: Problem, allocate: Allocate) -> Built:
    acc = problem.vector("acc", allocate)
    return Built(lambda: ops.accumulate_(acc, problem.update), lambda: acc)


def _apply(problem: Problem, allocate: Allocate) -> Built:
    x = problem.vector("x", allocate)
    return Built(lambda: ops.sgd_(x, problem.update, lr=problem.lr), lambda: x)


def _fedbuff_flush(problem: Problem, allocate: Allocate) -> Built:
    x, acc = problem.vectors(("x", "acc"), allocate)
    scale = 1.0 / problem.buffer_size
    return Built(lambda: ops.step_(x, problem.update, optimizer="sgd", lr=problem.lr, acc=acc, scale=scale), lambda: x)


def _fadas_flush(problem: Problem, allocate: Allocate) -> Built:
    x, m, v, vhat, acc = problem.vectors(("x", "m", "v", "vhat", "acc"), allocate)

    def run() -> None:
        ops.step_(
            x, problem.update, optimizer="amsgrad", lr=problem.lr, betas=problem.betas, eps=problem.eps,
            m=m, v=v, vhat=vhat, acc=acc, scale=1.0 / problem.buffer_size,
        )  # fmt: skip

    return Built(run, lambda: x)


def _inspect(problem: Problem, allocate: Allocate) -> Built:
    update, found = problem.vector("update", allocate), torch.zeros(1)

    def run() -> None:
        found[0] = ops.inspect(update).norm

    return Built(run, lambda: found)


def exact_norm(problem: Problem) -> torch.Tensor:
    """The update's norm, its squares added in float64."""
    return (
        torch.cat([piece.double().square().sum()[None] for piece in problem.update.split(1 << 24)]).sum()[None].sqrt()
    )


_UPDATES: dict[str, tuple[Build, float]] = {
    "accumulate": (_accumulate, 1),
    "apply": (_apply, 1),
    "fedbuff flush": (_fedbuff_flush, 2),
    "fadas flush": (_fadas_flush, 5),
    "inspect": (_inspect, 1),
}
