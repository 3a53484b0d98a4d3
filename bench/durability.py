"""Measures the cost of durability. Run it alone on a machine:

    python bench/durability.py [FOLDER] [--only NAME] [--small]

FOLDER is on the disk to measure (default: the current folder). Every line names its comparison from the same run: one
fdatasync of the same disk, a raw write of the same bytes, or the same server without a folder.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import fastagg
from fastagg._build import native
from fastagg.durable.disk import Disk
from fastagg.durable.opening import open_on
from fastagg.timing import Stopwatch, seconds

_waited = native.log.Journal.waited  # seconds that the calling thread has waited for a disk
CLIENTS = 10  # answer in turn

# Rules with d parameters. The journal holds updates; for ACE it holds the clients' rows.
RULES: dict[str, Callable[[int], fastagg.Server]] = {
    "FADAS": lambda size: fastagg.FADAS(torch.zeros(size), lr=0.01, buffer_size=5),
    "FedBuff": lambda size: fastagg.FedBuff(torch.zeros(size), buffer_size=10),
    "ACE int8": lambda size: fastagg.ACE(
        torch.zeros(size), lr=0.1, num_clients=CLIENTS, cache="int8", warmup="partial"
    ),
}


def one_sync(folder: Path, nbytes: int, times: int = 100) -> float:
    """Return the median seconds of a write of ``nbytes`` to an allocated file with its fdatasync."""
    path, data = folder / "sync", os.urandom(nbytes)
    file = os.open(path, os.O_RDWR | os.O_CREAT)
    room = -(-nbytes // 4096) * 4096
    os.posix_fallocate(file, 0, room * times)
    for k in range(times):  # written once before, as reused segments are
        os.pwrite(file, data, k * room)
    os.fsync(file)
    found = [seconds(lambda k=k: (os.pwrite(file, data, k * room), os.fdatasync(file))) for k in range(times)]
    os.close(file)
    path.unlink()
    return statistics.median(found)


def acknowledgement(folder: Path, small: bool) -> None:
    """One client at a time: from receive to acknowledgement, compared with one fdatasync; and the part before the wait.

    The part before the wait is compared with a plain receive. The two servers take turns, so that both find the caches
    in the state after a wait for the disk. A second plain server shows how much two equal servers differ.
    """
    for rule in ("FADAS", "ACE int8"):
        made = RULES[rule]
        for size, times in ((1_000, 2000), (10_000, 1000), (100_000, 500), (1_000_000, 200), (10_000_000, 30)):
            _acknowledged(folder, rule, lambda made=made, size=size: made(size), size, times // 20 if small else times)


def _acknowledged(folder: Path, rule: str, make: Callable[[], fastagg.Server], size: int, times: int) -> None:
    times = max(10, times)
    update = torch.randn(size)
    servers = {"plain": make(), "again": make()}
    found: dict[str, list[float]] = {"plain": [], "again": [], "durable": [], "before": []}
    with fastagg.open(folder / "ack", make) as own:
        begun = own._log.journal.written
        for turn in range(-CLIENTS, times):
            client = turn % CLIENTS
            order = ("plain", "durable", "again") if turn % 2 else ("again", "durable", "plain")
            for name in order:
                server = own if name == "durable" else servers[name]
                server.dispatch(client)
                waited = _waited()
                took = seconds(lambda server=server, client=client: server.receive(client, update))
                if turn < 0:  # every client's first answer finds no row
                    continue
                found[name].append(took)
                if name == "durable":
                    found["before"].append(took - (_waited() - waited))
        record = (own._log.journal.written - begun) // (times + CLIENTS)
    sync = one_sync(folder, record, min(times, 100))
    usual, again, whole, before = (statistics.median(one) for one in found.values())
    print(
        f"ack {rule} d={size:>10,}: {whole * 1e6:9.0f} us, one write and fdatasync of as much "
        f"({record / size:.2f} bytes a parameter) {sync * 1e6:9.0f} us: {whole / sync:.2f} times; "
        f"receive before the wait over a plain one: {before * 1e6:.1f} us over {usual * 1e6:.1f} us: "
        f"{before / usual:.2f} times (another plain one {again / usual:.2f}); medians of {times}"
    )
    shutil.rmtree(folder / "ack")


def threads(folder: Path, small: bool) -> None:
    """64 threads: durable acknowledgements per second, compared with one fdatasync at a time."""
    for size in (1_000, 10_000):
        rounds, count = 5 if small else 50, 64
        with fastagg.open(
            folder / "many", lambda size=size: fastagg.FedBuff(torch.zeros(size), buffer_size=10)
        ) as server:
            update = torch.randn(size)

            def client(number: int, server: Any = server, update: Any = update, rounds: int = rounds) -> None:
                for _ in range(rounds):
                    server.dispatch(number)
                    server.receive(number, update)

            workers = [threading.Thread(target=client, args=(number,)) for number in range(count)]
            took = seconds(lambda workers=workers: ([one.start() for one in workers], [one.join() for one in workers]))
            groups = server._log.journal.groups
        rate, sync = rounds * count / took, one_sync(folder, 4 * size + 200)
        print(
            f"64 threads d={size:,}: {rate:,.0f} durable answers/s, one at a time {1 / sync:,.0f}/s: "
            f"{rate * sync:.1f} times; "
            f"{rounds * count / groups:.1f} answers a group"
        )
        shutil.rmtree(folder / "many")


def bandwidth(folder: Path, small: bool) -> None:
    """Durable updates and what the journal writes of them, compared with raw writes to the disk."""
    size, count, workers = (1_000_000, 40, 4) if small else (4_000_000, 100, 8)
    update = torch.randn(size)
    for rule in ("FedBuff", "ACE int8"):
        made = RULES[rule]
        with open_on(Disk(folder / "wide", create=True), lambda made=made: made(size), "arrival") as server:

            def client(number: int, server: fastagg.Server = server) -> None:
                for _ in range(count // workers):
                    server.dispatch(number)
                    server.receive(number, update)

            alive = [threading.Thread(target=client, args=(number,)) for number in range(workers)]
            took = seconds(lambda alive=alive: ([one.start() for one in alive], [one.join() for one in alive]))
            written = server._log.journal.written
        payload = 4 * size * (count // workers) * workers
        raw = one_sync(folder, 32 << 20, 10 if small else 30)
        print(
            f"payload {rule}: {payload / took / 1e6:,.0f} MB/s of updates durable, {written / took / 1e6:,.0f} MB/s "
            f"written, raw 32 MiB writes with fdatasync {(32 << 20) / raw / 1e6:,.0f} MB/s: "
            f"{payload / took * raw / (32 << 20):.0%} and {written / took * raw / (32 << 20):.0%}"
        )
        shutil.rmtree(folder / "wide")


def stall(folder: Path, small: bool) -> None:
    """The longest receive during a checkpoint: ACE int8, n = 200, d = 1 M."""
    clients, size = (20, 100_000) if small else (200, 1_000_000)
    make = lambda: fastagg.ACE(torch.zeros(size), lr=0.1, num_clients=clients, cache="int8")  # noqa: E731
    update = torch.randn(size)
    with open_on(Disk(folder / "stall", create=True), make, "none", checkpoint_every=1 << 60) as server:
        for client in range(clients):
            server.dispatch(client)
            server.receive(client, update)
        server.flush()

        def one(k: int) -> float:
            server.dispatch(k % clients)
            return seconds(lambda: server.receive(k % clients, update))

        usual = [one(k) for k in range(clients)]
        server.flush()
        done = threading.Event()
        thread = threading.Thread(target=lambda: (server.checkpoint(), done.set()))
        thread.start()
        found, k = [], 0
        while not done.is_set():
            found.append(one(k))
            k += 1
        thread.join()
    print(
        f"stall: longest receive during a checkpoint {max(found) * 1e3:.1f} ms of {len(found)}, p50 "
        f"{statistics.median(found) * 1e3:.2f} ms; without one longest {max(usual) * 1e3:.1f} ms, p50 "
        f"{statistics.median(usual) * 1e3:.2f} ms (journal without waiting)"
    )
    shutil.rmtree(folder / "stall")


def recovery(folder: Path, small: bool) -> None:
    """Seconds per GB of journal."""
    size, count = (100_000, 250) if small else (1_000_000, 250)
    make = lambda: fastagg.FADAS(torch.zeros(size), lr=0.01, buffer_size=5)  # noqa: E731
    with open_on(Disk(folder / "back", create=True), make, "none", checkpoint_every=1 << 60) as server:
        update = torch.randn(size)
        for k in range(count):
            server.dispatch(k % 10)
            server.receive(k % 10, update)
    nbytes = 4 * size * count
    found: list[Any] = []
    took = seconds(lambda: found.append(open_on(Disk(folder / "back", create=True), make, "none")))
    found[0].close()
    print(f"recovery: {nbytes / 1e9:.2f} GB of journal in {took:.2f} s: {took / nbytes * 1e9:.2f} s per GB")
    shutil.rmtree(folder / "back")


def upload(folder: Path, small: bool) -> None:
    """The peak of anonymous memory while 1 GB is streamed in, in addition to the server's own."""
    size, chunk = (10_000_000 if small else 250_000_000), bytes(1 << 20)

    def anonymous() -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon"))

    with fastagg.open(folder / "up", lambda: fastagg.FedBuff(torch.zeros(size), buffer_size=1)) as server:
        server.dispatch(0)
        before = most = anonymous()
        watch = Stopwatch()
        with server.receiving(0) as one:
            left = 4 * size
            while left:
                one.write(chunk[: min(left, len(chunk))])
                left -= min(left, len(chunk))
                most = max(most, anonymous())
            during, got = most, watch.total
        after = anonymous()
    print(
        f"upload: {4 * size / 1e9:.2f} GB in {got:.1f} s; memory beyond the server's own "
        f"{(during - before) / 1e6:.1f} MB while it came, {(after - before) / 1e6:.1f} MB after the step "
        f"(the next version, {4 * size / 1e6:.0f} MB, is the server's own)"
    )
    shutil.rmtree(folder / "up")


PARTS = {one.__name__: one for one in (acknowledgement, threads, bandwidth, stall, recovery, upload)}


def main() -> None:
    """Run all measurements, or one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", default=".")
    parser.add_argument("--only", choices=PARTS)
    parser.add_argument("--small", action="store_true", help="a quick look: no figures to quote")
    given = parser.parse_args()
    for name, part in PARTS.items():
        if given.only in (None, name):
            with tempfile.TemporaryDirectory(dir=given.folder, prefix="durability-") as folder:
                part(Path(folder), given.small)


if __name__ == "__main__":
    main()
