"""A server with a folder, on the disk of TMPDIR: acknowledgements beside one fdatasync, many threads, the longest wait
during a checkpoint, recovery, and a streamed upload."""

from __future__ import annotations

import os
import shutil
import statistics
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from problem import Built, Candidate, Case, Problem
from timing import seconds

import fastagg
from cases.arrival import in_turn
from fastagg._build import native
from fastagg.durable.disk import Disk
from fastagg.durable.opening import open_on

CLIENTS, THREADS = 10, 64  # clients that answer in turn; those with a thread each
ALLOCATED = 16  # records in the raw file, which is written once before, as reused segments are
LOG, GIGABYTE = 250, 250_000_000  # records of a million parameters, and parameters, that take 1 GB
Make = Callable[[int], fastagg.Server]
RULES: dict[str, Make] = {
    "FADAS": lambda size: fastagg.FADAS(torch.zeros(size), lr=0.01, buffer_size=5),
    "FedBuff": lambda size: fastagg.FedBuff(torch.zeros(size), buffer_size=10),
    "ACE int8": lambda size: fastagg.ACE(
        torch.zeros(size), lr=0.1, num_clients=THREADS, cache="int8", warmup="partial"
    ),
}


def scratch() -> TemporaryDirectory[str]:
    """Return a new folder on the disk that is measured."""
    return TemporaryDirectory(prefix="fastagg-bench-")


def opened(
    make: Make, size: int, durability: Any = "arrival", **more: int
) -> tuple[fastagg.Server, Callable[[], None]]:
    """Return a server with a folder, and what ends both."""
    folder = scratch()
    server = open_on(Disk(Path(folder.name) / "own", create=True), lambda: make(size), durability, **more)

    def close() -> None:
        server.close()
        folder.cleanup()

    return server, close


def _answered(problem: Problem, make: Make, durability: str = "") -> Built:
    """One client at a time; ``waited`` is the part of a receive that waits for the disk."""
    server, close = opened(make, problem.size, durability) if durability else (make(problem.size), bool)
    client, waits = [-1], list[float]()

    def before() -> None:
        client[0] = (client[0] + 1) % CLIENTS
        server.dispatch(client[0])

    def run() -> None:
        waited = native.log.Journal.waited()
        server.receive(client[0], problem.update)
        waits.append(native.log.Journal.waited() - waited)

    told = (lambda: {"waited": statistics.median(waits)}) if durability else dict
    return Built(run, lambda: server.flat, before, warm=CLIENTS, told=told, close=close)


