"""Ranks of a server with a folder: rank 0 asks for checkpoints, while rank 1's disk takes no more, and afterwards.

python tests/support/sharded/checkpointed.py RANK SIZE FOLDER
"""

from __future__ import annotations

import resource
import sys
import threading
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))  # as in pytest

import torch.distributed as dist

import fastagg
from support.presets import model, update
from support.sharded.ranks import SIZE, command, sharded, start

CLIENTS = 4


def make(piece: Any) -> fastagg.Server:
    return fastagg.ASGD(piece, lr=0.5)


def play(server: fastagg.Server, number: int) -> None:
    server.dispatch(number % CLIENTS)
    server.receive(number % CLIENTS, update(number, SIZE))


def full(full: Path, seen: Path) -> None:
    """Let this process write nothing while a file is there."""
    while True:
        limit = 1 if full.exists() else resource.RLIM_INFINITY
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
        if full.exists() and not seen.exists():
            seen.symlink_to(full)  # a file would need space
        elif not full.exists():
            seen.unlink(missing_ok=True)
        time.sleep(0.01)


def until(met: bool, path: Path) -> None:
    while path.is_symlink() != met:
        time.sleep(0.01)


def main(rank: int, size: int, folder: Path) -> None:
    start(rank, size, folder)
    server = fastagg.open(folder / "state", lambda: sharded(make, model(SIZE)))
    if rank:
        if rank == 1:
            threading.Thread(target=full, args=(folder / "full", folder / "seen"), daemon=True).start()
        server.follow()
        return
    for number in range(5):
        play(server, number)
    server.flush()
    (folder / "full").touch()
    until(True, folder / "seen")
    try:
        server.checkpoint()
    except fastagg.FastaggError as error:
        print(f"{type(error).__name__}: {error}", flush=True)
    (folder / "full").unlink()
    until(False, folder / "seen")
    for number in range(5, 8):
        play(server, number)
    print("written", server.checkpoint().name, flush=True)
    for slice_ in sorted((folder / "state").glob("cut-*/slice-*")):
        print(max(path.name for path in slice_.glob("checkpoint-*")), flush=True)
    server.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    command(main)
