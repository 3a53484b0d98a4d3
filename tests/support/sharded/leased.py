"""Tasks that end by themselves, as the ranks of a sharded server. Each rank writes down its ledger at the end.

python tests/support/sharded/leased.py RANK SIZE FOLDER
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))  # as in pytest

import torch

import fastagg
from fastagg.server.engine import as_tensors
from support import inside
from support.presets import model, update
from support.sharded.ranks import SIZE, command, leave, led, sharded, start

# Calls are an even number of seconds apart, and the lease is odd. So no task's end is near a call on a slow machine.
CALLS, CLIENTS, LEASE = 400, 7, 605.0
Says = Callable[[fastagg.Server], Any]


def make(piece: Any) -> fastagg.Server:
    return fastagg.FedAsync(
        piece, alpha=0.5, lease=LEASE, max_delay=3, max_clients=CLIENTS - 2, max_open_per_client=2, seed=3
    )


def ledger(server: Any) -> Any:
    return inside.engine(server)


def plain(server: Any) -> Any:
    """Return the ledger's state without the versions' numbers, of which each rank has its slice; the ids come last."""
    state = as_tensors(ledger(server).tasks())
    kept = sorted(int(version) for version in state.pop("versions"))
    ids = {key: value.tolist() for key, value in state.pop("ids").items()}
    lists = {key: value.tolist() if isinstance(value, torch.Tensor) else value for key, value in state.items()}
    return json.loads(json.dumps([lists, kept, ids], default=str))


def drawn(draw: random.Random) -> tuple[float, Says]:
    """Return how many seconds pass, and then one call."""
    client, number = f"client {draw.randrange(CLIENTS)}", draw.randrange(8)
    what = draw.choices(["dispatch", "receive", "forget", "expire"], [9, 7, 1, 1])[0]
    calls: dict[str, Says] = {
        "dispatch": lambda server: server.dispatch(client).version,
        "receive": lambda server: server.receive(client, update(number, SIZE)),
        "forget": lambda server: server.forget(client),
        "expire": lambda server: server.expire(),
    }
    return draw.choice([2.0] * 8 + [10.0, 70.0, 310.0]), calls[what]


def at(server: Any, now: float) -> Any:
    ledger(server).skew += now - ledger(server).own_time
    return server


def outcome(server: Any, call: Says) -> Any:
    try:
        return call(server)
    except fastagg.FastaggError as error:
        return f"{type(error).__name__}: {error}"


def lead(server: fastagg.Server, folder: Path, found: dict[str, Any]) -> None:
    alone, draw = make(model(SIZE)), random.Random(11)
    said: list[Any] = []
    now = ledger(alone).own_time
    for turn in range(CALLS):
        if turn == CALLS // 2:  # all leases begin anew
            server.save(folder / "checkpoint")
            server.load(folder / "checkpoint")
            alone.load_state_dict(alone.state_dict())
        seconds, call = drawn(draw)
        now += seconds
        mine, its = (outcome(at(one, now), call) for one in (server, alone))
        if mine != its:
            found["differ"] = [turn, str(mine), str(its)]
            return
        said.append(mine)
    found["differ"] = None if torch.equal(server.parameters(), alone.flat) else "parameters() differ"
    words = [one for one in said if isinstance(one, str)]
    found["refused"] = {name: sum(name in one for one in words) for name in ("Busy", "expired", "UnknownClient")}
    found["steps"], found["alone"] = server.version, plain(alone)


def main(rank: int, size: int, folder: Path) -> None:
    start(rank, size, folder)
    found: dict[str, Any] = {}
    server = sharded(make, model(SIZE))
    with led(server) as leads:
        if leads:
            lead(server, folder, found)
    found["ledger"] = plain(server)
    leave(folder / f"found-{rank}.json", found)


if __name__ == "__main__":
    command(main)
