"""Runs that go on together in one process, so that their clients train in stacks that the runs share.

A run is a generator. It rests when its next update must be trained first. When all rest, their stacks are trained, and
each goes on. A run that trains its clients one by one never rests: it goes on to its end before the next one begins.
"""

from __future__ import annotations

from collections.abc import Generator, Hashable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch

from fastagg._build import native
from fastagg.sim.engines.stacks import Stacks

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")
# A run: each rest yields the bytes that it holds.
Running = Generator[int, None, Value]

MOST = 16  # runs at once: beyond it stacks are full, and more runs only take memory
MEMORY = 2**30  # bytes of data and servers, beyond which no further run begins


def rounds_alike(threads: int) -> bool:
    """Whether a matrix product has the same bits in every stack: torch's BLAS on Intel, with one thread, was tested.

    With more threads, and in what it does for other vendors, a product may round by how many matrices there are.
    """
    return threads == 1 and native.processor()[0] == "GenuineIntel" and torch.backends.mkl.is_available()


def together(runs: Iterator[tuple[Key, Running[Value]]], stacks: Stacks, threads: int) -> Iterator[tuple[Key, Value]]:
    """Drive ``runs`` to their ends, and yield what each returns. A run begins where there is room for it.

    ``threads`` are torch's, meanwhile. Where products do not round alike in every stack, runs go on one after the
    other, as if alone. What a run raises ends all of them.
    """
    most = MOST if rounds_alike(threads) else 1
    active: dict[Key, Running[Value]] = {}
    held: dict[Key, int] = {}
    with torch_threads(threads):
        try:
            while True:
                while len(active) < most and sum(held.values()) + max(held.values(), default=0) <= MEMORY:
                    if (new := next(runs, None)) is None:
                        break
                    active[new[0]] = new[1]
                    yield from _advanced(new[0], active, held)
                if not active:
                    return
                stacks.train()
                for key in list(active):
                    yield from _advanced(key, active, held)
        finally:
            for run in active.values():
                run.close()


def _advanced(key: Key, active: dict[Key, Running[Value]], held: dict[Key, int]) -> Iterator[tuple[Key, Value]]:
    try:
        held[key] = next(active[key])
    except StopIteration as end:
        del active[key]
        held.pop(key, None)
        yield key, end.value


def alone(run: Running[Value], stacks: Stacks, threads: int) -> Value:
    """Drive one run to its end, and return what it returns."""
    ((_, value),) = together(iter([("", run)]), stacks, threads)
    return value


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
