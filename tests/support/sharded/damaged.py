"""One life of the ranks of a server with a folder: answers FIRST to LAST. Rank 0 writes down what it then has.

python tests/support/sharded/damaged.py RANK SIZE FOLDER, which is STATE/FIRST-LAST
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))  # as in pytest

import torch
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


def main(rank: int, size: int, folder: Path) -> None:
    start(rank, size, folder)
    server = fastagg.open(folder.parent / "state", lambda: sharded(make, model(SIZE)))
    if rank:
        server.follow()
        return
    first, last = map(int, folder.name.split("-"))
    for number in range(first, last):
        play(server, number)
    torch.save([server.version, server.parameters()], folder / "found.pt")
    server.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    command(main)
