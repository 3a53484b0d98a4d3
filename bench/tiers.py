"""Rows on a disk beside rows in memory (ACE). Give it a folder on the disk that is to be measured, and run it alone:

    python bench/tiers.py FOLDER [--parameters 1e6] [--clients 1000 10000] [--format int8] [--memory 2GB]

Three kinds of arrivals take turns: rows in memory; on the disk, fetched while their clients train; on the disk,
answered at once, so that the row must be waited for. The medians of `receive` are printed. Every client answers once
at first, so the file has a row for each.

Other processes may take the processor away from an arrival. The last column says of how many of the slowest hundredth
they did, on the disk and in memory. `chrt -f 10 python bench/tiers.py FOLDER` keeps them from it.
"""

from __future__ import annotations

import argparse
import mmap
import os
import random
import resource
import shutil
import statistics
import time
from collections import deque
from pathlib import Path
from typing import Any

import torch

import fastagg
from fastagg._build import native
from fastagg.facts import facts
from fastagg.timing import Stopwatch, seconds

AHEAD = 8  # clients that train at a time
IN_MEMORY = 500  # clients of the server in memory


def interruptions() -> int:
    """How often this thread had to leave its core to another one."""
    return resource.getrusage(getattr(resource, "RUSAGE_THREAD", resource.RUSAGE_SELF)).ru_nivcsw


class Times:
    """Seconds of arrivals, and whether each was interrupted."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.interrupted: list[bool] = []

    def receive(self, server: fastagg.Server, client: int, update: torch.Tensor) -> None:
        before = interruptions()
        self.seconds.append(seconds(lambda: server.receive(client, update)))
        self.interrupted.append(interruptions() > before)

    def tail(self) -> float:
        """p99.9 over p50."""
        return quantile(self.seconds, 0.999) / statistics.median(self.seconds)

    def slowest(self) -> str:
        """How many of the slowest hundredth were interrupted."""
        both = sorted(zip(self.seconds, self.interrupted, strict=True), reverse=True)[: len(self.seconds) // 100]
        return f"{sum(interrupted for _, interrupted in both)} of {len(both)}"


def disk_speed(path: Path, chunk: int) -> float:
    """Bytes a second that the disk reads, in pieces of a row, past the page cache."""
    file = os.open(path, os.O_RDONLY | getattr(os, "O_DIRECT", 0))
    try:
        buffer = mmap.mmap(-1, chunk)
        places = list(range(os.fstat(file).st_size // chunk))
        random.Random(1).shuffle(places)
        watch, count = Stopwatch(), 0
        while watch.total < 2.0:
            os.preadv(file, [buffer], places[count % len(places)] * chunk)
            count += 1
        return count * chunk / watch.total
    finally:
        os.close(file)


def quantile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def warmed_up(server: fastagg.Server, clients: int, updates: list[torch.Tensor]) -> float:
    watch = Stopwatch()
    for client in range(clients):
        server.dispatch(client)
        server.receive(client, updates[client % len(updates)])
    return watch.total


def measure(folder: Path, clients: int, given: argparse.Namespace) -> None:
    size = given.parameters
    draw = random.Random(0)
    updates = [torch.randn(size) for _ in range(4)]
    shutil.rmtree(folder, ignore_errors=True)
    cache: Any = fastagg.Tiered(given.format, memory=given.memory, path=folder)
    tiered = fastagg.ACE(torch.zeros(size), lr=1e-3, num_clients=clients, cache=cache)
    plain = fastagg.ACE(torch.zeros(size), lr=1e-3, num_clients=IN_MEMORY, cache=given.format)
    took = warmed_up(tiered, clients, updates)
    warmed_up(plain, IN_MEMORY, updates)
    on_disk = tiered.tiers()["on_disk"]
    before = tiered.tiers()
    training: deque[int] = deque()
    asked = set()
    for _ in range(AHEAD):
        client = draw.randrange(clients)
        while client in asked:
            client = draw.randrange(clients)
        asked.add(client)
        training.append(client)
        tiered.dispatch(client)
    times = {"memory": Times(), "ahead": Times(), "at once": Times()}
    for turn in range(given.arrivals):
        time.sleep(given.pause)  # clients do not answer without a break
        client = turn * 17 % IN_MEMORY
        plain.dispatch(client)
        times["memory"].receive(plain, client, updates[turn % 4])
        client = training.popleft()
        times["ahead"].receive(tiered, client, updates[turn % 4])
        asked.discard(client)
        while (fresh := draw.randrange(clients)) in asked:
            pass
        asked.add(fresh)
        training.append(fresh)
        tiered.dispatch(fresh)
        if turn % 4 == 0:
            while (now := draw.randrange(clients)) in asked:
                pass
            tiered.dispatch(now)
            times["at once"].receive(tiered, now, updates[turn % 4])
    counts = {key: value - before[key] for key, value in tiered.tiers().items()}
    stride = native.engine.Tiers.stride(given.format, size)
    speed = disk_speed(folder / "rows.bin", stride)
    middle = {name: statistics.median(found.seconds) for name, found in times.items()}
    allowed = middle["memory"] + stride / speed + 1e-3
    print(
        f"| {clients:,} | {on_disk / 1e9:.1f} | {middle['memory'] * 1e3:.2f} | {middle['ahead'] * 1e3:.2f} "
        f"| {middle['ahead'] / middle['memory']:.2f} | {middle['at once'] * 1e3:.2f} ({allowed * 1e3:.2f}) "
        f"| {times['ahead'].tail():.1f} | {times['memory'].tail():.1f} "
        f"| {counts['ahead']} / {counts['late']} / {counts['cold']} | {speed / 1e9:.2f} | {took:.0f} "
        f"| {times['ahead'].slowest()}, {times['memory'].slowest()} |",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--parameters", type=lambda text: int(float(text)), default=1_000_000)
    parser.add_argument("--clients", type=lambda text: int(float(text)), nargs="+", default=[1000, 10_000])
    parser.add_argument("--format", default="int8")
    parser.add_argument("--memory", default="2GB")
    parser.add_argument("--arrivals", type=int, default=2000, help="p99.9 is the slowest of a thousand")
    parser.add_argument("--pause", type=float, default=0.004, help="seconds before every arrival")
    given = parser.parse_args()
    print(f"{facts()['processor']}, {given.parameters:,} parameters, {given.format} rows, {given.memory} for rows\n")
    print(
        "| clients | GB on disk | in memory, ms | fetched ahead, ms | ratio | answered at once, ms (bar) "
        "| p99.9 over p50 | in memory | ahead / late / cold | disk, GB/s | warm-up, s | interrupted |\n"
        + "|---:" * 12
        + "|"
    )
    folder = given.folder / "fastagg-tiers"
    try:
        for clients in given.clients:
            measure(folder, clients, given)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
