"""ACE's rows on the disk of TMPDIR beside rows in memory: fetched while their clients train, or waited for.

Every client answers once at first, so the file has a row for each. Other processes may take the processor away from an
update; ``interrupted`` says of which share of the slowest hundredth they did (``chrt -f 10`` keeps them from it).
"""

from __future__ import annotations

import mmap
import os
import random
import resource
import shutil
import statistics
import tempfile
import time
from functools import partial
from pathlib import Path

import torch
from problem import Built, Candidate, Case, Problem, Skip
from timing import seconds

import fastagg
from fastagg._build import native

AHEAD, IN_MEMORY, PAUSE = 8, 500, 0.004  # clients in training; those of the server in memory; seconds before an update


def interruptions() -> int:
    """How often this thread had to leave its core to another one."""
    return resource.getrusage(getattr(resource, "RUSAGE_THREAD", resource.RUSAGE_SELF)).ru_nivcsw


def _served(problem: Problem, clients: int, format: str, ahead: int | None) -> Built:
    """``ahead``: how many clients train at a time, of rows on a disk; None: rows in memory."""
    folder = tempfile.TemporaryDirectory(prefix="fastagg-bench-")
    if clients * native.engine.RowFile.stride(format, problem.size) > 0.9 * shutil.disk_usage(folder.name).free:
        raise Skip("its rows need more room than TMPDIR has")
    clients = min(clients, IN_MEMORY) if ahead is None else clients
    cache = format if ahead is None else fastagg.Tiered(format, path=folder.name)
    server = fastagg.ACE(torch.zeros(problem.size), lr=1e-3, num_clients=clients, cache=cache)
    updates, draw = [torch.randn(problem.size) for _ in range(4)], random.Random(0)
    for client in range(clients):
        server.dispatch(client)
        server.receive(client, updates[client % 4])
    training: list[int] = []
    found: list[tuple[float, bool]] = []

    def dispatched() -> int:
        client = next(one for one in iter(lambda: draw.randrange(clients), None) if one not in training)
        server.dispatch(client)
        return client

    def run() -> float:
        time.sleep(PAUSE)  # clients do not answer without a break
        while len(training) <= (ahead or 0):
            training.append(dispatched())
        client, before = training.pop(0), interruptions()
        took = seconds(lambda: server.receive(client, updates[client % 4]))
        found.append((took, interruptions() > before))
        return took

    def told() -> dict[str, float]:
        slowest = sorted(found, reverse=True)[: -(-len(found) // 100)]
        middle = statistics.median(took for took, _ in found)
        one = slowest[min(len(found) // 1000, len(slowest) - 1)][0]
        return {
            "slowest of a thousand over the median": one / middle,
            "interrupted": sum(one for _, one in slowest) / len(slowest),
        }

    def close() -> None:
        server.close()
        folder.cleanup()

    return Built(run, None, told=told, close=close)


def _disk(problem: Problem, format: str) -> Built:
    """A read of a row's bytes, past the page cache."""
    folder = tempfile.TemporaryDirectory(prefix="fastagg-bench-")
    row = native.engine.RowFile.stride(format, problem.size)
    path, buffer = Path(folder.name) / "rows", mmap.mmap(-1, row)
    with open(path, "wb") as out:
        for _ in range(64):
            out.write(os.urandom(row))
        os.fsync(out.fileno())
    file, places = os.open(path, os.O_RDONLY | getattr(os, "O_DIRECT", 0)), random.Random(1)

    def read() -> float:
        return seconds(lambda: os.preadv(file, [buffer], places.randrange(64) * row))

    return Built(read, None, close=lambda: (os.close(file), folder.cleanup()))


def _candidates(clients: int, format: str) -> list[Candidate]:
    made = {"fastagg": None, "fastagg, fetched in time": AHEAD, "fastagg, waited for": 0}
    return [
        *(
            Candidate(name, partial(_served, clients=clients, format=format, ahead=ahead), 8)
            for name, ahead in made.items()
        ),
        Candidate("one read of the disk", partial(_disk, format=format), 1),
    ]


CASES = [
    Case(f"rows on a disk, {clients:,} clients, {format}", 0, partial(_candidates, clients, format), "disk",
         (1_000_000,), devices=("cpu",), told=True)
    for clients, format in ((1_000, "int8"), (10_000, "int8"), (30_000, "int8"), (60_000, "int8"), (100_000, "int4"))
]  # fmt: skip
