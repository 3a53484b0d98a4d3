"""The yardstick: each formula's plainest C++ loop (`plain.cpp`), vectorised by the system's compiler for this machine.

It shows the speed of a plain loop, which fastagg's kernels must beat to be worth their code. Its state is in huge pages
like fastagg's, so that loops are compared, not pages. All other peers allocate memory in their own way.
"""

from __future__ import annotations

import ctypes
import os
import platform
import subprocess
import tempfile
from collections.abc import Callable
from functools import cache, partial
from itertools import cycle
from pathlib import Path

import torch
from problem import Built, Candidate, Problem, Skip, huge
from torch import Tensor

import fastagg
from peers.rows import grid, whole

SOURCE = Path(__file__).with_suffix(".cpp")
NAME = "plain C++ loop"
FLAGS = ("-O3", "-march=native", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math", "-fopenmp-simd")
ON_X86 = ("-mprefer-vector-width=256",)
CLIENTS = 4  # rows that take turns, as in fastagg's candidates
WORTH_THREADS = 1_000_000  # below this size starting a thread takes longer than the loop
Run = Callable[[], object]
Build = Callable[[Problem], Built]


def plain_loop(operation: str) -> list[Candidate]:
    """Return the loop of one case, if it has one. It goes to the end of the case's list of peers."""
    if operation not in _BUILDS:
        return []
    build, vectors = _BUILDS[operation]
    note = "state in huge pages, as fastagg's; a second thread is started for each call"
    return [Candidate(NAME, partial(_checked, build), vectors, note=note, devices=("cpu",))]


def flags() -> tuple[str, ...]:
    """Return the compiler's flags on this machine."""
    return FLAGS + (ON_X86 if platform.machine() in ("x86_64", "AMD64") else ())


@cache
def library() -> ctypes.CDLL:
    """Return the loops, which are compiled at the first use.

    Raises:
        Skip: there is no C++ compiler, or it failed.
    """
    compiler = os.environ.get("CXX", "c++")
    try:
        with tempfile.TemporaryDirectory() as folder:
            made = f"{folder}/plain.so"
            command = [compiler, *flags(), "-shared", "-fPIC", "-pthread", str(SOURCE), "-o", made]
            subprocess.run(command, capture_output=True, check=True)
            return ctypes.CDLL(made)
    except subprocess.CalledProcessError as error:
        raise Skip(f"{compiler} failed: {error.stderr.decode(errors='replace').strip()[:120]}") from error
    except OSError as error:
        raise Skip(f"no C++ compiler, or no place for what it makes: {error}") from error


def _checked(build: Build, problem: Problem) -> Built:
    if fastagg.get_num_threads() > 1 and problem.size < WORTH_THREADS:
        raise Skip(f"starting a thread costs more than the loop below {WORTH_THREADS:,} parameters; see 1 thread")
    return build(problem)


class _Settings(ctypes.Structure):
    _fields_ = [(name, ctypes.c_float) for name in ("b1", "b2", "lr", "eps", "scale")]


class _Call(ctypes.Structure):
    """The same struct as in plain.cpp."""

    held: tuple[Tensor, ...]  # the tensors with these addresses

    _fields_ = (
        ("v", ctypes.c_void_p * 6),
        ("s", _Settings),
        ("n", ctypes.c_long),
        ("threads", ctypes.c_long),
        ("found", ctypes.c_double * 2),
    )


def _prepared(name: str, problem: Problem, *vectors: Tensor, scale: float = 1.0) -> tuple[Run, _Call]:
    """Return the call with its only argument prepared. It costs some hundred nanoseconds for every loop."""
    call = _Call(n=problem.size, threads=fastagg.get_num_threads())
    call.v[: len(vectors)] = [vector.data_ptr() for vector in vectors]
    call.s = _Settings(*problem.betas, problem.lr, problem.eps, scale)
    call.held = vectors
    function = getattr(library(), f"call_{name}")
    function.restype = None
    return partial(function, ctypes.byref(call)), call


def _in_place(name: str, *kinds: str, mean: bool = False) -> Build:
    """Return loops that change their first vector. The update is always the second one."""

    def build(problem: Problem) -> Built:
        target, *others = problem.vectors(kinds, huge)
        scale = 1.0 / problem.buffer_size if mean else 1.0
        run, _ = _prepared(name, problem, target, problem.update, *others, scale=scale)
        return Built(run, lambda: target)

    return build


def _ace(problem: Problem) -> Built:
    x, update = problem.vector("x", huge), grid(problem, "fp32")
    total, *rows = (problem.zeros() for _ in range(1 + CLIENTS))
    runs = [_prepared("ace_fp32", problem, x, update, row, total, scale=1.0 / CLIENTS)[0] for row in rows]
    return Built(_in_turn(runs), lambda: x[: whole(problem.size)])


def _ca2fl_arrival(problem: Problem) -> Built:
    acc, update = problem.vector("acc", huge), grid(problem, "fp32")
    rows = [problem.zeros() for _ in range(CLIENTS)]
    pairs = zip(rows, rows[1:] + rows[:1], strict=True)
    return Built(_in_turn([_prepared("ca2fl_arrival", problem, acc, update, *pair)[0] for pair in pairs]), lambda: acc)


def _in_turn(runs: list[Run]) -> Run:
    """Use another client in each call, as fastagg's candidate does. So both find the same data in a cache."""
    turn = cycle(runs)
    return lambda: next(turn)()


def _norms(name: str, *kinds: str) -> Build:
    """Return loops that only read. They return the roots of their sums, in fp64."""

    def build(problem: Problem) -> Built:
        run, call = _prepared(name, problem, *problem.vectors(kinds, huge))
        count = 1 if name == "inspect" else 2
        return Built(run, lambda: torch.tensor(call.found[:count]).sqrt())

    return build


# Each entry has the loop and the number of vectors of length d that it holds.
_BUILDS: dict[str, tuple[Build, float]] = {
    "amsgrad": (_in_place("amsgrad", "x", "m", "v", "vhat"), 4),
    "adam": (_in_place("adam", "x", "m", "v"), 3),
    "accumulate": (_in_place("accumulate", "acc"), 1),
    "apply": (_in_place("apply", "x"), 1),
    "fedbuff flush": (_in_place("fedbuff_flush", "x", "acc", mean=True), 2),
    "fadas flush": (_in_place("fadas_flush", "x", "m", "v", "vhat", "acc", mean=True), 5),
    "inspect": (_norms("inspect", "update"), 1),
    "ace fp32": (_ace, 3 + CLIENTS),
    "ca2fl arrival": (_ca2fl_arrival, 2 + CLIENTS),
    "distances": (_norms("distances", "x", "update", "base"), 3),
    "mixing": (_in_place("mixing", "x", "base"), 2),
}
