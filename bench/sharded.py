"""Compares ranks with one process, with the update in shared memory. Run it alone on a machine:

    python bench/sharded.py [--parameters 110000000] [--ranks 2] [--rounds 15] [--rules asgd fadas ace-int8]

Every round takes one arrival with the ranks and one with a single process that has as many threads as all ranks
together. They take turns, and the median of the rounds' ratios is printed. Two ranks on two cores show the cost of the
messages, and no speed-up.
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

CLIENTS = 2
RULES: dict[str, Callable[[Any], fastagg.Server]] = {
    "asgd": lambda piece: fastagg.ASGD(piece, lr=0.1),
    "asgd, clipped": lambda piece: fastagg.ASGD(piece, lr=0.1, clip_norm=1.0),
    "fedbuff": lambda piece: fastagg.FedBuff(piece, buffer_size=2),
    "fadas": lambda piece: fastagg.FADAS(piece, lr=0.001, buffer_size=2),
    "ace-int8": lambda piece: fastagg.ACE(piece, lr=0.1, num_clients=CLIENTS, cache="int8", warmup="partial"),
    "asyncfeded": lambda piece: fastagg.AsyncFedED(piece, lam=1.0, eps=1.0),
}


def seconds(call: Callable[[], Any]) -> float:
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun


def measure(
    name: str, server: fastagg.ShardedServer, alone: fastagg.Server, shared: Any, rounds: int, threads: tuple[int, int]
) -> None:
    """``threads``: the threads of this rank, and of the single process, which has all cores while it works."""

    def arrival(which: int, client: int) -> float:
        on: Any = (server, alone)[which]
        fastagg.set_num_threads(threads[which])
        on.dispatch(client)
        return seconds(lambda: on.receive(client, (shared, shared.tensor)[which]))

    ratios, theirs, mine, sent = [], [], [], []
    for turn in range(rounds + 3):
        before = server.traffic
        pair = [0.0, 0.0]
        for which in (0, 1) if turn % 2 else (1, 0):
            pair[which] = arrival(which, turn % CLIENTS)
        if turn >= 3:  # the first turns allocate memory
            ratios.append(pair[0] / pair[1])
            mine.append(pair[0])
            theirs.append(pair[1])
            sent.append(server.traffic - before)
    groups = -(-server.layout.size // fastagg.ops.GROUP)
    print(
        f"{name:14} {len(server.slices())} ranks {statistics.median(mine) * 1e3:8.1f} ms, "
        f"one process {statistics.median(theirs) * 1e3:8.1f} ms, ratio {statistics.median(ratios):.3f}; "
        f"{statistics.median(sent):,.0f} bytes an arrival with its dispatch (budget {8 * groups + 1024:,})",
        flush=True,
    )


def play(rank: int, arguments: argparse.Namespace) -> None:
    store = dist.FileStore(str(Path(arguments.store) / "store"), arguments.ranks)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=arguments.ranks, timeout=timedelta(seconds=300))
    cores = len(os.sched_getaffinity(0))
    each = max(1, cores // arguments.ranks)
    torch.set_num_threads(1)
    fastagg.set_num_threads(each)
    model = torch.zeros(arguments.parameters)
    shared = None
    if rank == 0:
        shared = fastagg.SharedVector(arguments.parameters)
        torch.randn(arguments.parameters, out=shared.tensor)
    for name in arguments.rules:
        server = fastagg.sharded(RULES[name], model, timeout=300)
        if rank:
            server.follow()
            continue
        with server:
            measure(name, server, RULES[name](model), shared, arguments.rounds, (each, cores))
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parameters", type=lambda text: int(float(text)), default=110_000_000)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--rules", nargs="+", choices=RULES, default=list(RULES))
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--store", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank is not None:
        play(arguments.rank, arguments)
        return
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, *sys.argv[1:], "--store", folder]
        ranks = [subprocess.Popen([*command, "--rank", str(rank)]) for rank in range(arguments.ranks)]
        raise SystemExit(max(rank.wait() for rank in ranks))


if __name__ == "__main__":
    main()
