"""Compares ranks with one process, with the update in shared memory. Run it alone on a machine:

    python bench/sharded.py [--parameters 110000000] [--ranks 1 2 4] [--rounds 20] [--rules asgd fadas ace-int8]

Every round takes one arrival with the ranks, which is over when the slowest is done, and one with a single process that
has as many threads as this machine has cores. They take turns, and the middle of the rounds' ratios is printed. Ranks
on one machine share its cores and memory bandwidth. So they show the cost of the messages and of waiting for each
other, and no speed-up.

The other figures are for ranks on machines of their own: a *share* is the time of an arrival of a rank's slice in one
process, and *messages* the time of an arrival of one group of 65,536 elements a rank. Each rank also says where its own
time goes: looking at its slice (norm, finite values), waiting for other ranks, and the rest, which is mostly the step.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import fastagg
from fastagg.timing import Stopwatch, seconds

CLIENTS = 2
UNTIMED = 3  # the first arrivals allocate memory
RULES: dict[str, Callable[[Any], fastagg.Server]] = {
    "asgd": lambda piece: fastagg.ASGD(piece, lr=0.1),
    "asgd, clipped": lambda piece: fastagg.ASGD(piece, lr=0.1, clip_norm=1.0),
    "fedbuff": lambda piece: fastagg.FedBuff(piece, buffer_size=2),
    "fadas": lambda piece: fastagg.FADAS(piece, lr=0.001, buffer_size=2),
    "fadas, clipped": lambda piece: fastagg.FADAS(piece, lr=0.001, buffer_size=2, clip_norm=1.0),
    "ace-int8": lambda piece: fastagg.ACE(piece, lr=0.1, num_clients=CLIENTS, cache="int8", warmup="partial"),
    "asyncfeded": lambda piece: fastagg.AsyncFedED(piece, lam=1.0, eps=1.0),
}


def middle(values: list[float]) -> float:
    """Return the mean of two medians, of every second value: a buffer of two steps at every second arrival."""
    timed = values[UNTIMED:]
    return (statistics.median(timed[::2]) + statistics.median(timed[1::2])) / 2


class Others:
    """Measures the share of this machine's time that processes other than the ranks take.

    Args:
        pids: the ranks' processes.
    """

    def __init__(self, pids: list[int]) -> None:
        self._clocks = [(~pid << 3) | 2 for pid in pids]  # Linux's number of another process's clock
        self._watch = Stopwatch()
        self._last = self._now()

    def _now(self) -> tuple[float, float, float]:
        user, nice, system, _, _, irq, softirq, steal = map(int, Path("/proc/stat").read_text().split()[1:9])
        all = (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")
        return all, sum(map(time.clock_gettime, self._clocks)), self._watch.total

    def share(self) -> float:
        """Return the share since the last call."""
        now, before = self._now(), self._last
        all, ours, wall = (end - begin for begin, end in zip(before, now, strict=True))
        self._last = now
        return max(0.0, all - ours) / (wall * (os.cpu_count() or 1))


class Parts:
    """Where a rank's time goes in each arrival, in seconds.

    Attributes:
        whole, looks, waits: the arrival, and what part of it the rank looks at its slice and waits for others.
    """

    def __init__(self, server: Any) -> None:
        self.whole, self.looks, self.waits = list[float](), list[float](), list[float]()
        self._watch = Stopwatch(["waits", "looks", "whole"])
        group = server._group
        norms, link = server._parts.norms, group.link
        receive, settle = group._receive, link.settle

        def settled(*given: Any) -> Any:
            with self._watch.timing("waits"):
                return settle(*given)

        def looked(look: Callable[..., Any]) -> Callable[..., Any]:
            def timed(*given: Any, **more: Any) -> Any:
                waited = self._watch.seconds["waits"]
                with self._watch.timing("looks"):
                    found = look(*given, **more)
                self._watch.seconds["looks"] -= self._watch.seconds["waits"] - waited
                return found

            return timed

        def received(order: Any) -> Any:
            self._watch = Stopwatch(self._watch.seconds)
            with self._watch.timing("whole"):
                found = receive(order)
            for name, took in self._watch.seconds.items():
                getattr(self, name).append(took)
            return found

        group._receive, link.settle = received, settled
        norms.inspect, norms.distances = looked(norms.inspect), looked(norms.distances)

    def __str__(self) -> str:
        rest = [a - b - c for a, b, c in zip(self.whole, self.looks, self.waits, strict=True)]
        looks, waits, others = (middle(values) * 1e3 for values in (self.looks, self.waits, rest))
        return f"looks {looks:.1f}, waits {waits:.1f}, rest {others:.1f} ms"


class Arrivals:
    """Times arrivals at one server. Every client has a task; the next one to answer is the one that waited longest.

    Args:
        server: the server, with slices or not.
        update: what every client sends.
    """

    def __init__(self, server: Any, update: Any) -> None:
        self.server, self.update, self.turn = server, update, 0
        for client in range(CLIENTS):
            server.dispatch(client)

    def one(self) -> float:
        """Return the seconds of an arrival, until the slowest rank is done."""
        client, self.turn = self.turn % CLIENTS, self.turn + 1
        took = seconds(lambda: self.server.receive(client, self.update))
        self.server.dispatch(client)
        return took


def timed(server: Any, update: Any, rounds: int) -> float:
    """Return the middle of the seconds of some arrivals."""
    arrivals = Arrivals(server, update)
    return middle([arrivals.one() for _ in range(rounds + UNTIMED)])


def compare(
    name: str, server: fastagg.Server, alone: fastagg.Server, shared: Any, rounds: int, threads: tuple[int, int],
    others: Others,
) -> None:  # fmt: skip
    """``threads``: the threads of this rank, and of the single process, which has all cores while it works."""
    both = Arrivals(server, shared), Arrivals(alone, shared.tensor)
    ratios, theirs, mine, sent, shares = [], [], [], [], []
    others.share()
    for turn in range(rounds + UNTIMED):
        before = server.traffic
        pair = [0.0, 0.0]
        for which in (0, 1) if turn % 2 else (1, 0):
            fastagg.set_num_threads(threads[which])
            pair[which] = both[which].one()
        shares.append(others.share())
        ratios.append(pair[0] / pair[1])
        mine.append(pair[0])
        theirs.append(pair[1])
        sent.append(server.traffic - before)
    ranks = len(server.slices())
    print(
        f"{name:14} {ranks} ranks {middle(mine) * 1e3:8.1f} ms, "
        f"one process {middle(theirs) * 1e3:8.1f} ms, ratio {middle(ratios):.3f}; "
        f"{statistics.median(sent):,.0f} bytes an arrival with its dispatch; "
        f"other processes took {statistics.mean(shares):.0%} of the cores meanwhile",
        flush=True,
    )


def play(rank: int, arguments: argparse.Namespace) -> None:
    ranks = arguments.ranks[0]
    store = dist.FileStore(str(Path(arguments.store) / "store"), ranks)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks, timeout=timedelta(seconds=300))
    cores = len(os.sched_getaffinity(0))
    each = max(1, cores // ranks)
    torch.set_num_threads(1)
    fastagg.set_num_threads(each)
    pids = [torch.zeros(1, dtype=torch.int64) for _ in range(ranks)]
    dist.all_gather(pids, torch.tensor([os.getpid()]))
    others = Others([int(pid) for pid in pids])
    model, small = torch.zeros(arguments.parameters), torch.zeros(ranks * fastagg.ops.GROUP)
    shared = [fastagg.SharedVector(len(vector)) for vector in (model, small) if rank == 0]
    for vector in shared:
        torch.randn(vector.size, out=vector.tensor)
    for name in arguments.rules:
        make = RULES[name]
        for vector, one in enumerate((model, small)):
            server = fastagg.sharded(make, one, timeout=300)
            parts = Parts(server)
            if rank:
                server.follow()
            elif vector == 0:
                with server:
                    compare(name, server, make(model), shared[0], arguments.rounds, (each, cores), others)
            else:
                with server:
                    messages = timed(server, shared[1], 50)
            if vector == 0:
                dist.barrier()
                sys.stdout.write(f"{name:14} rank {rank} {parts}\n")
                sys.stdout.flush()
        if rank == 0:
            begin, end = 0, -(-arguments.parameters // ranks)
            fastagg.set_num_threads(cores)
            share = timed(make(model[begin:end]), shared[0].tensor[begin:end], arguments.rounds)
            fastagg.set_num_threads(each)
            print(
                f"{name:14} share {share * 1e3:.1f} ms, messages {messages * 1e3:.2f} ms: "
                f"{(share + messages) * 1e3:.1f} ms on {ranks} machines like this one",
                flush=True,
            )
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parameters", type=lambda text: int(float(text)), default=110_000_000)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--rules", nargs="+", choices=RULES, default=list(RULES))
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--store", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank is not None:
        play(arguments.rank, arguments)
        return
    for count in arguments.ranks:
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, __file__, *sys.argv[1:], "--ranks", str(count), "--store", folder]
            ranks = [subprocess.Popen([*command, "--rank", str(rank)]) for rank in range(count)]
            if worst := max(rank.wait() for rank in ranks):
                raise SystemExit(worst)


if __name__ == "__main__":
    main()
