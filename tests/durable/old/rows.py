"""A server whose cached updates are on a disk, of before and of now: fastagg 0.1.0 wrote rows.tar.xz and rows.json when
rows went past the page cache and the folder's list was ``rows.json``; this folder's history has the program."""

from hashlib import sha256
from typing import Any

import torch
from support import inside
from support.presets import numbers, update

import fastagg
from fastagg.rules.directions.all_clients import TieredState

SIZE, CLIENTS = 300, 5
LAST = range(19, 27)


def make(path: str = "rows") -> fastagg.Server:
    """``path``: relative, so that the folders may lie anywhere."""
    cache = fastagg.Tiered("int8", path=path)
    return fastagg.ACED(
        numbers(0, SIZE, 22), lr=0.1, num_clients=CLIENTS, cache=cache, max_delay=3, warmup="partial", seed=5
    )


def play(server: fastagg.Server, numbered: range) -> None:
    for number in numbered:
        client = (0, 1, 0, 2, 0, 3, 1, 4)[number % 8]
        server.dispatch(client)
        server.receive(client, update(number, SIZE))


def found(server: fastagg.Server) -> dict[str, Any]:
    """What a user can see of a server; of numbers, the digests."""
    state: Any = server._running.extension.state
    assert isinstance(state, TieredState)
    rows = [inside.row_on_disk(state.rows, client) for client in range(CLIENTS)]
    said = {"flat": server.flat, "sum": state.sum, **{str(k): row for k, row in enumerate(rows) if row is not None}}
    return {
        "version": server.version,
        **{key: sha256(held.view(torch.uint8).numpy().tobytes()).hexdigest()[:16] for key, held in said.items()},
    }
