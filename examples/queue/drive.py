"""Exactly once, from a queue to the model, while every process is killed again and again.

    apt-get install nats-server
    pip install nats-py obstore      and fastagg
    python drive.py --kills 100

A root, three leaves and three readers (``roles.py``) share a queue and an object store. This kills them at random
moments, and starts them again. Some sums are sent twice, as a queue does whose acknowledgement was lost. At the end it
compares: the sums that the server has counted are those in the queue, each once, and its model has the bits of a run in
one process in which nothing is lost.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import multiprocessing
import random
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import roles
import torch

import fastagg


class Processes:
    """The processes of one run."""

    def __init__(self, url: str, folder: Path) -> None:
        self.context = multiprocessing.get_context("forkserver")  # has torch imported, so that a start takes no time
        self.context.set_forkserver_preload(["roles"])
        many = [(role, number) for role in ("leaf", "reader") for number in range(roles.LEAVES)]
        self.given = {(role, number): (role, url, folder, number) for role, number in [("root", 0), *many]}
        self.running = {name: self.begun(name) for name in self.given}

    def begun(self, name: tuple[str, int]) -> Any:
        process = self.context.Process(target=roles.run, args=self.given[name], daemon=True)
        process.start()
        return process

    def check(self, name: tuple[str, int]) -> None:
        if self.running[name].exitcode is not None:
            raise SystemExit(f"{name} ended by itself")

    def kill(self, name: tuple[str, int]) -> None:
        self.check(name)
        self.running[name].kill()
        self.running[name].join()

    def again(self, name: tuple[str, int]) -> None:
        self.kill(name)
        self.running[name] = self.begun(name)

    async def sums(self, place: roles.Place, many: int) -> None:
        """Wait for so many sums, while nobody is killed."""
        while await counted(place) < many:
            for name in self.running:
                self.check(name)
            await asyncio.sleep(0.1)


async def sums(place: roles.Place, until: int | None) -> list[dict[str, Any]]:
    """Return what the log holds up to an offset."""
    found = []
    if until is not None:
        async for offset, said in place.log("SUMS.*", 1):
            found.append(said)
            if offset == until:
                break
    return found


async def compare(place: roles.Place) -> None:
    """Compare the server in the folder with a run in one process."""
    with fastagg.open(place.folder / "state", roles.make) as server:
        said = await sums(place, server.offset)
        once = list({one["task"]: one for one in said}.values())
        alone = roles.make()
        leaf = fastagg.Leaf(torch.zeros(200))
        tasks = [alone.dispatch(number) for number in range(roles.LEAVES)]
        for one in once:
            number = one["leaf"]
            clients = range(number * roles.CLIENTS, (number + 1) * roles.CLIENTS)
            model = tasks[number].flat.clone()
            partial = roles.folded(leaf, [roles.train(model, client) for client in clients])
            alone.receive_partial(number, partial, task=tasks[number].id)
            tasks[number] = alone.dispatch(number)
        print(f"{len(said)} messages up to offset {server.offset}: {len(once)} sums, the rest came again")
        print(f"version {server.version}, and {alone.version} in one process")
        same = server.version == alone.version and torch.equal(server.flat, alone.flat)
        server.close_round()  # what waits in the buffer counts, too
        alone.close_round()
        same = same and torch.equal(server.flat, alone.flat)
    print("equal to one process, to the bit" if same else "NOT equal to one process")
    if not same:
        raise SystemExit(1)


async def counted(place: roles.Place) -> int:
    return int((await place.js.stream_info("SUMS")).state.messages)


async def drive(url: str, folder: Path, kills: int, every: float, seed: int) -> None:
    place = await roles.Place(url, folder).enter()
    await place.prepare()
    processes, chosen = Processes(url, folder), random.Random(seed)
    await processes.sums(place, roles.LEAVES)
    began, left, done = time.monotonic(), iter(range(kills)), itertools.count(1)

    async def disturb(name: tuple[str, int]) -> None:
        """Kill one of the processes again and again. It does not care what the others do, or whether they live."""
        while True:
            await asyncio.sleep(chosen.expovariate(1 / (every * len(processes.given))))
            if next(left, None) is None:
                return
            await asyncio.to_thread(processes.again, name)  # others are killed at the same time
            if chosen.random() < 0.2 and (old := await place.last("SUMS", "SUMS.*")):  # a sum comes twice
                await place.say(f"SUMS.{old['leaf']}", **old)
            if (number := next(done)) % 100 == 0:
                print(f"{number} kills, {await counted(place)} sums, {time.monotonic() - began:.0f} s", flush=True)

    await asyncio.gather(*map(disturb, processes.given))
    took = time.monotonic() - began
    await processes.sums(place, await counted(place) + 10 * roles.LEAVES)  # it goes on by itself
    for name in processes.given:
        processes.kill(name)
    print(f"{kills} kills in {took:.0f} s")
    await compare(place)


def answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--every", type=float, default=0.3, help="seconds between two kills, on average")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", help="where everything lies; without it in a temporary folder, which is removed")
    given = parser.parse_args()
    folder = Path(given.folder or tempfile.mkdtemp())
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    queue = subprocess.Popen(
        ["nats-server", "-js", "-sd", str(folder / "nats"), "-a", "127.0.0.1", "-p", port],
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        while queue.poll() is None and not answers(int(port)):
            time.sleep(0.05)
        asyncio.run(drive(f"nats://127.0.0.1:{port}", folder, given.kills, given.every, given.seed))
    finally:
        queue.kill()
        queue.wait()
        if given.folder is None:
            shutil.rmtree(folder)


if __name__ == "__main__":
    main()
