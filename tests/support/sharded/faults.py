"""Four processes in which one thing after the other goes wrong. Each writes down what it saw.

python tests/support/sharded/faults.py RANK SIZE FOLDER
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import torch
import torch.distributed as dist

import fastagg
from fastagg.shards import folder
from support import inside
from support.presets import PRESETS, model, update
from support.sharded.ranks import SIZE, command, start

TIMEOUT, LONG = 3.0, 60.0
LEADS, DIES, STOPS = 1, 2, 3
NAME = "FADAS"


def make(piece: Any) -> fastagg.Server:
    return PRESETS[NAME](piece, seed=1)


class Seen:
    """What this rank saw in each case."""

    def __init__(self, rank: int, folder: Path) -> None:
        self.rank, self.folder, self.cases = rank, folder, dict[str, Any]()

    def write(self) -> None:
        (self.folder / f"seen-{self.rank}.json").write_text(json.dumps(self.cases))

    def raised(self, case: str, call: Callable[[], Any]) -> None:
        begun = time.monotonic()
        try:
            call()
            said = ""
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        self.cases[case] = [said, time.monotonic() - begun]
        self.write()


def refused_at_the_start(seen: Seen, group: Any) -> None:
    def other(piece: Any) -> fastagg.Server:
        return fastagg.FADAS(piece, lr=0.01 if dist.get_rank() != 1 else 0.02)

    def fails(piece: Any) -> fastagg.Server:
        if dist.get_rank() == 1:
            raise OSError("no such plan")
        return make(piece)

    seen.raised("settings", lambda: fastagg.sharded(other, model(SIZE), group, timeout=20))
    seen.raised("model", lambda: fastagg.sharded(make, model(SIZE) + (dist.get_rank() == 1), group, timeout=20))
    seen.raised("make", lambda: fastagg.sharded(fails, model(SIZE), group, timeout=20))


def all_or_none(seen: Seen, group: Any) -> None:
    """Every refusal leaves the state unchanged. At the end the model is that of the accepted answers."""
    server = fastagg.sharded(make, model(SIZE), group, timeout=20)
    rank, (_, begin, end, _) = server.rank, server.slices()[server.rank]
    if rank == 1:
        server.deliver(7, update(1, SIZE)[begin:end], 0)
        extension = inside.extension(server)
        weigh = extension._weigh

        def fails_once(*given: Any) -> Any:
            extension._weigh = weigh  # type: ignore[method-assign]
            raise MemoryError("none left")

        extension._weigh = fails_once  # type: ignore[method-assign]
    if rank != 0:
        seen.raised("drives", lambda: server.dispatch(1))
        server.follow()
        seen.cases["version"] = server.version
        return
    alone = make(model(SIZE))
    for client in (6, 7, 8):
        server.dispatch(client)
        alone.dispatch(client)
    folder = seen.folder / "checkpoint"
    bad = update(0, SIZE).clone()
    bad[-1] = torch.nan  # in the last rank's slice
    huge = update(0, SIZE).clone()
    huge[3] = 3e38  # in the first rank's slice
    seen.raised("lacks", lambda: server.receive_models([]))
    seen.raised("fails between", lambda: server.receive(6, update(0, SIZE)))
    before = server.parameters().clone()
    seen.raised("nan", lambda: server.receive(6, bad))
    seen.raised("too large", lambda: server.receive(6, huge))
    seen.raised("not delivered", lambda: server.receive(7, None))
    seen.raised("shape", lambda: server.receive(6, update(0, SIZE)[1:]))
    seen.raised("gone", lambda: server.receive(6, _closed()))
    seen.raised("unknown", lambda: server.receive(9, bad))
    seen.cases["unchanged"] = torch.equal(before, server.parameters()) and server.version == 0
    _, begin, end, _ = server.slices()[0]
    server.deliver(7, update(1, SIZE)[begin:end], 0)
    seen.raised("no checkpoint", lambda: server.load(folder))
    server.save(folder)
    same = server.receive(6, update(0, SIZE)) == alone.receive(6, update(0, SIZE))
    same &= server.receive(7, None) == alone.receive(7, update(1, SIZE))
    seen.cases["goes on"] = same and torch.equal(server.parameters(), alone.flat) and server.version == 1
    next(folder.glob("slice-*")).unlink()
    seen.raised("damaged", lambda: server.load(folder))
    seen.cases["still"] = torch.equal(server.parameters(), alone.flat) and server.version == 1
    seen.cases["traffic"] = _traffic(server)
    server.close()
    seen.raised("closed", lambda: server.dispatch(1))


def _traffic(server: fastagg.Server) -> list[int]:
    """Return the bytes of one arrival."""
    shared = fastagg.SharedVector(SIZE)
    shared.tensor.copy_(update(3, SIZE))
    before = server.traffic
    server.receive(8, shared)
    return [server.traffic - before, -(-SIZE // 65_536)]


def _closed() -> fastagg.SharedVector:
    vector = fastagg.SharedVector(SIZE)
    vector.close()
    return vector


def slow_checkpoint(seen: Seen, group: Any) -> None:
    """Each rank in turn takes longer for its part of a checkpoint than a rank waits for another."""
    server = fastagg.sharded(make, model(SIZE), group, timeout=TIMEOUT / 4)
    write = folder.write_slice
    turn = [0]

    def slowly(*given: Any) -> None:
        if turn[0] == server.rank:
            time.sleep(TIMEOUT / 2)
        turn[0] += 1
        write(*given)

    folder.write_slice = slowly
    if server.rank == 0:
        for _ in range(2):
            seen.raised("slow checkpoint", lambda: server.save(seen.folder / "slow"))
        server.close()
    else:
        server.follow()
    folder.write_slice = write


def lost(seen: Seen, group: Any, case: str, fails: Callable[[], None] | None, timeout: float = TIMEOUT) -> None:
    """A rank of the group, the leader or another one, fails after some arrivals."""
    dist.barrier(group)
    server = fastagg.sharded(make, model(SIZE), group, timeout=timeout)

    def lead() -> None:
        for number in range(4):
            server.dispatch(number)
            if fails is not None and number == 2:
                fails()
            server.receive(number, update(number, SIZE))

    def sent(task: fastagg.Dispatch) -> None:
        if fails is not None and task.client == 2:
            fails()

    seen.raised(case, lead if server.rank == 0 else lambda: server.follow(sent))
    seen.raised(f"{case}, again", (lambda: server.dispatch(1)) if server.rank == 0 else server.follow)


def stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def raises() -> None:
    raise OSError("the front end is gone")


def main(rank: int, size: int, here: Path) -> None:
    start(rank, size, here)
    seen = Seen(rank, here)
    (here / f"pid-{rank}").write_text(str(os.getpid()))
    two = dist.new_group([0, 1])
    groups = {r: dist.new_group([0, 1, r]) for r in (DIES, STOPS)}
    led = dist.new_group([LEADS, DIES])  # the group's first rank stops
    if rank in (0, 1):
        refused_at_the_start(seen, two)
        all_or_none(seen, two)
        slow_checkpoint(seen, two)
        lost(seen, two, "falls behind", raises if rank == 1 else None)
    if rank in (0, 1, STOPS):
        lost(seen, groups[STOPS], "stops", stop if rank == STOPS else None)
    if rank in (LEADS, DIES):
        lost(seen, led, "leader stops", stop if rank == LEADS else None)
        if rank == DIES:
            os.kill(int((here / f"pid-{LEADS}").read_text()), signal.SIGCONT)
    if rank in (0, 1, DIES):
        # the rank between the two others, so that what each of these waits for is not always the dead one
        lost(seen, groups[DIES], "dies", (lambda: os._exit(9)) if rank == LEADS else None, LONG)
    os._exit(0)  # the group cannot be closed, because some processes are gone


if __name__ == "__main__":
    command(main)