def _raw(problem: Problem, make: Make, times: int = 1) -> Built:
    """One write of a record's bytes with its fdatasync, or several one after the other."""
    server, close = opened(make, problem.size)
    for client in (0, 0):
        begun = server._log.journal.written
        server.dispatch(client)
        server.receive(client, problem.update)
    record = server._log.journal.written - begun
    close()
    folder, data = scratch(), os.urandom(record)
    file, room = os.open(Path(folder.name) / "raw", os.O_RDWR | os.O_CREAT), -(-record // 4096) * 4096
    for place in range(ALLOCATED):
        os.pwrite(file, data, place * room)
    os.fsync(file)

    def write(place: int) -> None:
        os.pwrite(file, data, place * room)
        getattr(os, "fdatasync", os.fsync)(file)

    told = lambda: {"bytes a parameter": record / problem.size}  # noqa: E731
    return Built(in_turn(write, ALLOCATED, times), None, told=told, close=lambda: (os.close(file), folder.cleanup()))


def _crowd(problem: Problem, make: Make) -> Built:
    """Every client has a thread and answers twice."""
    server, close = opened(make, problem.size)
    groups = []

    def client(number: int) -> None:
        for _ in range(2):
            server.dispatch(number)
            server.receive(number, problem.update)

    def run() -> None:
        before = server._log.journal.groups
        threads = [threading.Thread(target=client, args=(number,)) for number in range(THREADS)]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
        groups.append(server._log.journal.groups - before)

    return Built(run, None, told=lambda: {"answers a group": 2 * THREADS / statistics.median(groups)}, close=close)


def _longest(problem: Problem, stalls: bool) -> Built:
    """The longest of the receives during a checkpoint; or of as many as there are clients, without one."""
    clients = 200

    def make(size: int) -> fastagg.Server:
        return fastagg.ACE(torch.zeros(size), lr=0.1, num_clients=clients, cache="int8")

    server, close = opened(make, problem.size, "none", checkpoint_every=1 << 60)
    middles = []

    def one(number: int) -> float:
        server.dispatch(number % clients)
        return seconds(lambda: server.receive(number % clients, problem.update))

    def run() -> float:
        server.flush()
        thread = threading.Thread(target=server.checkpoint)
        if stalls:
            thread.start()
        found = [one(0)]
        while thread.is_alive() if stalls else len(found) < clients:
            found.append(one(len(found)))
        if stalls:
            thread.join()
        middles.append(statistics.median(found))
        return max(found)

    for client in range(clients):
        one(client)
    return Built(run, None, told=lambda: {"median": statistics.median(middles)}, close=close)


def _recovered(problem: Problem) -> Built:
    """Seconds for 1 GB of log: FADAS, 250 records of a million parameters."""
    make, folder = RULES["FADAS"], scratch()
    full, back = Path(folder.name) / "full", Path(folder.name) / "back"
    server = open_on(Disk(full, create=True), lambda: make(problem.size), "none", checkpoint_every=1 << 60)
    for number in range(LOG):
        server.dispatch(number % CLIENTS)
        server.receive(number % CLIENTS, problem.update)
    server.flush()
    shutil.copytree(full, back)  # as a crash leaves it: closing writes a checkpoint
    server.close()
    shutil.rmtree(full)
    shutil.move(back, full)

    def before() -> None:
        shutil.rmtree(back, ignore_errors=True)
        shutil.copytree(full, back)

    def run() -> float:
        found: list[Any] = []
        took = seconds(lambda: found.append(open_on(Disk(back), lambda: make(problem.size), "none")))
        assert found[0].version == LOG // 5, found[0].version
        found[0].close()
        return took * 1e9 / (4 * problem.size * LOG)

    return Built(run, None, before, close=folder.cleanup)


def _streamed(problem: Problem) -> Built:
    """An upload in chunks; its peak of memory has the next version, which is the server's own."""
    server, close = opened(lambda size: fastagg.FedBuff(torch.zeros(size), buffer_size=1), problem.size)
    chunk, nbytes = bytes(1 << 20), 4 * problem.size

    def run() -> None:
        with server.receiving(0) as one:
            for at in range(0, nbytes, len(chunk)):
                one.write(chunk[: nbytes - at])

    return Built(run, None, lambda: server.dispatch(0), close=close)


def _case(name: str, built: dict[str, Callable[[Problem], Built]], sizes: tuple[int, ...], **more: Any) -> Case:
    candidates = [Candidate(who, build, 8) for who, build in built.items()]
    return Case(name, 0, lambda: candidates, "disk", sizes, devices=("cpu",), **more)


SIZES = (1_000, 10_000, 100_000, 1_000_000, 10_000_000)
CASES = [
    *(
        _case(
            f"durable {rule}",
            {
                "fastagg": partial(_answered, make=RULES[rule], durability="arrival"),
                "fastagg, no folder": partial(_answered, make=RULES[rule]),
                "one write and fdatasync": partial(_raw, make=RULES[rule]),
            },
            SIZES, apart=1e-4,
        )
        for rule in ("FADAS", "ACE int8")
    ),
    *(
        _case(
            f"durable {rule}, {THREADS} threads",
            {
                "fastagg": partial(_crowd, make=RULES[rule]),
                "one write and fdatasync": partial(_raw, make=RULES[rule], times=2 * THREADS),
            },
            (1_000, 10_000, 4_000_000), period=2 * THREADS,
        )
        for rule in ("FedBuff", "ACE int8")
    ),
    _case(
        "durable, the longest of many",
        {"fastagg": partial(_longest, stalls=True), "fastagg, no checkpoint": partial(_longest, stalls=False)},
        (1_000_000,), told=True,
    ),
    _case("recovery of 1 GB", {"fastagg": _recovered}, (1_000_000,), told=True),
    _case("streamed upload of 1 GB", {"fastagg": _streamed}, (GIGABYTE,), peaks=True),
]  # fmt: skip
