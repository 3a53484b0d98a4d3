"""A server whose cached updates are on a disk, of before and of now. ``python rows.py FOLDER`` wrote rows.tar.xz and
rows.json, with fastagg 0.1.0 as it was when rows went past the page cache and the folder's list was ``rows.json``."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tarfile
import tempfile
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from support import inside
from support.presets import numbers, update

import fastagg
from fastagg.rules.directions.all_clients import TieredState

SIZE, CLIENTS = 300, 5
FIRST, SECOND, THIRD, LAST = range(0, 8), range(8, 14), range(14, 19), range(19, 27)


def make(path: str = "rows") -> fastagg.Server:
    """``path``: relative, so that the folders may lie anywhere."""
    cache = fastagg.Tiered("int8", memory="1MB", path=path)
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


def main(to: Path) -> None:
    """A folder that two processes used, of which the second was killed; and a file."""
    with tempfile.TemporaryDirectory() as scratch:
        os.chdir(scratch)
        server = fastagg.open("state", make)
        play(server, FIRST)
        server.checkpoint()
        play(server, SECOND)
        server.close()
        server = fastagg.open("state", make)
        play(server, THIRD)
        said = {"state": found(server)}
        server.flush()
        for name in ("state", "rows"):
            shutil.copytree(name, f"old/{name}")  # as after kill -9
        play(server, LAST)
        said["later"] = found(server)
        server.close()
        file = make("of a file")
        play(file, THIRD)
        file.save("server.fastagg")
        said["file"] = found(file)
        file.close()
        for name in ("server.fastagg", "of a file"):
            shutil.move(name, f"old/{name}")
        for reserve in Path("old").rglob("reserve-*"):  # they hold no state
            reserve.unlink()
        for rows in Path("old").rglob("rows.bin"):  # nor does what was never written
            os.truncate(rows, 24 * 8192)
        with tarfile.open(to / "rows.tar.xz", "w:xz", preset=9) as packed:
            packed.add("old")
    (to / "rows.json").write_text(json.dumps(said, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
