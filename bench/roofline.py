"""What this machine's memory gives to the simplest passes, each in the best form we know: the 100% of a report.

The roofline is the better of copy and triad, in bytes counted the STREAM way: what the program names, 8 and 12 bytes
per element. A store to a line that is not in a cache reads it first unless the store bypasses the caches, so what
really moves can be 12 and 16 bytes; each row says which. An optimizer step rewrites what it has read, so it moves
exactly what is counted, and can pass a copy that reads its destination: the in-place rows (`scale`, `add`) are the
stricter mark, and the report shows both.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from timing import Timings

from fastagg import get_num_threads, ops
from fastagg.storage import memory

Run = Callable[[], object]


@dataclass(frozen=True)
class Stream:
    """One streaming pass: its kind, the bytes per element it names, and the bytes that it really moves."""

    kind: str  # copy | triad | read | in place
    run: Run
    counted: int
    moved: int
    note: str = ""


def streams(size: int, threads: int | None = None) -> dict[str, Stream]:
    """All candidates at ``size`` fp32 elements, on three vectors of their own in huge pages and three in plain memory.

    Their results are checked here.
    """
    threads = threads or get_num_threads()
    a, b, c = (memory.zeros(size).add_(value) for value in (0.0, 1.0, 2.0))
    pa, pb = torch.zeros(size), torch.ones(size)
    na, nb = a.numpy(), b.numpy()
    pool = ThreadPoolExecutor(threads)
    found = {
        "copy: torch copy_": Stream("copy", lambda: a.copy_(b), 8, 12),
        "copy: torch copy_, plain memory": Stream("copy", lambda: pa.copy_(pb), 8, 12, "no huge pages"),
        "copy: NumPy copyto": Stream("copy", lambda: np.copyto(na, nb), 8, 12, "one thread"),
        "copy: memcpy": Stream("copy", _memcpy(a, b, pool, threads), 8, 8, f"libc's, on {threads} threads"),
        "copy: past the caches": Stream("copy", lambda: ops.gather(b, a), 8, 8, "fastagg.ops.gather"),
        "triad: torch add(out=)": Stream("triad", lambda: torch.add(b, c, alpha=0.5, out=a), 12, 16),
        "triad: past the caches": Stream(
            "triad", lambda: ops.step_(b, c, optimizer="sgd", lr=0.5, out=a), 12, 12, "fastagg.ops.step_(out=)"
        ),
        "read: torch sum": Stream("read", b.sum, 4, 4),
        "read: fastagg inspect": Stream("read", lambda: ops.inspect(b), 4, 4),
        "in place: torch mul_": Stream("in place", lambda: c.mul_(1.0), 8, 8, "one vector read and rewritten"),
        "in place: torch add_": Stream("in place", lambda: a.add_(b, alpha=0.0), 12, 12, "two read, one rewritten"),
    }
    for name, stream in found.items():
        expected = {"copy": 1.0, "triad": 2.0}.get(stream.kind)
        target = pa if "plain" in name else a
        if expected is not None:
            target.zero_()
            stream.run()
            if not bool((target == expected).all()):
                raise AssertionError(f"{name}: wrong result")
    return found


def best(timings: Timings, found: dict[str, Stream], size: int, kinds: tuple[str, ...]) -> tuple[str, float]:
    """The fastest stream of these kinds, and its counted bytes per second (at its median)."""
    speeds = {
        name: stream.counted * size / timings.seconds(name).p50
        for name, stream in found.items()
        if stream.kind in kinds and name in timings.rounds
    }
    name = max(speeds, key=speeds.__getitem__)
    return name, speeds[name]


def _memcpy(target: torch.Tensor, source: torch.Tensor, pool: ThreadPoolExecutor, threads: int) -> Run:
    nbytes = source.numel() * 4
    edges = [nbytes * i // threads // 4096 * 4096 for i in range(threads)] + [nbytes]
    parts = [(target.data_ptr() + i, source.data_ptr() + i, j - i) for i, j in pairwise(edges)]

    def copy(part: tuple[int, int, int]) -> None:
        ctypes.memmove(*part)  # releases the GIL

    return lambda: list(pool.map(copy, parts))
