"""Servers in slices on this machine's cores, beside one process, with the updates in shared memory.

An update is over when the slowest rank has made its step. Ranks on one machine share its cores and memory bandwidth, so
they show the cost of messages and of waiting, and no speed-up. For ranks on machines of their own there are the time of
a slice in one process, and of messages: one group of elements a rank. Every candidate is in processes of its own.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import checkout
import torch
import torch.distributed as dist
from problem import Built, Candidate, Case, Problem
from timing import seconds

import fastagg

CLIENTS, UNTIMED = 2, 3  # the first updates allocate memory
RULES: dict[str, Callable[[Any], fastagg.Server]] = {
    "ASGD": lambda piece: fastagg.ASGD(piece, lr=0.1),
    "ASGD, clipped": lambda piece: fastagg.ASGD(piece, lr=0.1, clip_norm=1.0),
    "FedBuff, M = 2": lambda piece: fastagg.FedBuff(piece, buffer_size=2),
    "FADAS, M = 2": lambda piece: fastagg.FADAS(piece, lr=0.001, buffer_size=2),
    "FADAS, M = 2, clipped": lambda piece: fastagg.FADAS(piece, lr=0.001, buffer_size=2, clip_norm=1.0),
    "ACE int8": lambda piece: fastagg.ACE(piece, lr=0.1, num_clients=CLIENTS, cache="int8", warmup="partial"),
    "AsyncFedED": lambda piece: fastagg.AsyncFedED(piece, lam=1.0, eps=1.0),
}


def play(rule: str, size: int, ranks: int, rank: int, store: str) -> None:
    """One rank. The first prints seconds and bytes of messages of two updates for every line of its input."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    torch.set_num_threads(1)
    fastagg.set_num_threads(max(1, cores // ranks))
    server = RULES[rule](torch.zeros(size)) if ranks == 1 else None
    if server is None:
        dist.init_process_group("gloo", store=dist.FileStore(store, ranks), rank=rank, world_size=ranks,
                                timeout=timedelta(seconds=300))  # fmt: skip
        server = fastagg.sharded(RULES[rule], torch.zeros(size), timeout=300)
        if rank:
            return server.follow()
    with server:
        update = fastagg.SharedVector(size)
        torch.randn(size, out=update.tensor)
        given = update if ranks > 1 else update.tensor
        for client in range(CLIENTS):
            server.dispatch(client)

        def pair() -> tuple[float, int]:
            took, before = 0.0, server.traffic if ranks > 1 else 0
            for client in range(CLIENTS):  # every client has a task; the one that waited longest answers
                took += seconds(partial(server.receive, client, given))
                server.dispatch(client)
            return took, server.traffic - before if ranks > 1 else 0

        for _ in range(UNTIMED):
            pair()
        for _ in sys.stdin:
            print(*pair(), flush=True)


def _built(problem: Problem, rule: str, ranks: int = 1, part: int = 0) -> Built:
    """``part``: a slice of so many, in one process; -1: only messages."""
    size = ranks * fastagg.ops.GROUP if part < 0 else -(-problem.size // max(1, part))
    folder = tempfile.TemporaryDirectory()
    paths = os.pathsep.join([*checkout.PATHS, str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-P", __file__, rule, str(size), str(ranks)]
    others = [
        subprocess.Popen([*command, str(rank), f"{folder.name}/store"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                         text=True, env={**os.environ, "PYTHONPATH": paths})
        for rank in range(ranks)
    ]  # fmt: skip
    line, sent = others[0], [0]

    def run() -> float:
        assert line.stdin and line.stdout
        print(file=line.stdin, flush=True)
        took, sent[0] = line.stdout.readline().split()  # type: ignore[assignment]
        return float(took)

    def close() -> None:
        for one in others:
            one.communicate(timeout=300)
        folder.cleanup()

    return Built(run, None, told=lambda: {"bytes of messages": float(sent[0]) / CLIENTS}, close=close)


def _candidates(rule: str) -> list[Candidate]:
    made = {"fastagg": {}, "fastagg, 2 ranks": {"ranks": 2}, "fastagg, 4 ranks": {"ranks": 4},
            "fastagg, a slice of 2": {"part": 2}, "fastagg, a slice of 4": {"part": 4},
            "fastagg, messages of 2 ranks": {"ranks": 2, "part": -1},
            "fastagg, messages of 4 ranks": {"ranks": 4, "part": -1}}  # fmt: skip
    return [Candidate(name, partial(_built, rule=rule, **how), 8) for name, how in made.items()]


CASES = [
    Case(f"ranks, {rule}", 0, partial(_candidates, rule), "processes", (110_000_000,), devices=("cpu",), told=True,
         period=CLIENTS)
    for rule in RULES
]  # fmt: skip

if __name__ == "__main__":
    play(sys.argv[1], *map(int, sys.argv[2:5]), sys.argv[5])
