"""Measures the speed of this machine's memory with simple passes in their fastest known form. A share of 100% in
results means this speed.

A case that writes is compared with the fastest of copy, triad and in-place passes. Only bytes that the program reads
and writes are counted. A store to a line outside the caches first reads the line, unless the store bypasses the caches.
An optimizer step, like an in-place pass, writes lines that it has read. So the in-place pass is the limit of most
rules. A case that only reads is compared with the fastest pass of all, because on a GPU passes that also write are
faster than torch's sum. Vectors that fit in a cache have no share.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise

import torch
from problem import Problem, huge
from timing import Timings

from fastagg import get_num_threads, ops

Run = Callable[[], object]


@dataclass(frozen=True)
class Stream:
    """One streaming pass over long vectors, with its kind and the number of bytes per element."""

    kind: str  # copy | triad | read | in place
    run: Run
    counted: int


def streams(problem: Problem) -> dict[str, Stream]:
    """Return all streams at the problem's size, on three vectors of their own. Their results are checked here."""
    a, b, c = (huge(problem.size, problem.device).fill_(value) for value in (0.0, 1.0, 2.0))
    found = {
        "copy: torch copy_": Stream("copy", lambda: a.copy_(b), 8),
        "copy: past the caches": Stream("copy", lambda: ops.accumulate_(a, b, fresh=True), 8),
        "triad: torch add(out=)": Stream("triad", lambda: torch.add(b, c, alpha=0.5, out=a), 12),
        "triad: past the caches": Stream("triad", lambda: ops.step_(b, c, optimizer="sgd", lr=0.5, out=a), 12),
        "read: torch sum": Stream("read", b.sum, 4),
        "in place: torch mul_": Stream("in place", lambda: c.mul_(1.0), 8),
        "in place: torch add_": Stream("in place", lambda: a.add_(b, alpha=0.0), 12),
    }
    if problem.device.type == "cpu":
        threads = get_num_threads()
        pool = ThreadPoolExecutor(threads)
        found["copy: memcpy"] = Stream("copy", _memcpy(a, b, pool, threads), 8)
        found["read: fastagg inspect"] = Stream("read", lambda: ops.inspect(b), 4)
    else:  # in this form the host does not wait
        found["read: fastagg measure"] = Stream("read", lambda: ops.measure(b), 4)
    for name, stream in found.items():
        expected = {"copy": 1.0, "triad": 2.0}.get(stream.kind)
        if expected is not None:
            a.zero_()
            stream.run()
            if not bool((a == expected).all()):
                raise AssertionError(f"{name}: wrong result")
    return found


def speeds(timings: Timings, found: dict[str, Stream], size: int) -> dict[str, float]:
    """Return for each kind the bytes per second of the fastest stream, from its median time."""
    best: dict[str, float] = {}
    for name, stream in found.items():
        if name in timings.rounds:
            speed = stream.counted * size / timings.seconds(name).p50
            best[stream.kind] = max(speed, best.get(stream.kind, 0.0))
    return best


def _memcpy(target: torch.Tensor, source: torch.Tensor, pool: ThreadPoolExecutor, threads: int) -> Run:
    nbytes = source.numel() * 4
    edges = [nbytes * i // threads // 4096 * 4096 for i in range(threads)] + [nbytes]
    parts = [(target.data_ptr() + i, source.data_ptr() + i, j - i) for i, j in pairwise(edges)]

    def copy(part: tuple[int, int, int]) -> None:
        ctypes.memmove(*part)  # releases the GIL

    return lambda: list(pool.map(copy, parts))
