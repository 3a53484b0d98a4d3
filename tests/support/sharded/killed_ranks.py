"""Ranks of a server with a folder, of which one after the other is killed. Each life goes on where a run would be that
nobody disturbed.

python tests/support/sharded/killed_ranks.py NAME FOLDER KILLS SEED
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import select
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))  # as in pytest

import torch
import torch.distributed as dist

import fastagg
from support import inside
from support.presets import PRESETS, calls, model, tensors, update
from support.sharded.ranks import Whole

SIZE = 2 * 65_536 + 1_001  # three groups
RANKS = 3  # at most
ARRIVALS = 60
TIMEOUT = 60.0  # of messages: nobody waits for it
SETTINGS: dict[str, Any] = {"checkpoint_every": 1 << 21}


def digest(server: Any, version: int) -> str:
    """Return a digest of all that the rule stores, but not of the tasks."""
    held = tensors(server)
    found = hashlib.sha256(str((version, len(server.state_dict(copy=False)["round"]))).encode())
    for name in sorted(held):
        found.update(name.encode() + held[name].contiguous().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def answers(name: str) -> list[int]:
    """Return who sends the first update, the second, and so on."""
    return [call.client for call in calls(name, ARRIVALS) if call.number is not None]


def play(server: fastagg.Server, name: str, number: int, client: int) -> fastagg.Receipt:
    control = {"control": update(number + 100, SIZE).float()} if name.startswith("FedAC") and number % 2 else {}
    server.dispatch(client)
    return server.receive(client, update(number, SIZE), num_samples=1 + number % 3, **control)


def states(name: str) -> list[str]:
    """Return the digests of one process that is not killed: before its first update and after each."""
    server = PRESETS[name](model(SIZE), seed=1)
    found = [digest(server, 0)]
    for number, client in enumerate(answers(name)):
        play(server, name, number, client)
        found.append(digest(server, server.version))
    return found


def rank(name: str, folder: Path, rank: int, size: int, store: str) -> None:
    """Run one rank until it is killed, or another one is."""
    torch.set_num_threads(1)
    fastagg.set_num_threads(1)
    dist.init_process_group(
        "gloo", store=dist.FileStore(store, size), rank=rank, world_size=size, timeout=timedelta(seconds=TIMEOUT)
    )
    server = fastagg.open(
        folder / "state",
        lambda: fastagg.sharded(lambda piece: PRESETS[name](piece, seed=1), model(SIZE), timeout=TIMEOUT),
        **SETTINGS,
    )
    if rank:
        server.follow()
        return
    server.save(folder / "seen")
    whole = Whole(folder / "seen", inside.direction(server).sliced, SIZE)
    mark = digest(whole, server.version)
    found = json.loads((folder / "states").read_text()).index(mark)
    os.write(1, f"found {found}\n".encode())
    for number, client in list(enumerate(answers(name)))[found:]:
        receipt = play(server, name, number, client)
        assert receipt.durable
        os.write(1, f"{number + 1}\n".encode())
        if number % 9 == 8:
            server.checkpoint()
    os.write(1, b"done\n")
    while True:
        server.flush()
        time.sleep(0.01)


def born(name: str, folder: Path, number: int, size: int, store: str, out: int) -> int:
    child = os.fork()
    if child:
        return child
    os.dup2(out, 1)
    try:
        rank(name, folder, number, size, store)
    except fastagg.RankLost:
        (folder / f"rank-{number}").write_text(traceback.format_exc())
        os._exit(3)
    except BaseException:
        traceback.print_exc()
    os._exit(1)


def lines(pipe: int, seconds: float = 120.0) -> Iterator[str]:
    held, until = b"", time.monotonic() + seconds
    while True:
        whole, line, rest = held.partition(b"\n")
        if line:
            held = rest
            yield whole.decode()
            continue
        ready, _, _ = select.select([pipe], [], [], max(0.0, until - time.monotonic()))
        more = os.read(pipe, 4096) if ready else b""
        assert more, "rank 0 has ended, or is stuck"
        held += more


def kill(name: str, folder: Path, kills: int, seed: int) -> dict[str, Any]:
    """Let so many ranks die. Return how many answers were acknowledged, and how long things took."""
    rng, life, acknowledged, seen = random.Random(seed), 0, 0, 0
    noticed, ready = [], []
    size = RANKS
    for turn in range(kills):
        if rng.random() < 0.3:
            size = rng.randint(1, RANKS)  # those that are left, or new ones
        here = folder / f"life-{life}"
        here.mkdir(exist_ok=True)
        (here / "states").write_text((folder / "states").read_text())
        begun = time.monotonic()
        pipe, out = os.pipe()
        pids = [born(name, here, number, size, str(folder / f"store-{turn}"), out) for number in range(size)]
        os.close(out)
        until, victims = rng.randint(0, 20), pids
        try:
            for word in lines(pipe):
                if word.startswith("found"):
                    found = int(word.split()[1])
                    assert found in (acknowledged, acknowledged + 1), (name, seed, turn, found, acknowledged)
                    acknowledged = found
                    ready.append(time.monotonic() - begun)
                elif word != "done":
                    acknowledged, seen = int(word), seen + 1
                if until == 0 or word == "done":
                    break
                until -= 1
            time.sleep(rng.random() * 0.01)
            victims = pids if rng.random() < 0.2 else [rng.choice(pids)]
        finally:
            killed = time.monotonic()
            for pid in victims:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        for pid in pids:
            _, status = os.waitpid(pid, 0)
            code = os.waitstatus_to_exitcode(status)
            assert code == (-9 if pid in victims else 3), (name, seed, turn, code)
        noticed.append(time.monotonic() - killed)
        rest = b""
        while more := os.read(pipe, 4096):  # acknowledged before the kill
            rest += more
        os.close(pipe)
        for line in rest.decode().split("\n")[:-1]:
            if line.isdigit():
                acknowledged, seen = int(line), seen + 1
        if acknowledged == ARRIVALS:
            life, acknowledged = life + 1, 0
    return {"kills": kills, "acknowledged": seen, "noticed": max(noticed), "ready": max(ready, default=0.0)}


def main(name: str, folder: Path, kills: int, seed: int) -> None:
    child = os.fork()  # this process itself never computes: its children begin without threads
    if child == 0:
        (folder / "states").write_text(json.dumps(states(name)))
        os._exit(0)
    os.waitpid(child, 0)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    print(json.dumps(kill(name, folder, kills, seed)))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
