"""The kernels without the Python around them: python bench/kernels.py --sizes 1e4 1e5 1e6 --threads 1 2

The structs of a step are made once, as a server may hold them, and what is timed is one native call: beside the
plainest C++ loop of the same formula, called through prepared arguments too, and beside torch's `add_` where it does
the same.
Interleaved as bench/README.md says. Two-thread plain loops start a thread for each call and are compared from a million
parameters on. AMSGrad's last column is its own time on one thread over its time on all.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))

import torch
from peers.plain import WORTH_THREADS, plain_loop
from problem import Problem, huge
from timing import Timings, interleave

import fastagg
from fastagg import tuning
from fastagg._build import native

Run = Callable[[], object]
KEY = native.RandomKey(seed=1, step=2, client=3)


def main() -> int:
    """Print a table for each thread count."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=lambda text: int(float(text)), nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, fastagg.get_num_threads()])
    parser.add_argument("--rounds", type=int, default=31)
    given = parser.parse_args()
    print(f"{tuning.processor()}; {tuning.source()}; torch {torch.__version__}\n")
    alone: dict[int, float] = {}
    for threads in given.threads:
        fastagg.set_num_threads(threads)
        torch.set_num_threads(threads)
        print(f"Threads: {threads}. Time of the native call; the plain loop's over it; add_'s over it\n")
        print("| step | " + " | ".join(f"{size:,}" for size in given.sizes) + " |")
        print("|---|" + "---|" * len(given.sizes))
        for name in STEPS:
            cells = [cell(name, size, threads, given.rounds, alone) for size in given.sizes]
            print(f"| {name} | " + " | ".join(cells) + " |", flush=True)
        print()
    return 0


def cell(name: str, size: int, threads: int, rounds: int, alone: dict[int, float]) -> str:
    """One step at one size: microseconds, and the ratios (p20 to p80)."""
    problem = Problem(size)
    runs: dict[str, Run] = {"ours": STEPS[name](problem)}
    peer = plain_loop(name)
    if peer and (threads == 1 or size >= WORTH_THREADS):
        runs["plain"] = peer[0].build(problem).run
    if name in ("accumulate", "apply"):
        x, u = problem.vector("x", huge), problem.update
        runs["add_"] = (lambda: x.add_(u)) if name == "accumulate" else (lambda: x.add_(u, alpha=1e-3))
    found = interleave(runs, rounds=rounds)
    seconds = found.seconds("ours").p50
    parts = [f"{1e6 * seconds:.1f} µs", *(_ratio(found, other) for other in runs if other != "ours")]
    if name == "amsgrad":
        if threads == 1:
            alone[size] = seconds
        elif size in alone:
            parts.append(f"{alone[size] / seconds:.2f} of one thread's speed")
    return "; ".join(parts)


def _ratio(found: Timings, other: str) -> str:
    low, middle, high = found.ratio(other, "ours")
    return f"{other} {middle:.2f} ({low:.2f} to {high:.2f})"


def _step(problem: Problem, direction: object, x: torch.Tensor, kind: str, *moments: torch.Tensor) -> Run:
    update = native.Update([(problem.update.data_ptr(), problem.size, 0)])
    hyper = native.Hyper(lr=problem.lr, beta1=problem.betas[0], beta2=problem.betas[1], eps=problem.eps)
    held = native.Moments(
        **{name: vector.data_ptr() for name, vector in zip(("m", "v", "vhat"), moments, strict=False)}
    )
    optimizer = native.Optimizer(kind=kind, hyper=hyper, moments=held, x=x.data_ptr(), x_out=x.data_ptr())
    kept = (problem.update, x, moments)  # their addresses are in the structs

    def run() -> object:
        return native.step(update, direction, optimizer), kept

    return run


def _adaptive(problem: Problem) -> Run:
    return _step(problem, native.Direction.single(), problem.vector("x", huge), "amsgrad", *_moments(problem))


def _moments(problem: Problem) -> list[torch.Tensor]:
    return problem.vectors(("m", "v", "vhat"), huge)


def _fadas(problem: Problem) -> Run:
    acc = problem.vector("acc", huge)
    along = native.Direction.flush(buffer=native.Buffer(acc=acc.data_ptr(), scale=0.2))
    return _keeping(acc, _step(problem, along, problem.vector("x", huge), "amsgrad", *_moments(problem)))


def _flush(problem: Problem) -> Run:
    acc = problem.vector("acc", huge)
    along = native.Direction.flush(buffer=native.Buffer(acc=acc.data_ptr(), scale=0.2))
    return _keeping(acc, _step(problem, along, problem.vector("x", huge), "sgd"))


def _apply(problem: Problem) -> Run:
    return _step(problem, native.Direction.single(), problem.vector("x", huge), "sgd")


def _mixing(problem: Problem) -> Run:
    base = problem.vector("base", huge)
    along = native.Direction.blend(base=base.data_ptr(), weight=0.5)
    return _keeping(base, _step(problem, along, problem.vector("x", huge), "sgd"))


def _accumulate(problem: Problem) -> Run:
    acc, u = problem.vector("acc", huge), problem.update
    update, at = native.Update([(u.data_ptr(), problem.size, 0)]), acc.data_ptr()
    return _keeping((acc, u), lambda: native.accumulate(update, acc=at, weight=1.0, out=at))


def _ace(problem: Problem) -> Run:
    cache, total = fastagg.ClientCache(problem.size, 1), huge(problem.size).zero_()
    cache.data.zero_()
    row = native.Exchange(key=KEY, rows=cache.native, read=0, write=0)
    along = native.Direction.mean(row=row, sum=native.Sum(values=total.data_ptr(), scale=-0.25))
    return _keeping((cache, total), _step(problem, along, problem.vector("x", huge), "sgd"))


def _distances(problem: Problem) -> Run:
    x, base, u = problem.vector("x", huge), problem.vector("base", huge), problem.update
    update = native.Update([(u.data_ptr(), problem.size, 0)])
    at, against = x.data_ptr(), base.data_ptr()
    return _keeping((x, base, u), lambda: native.distances(update, x=at, base=against, inner=False))


def _inspect(problem: Problem) -> Run:
    u = problem.update
    update = native.Update([(u.data_ptr(), problem.size, 0)])
    return _keeping(u, lambda: native.sum_squares(update))


def _keeping(held: object, run: Run) -> Run:
    def kept() -> object:
        return run()

    kept.held = held  # type: ignore[attr-defined]
    return kept


STEPS: dict[str, Callable[[Problem], Run]] = {
    "amsgrad": _adaptive,
    "fadas flush": _fadas,
    "accumulate": _accumulate,
    "apply": _apply,
    "fedbuff flush": _flush,
    "mixing": _mixing,
    "ace fp32": _ace,
    "distances": _distances,
    "inspect": _inspect,
}


if __name__ == "__main__":
    sys.exit(main())
