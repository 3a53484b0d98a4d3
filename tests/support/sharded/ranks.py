"""Runs presets as the ranks of a sharded server. Rank 0 writes down every difference from one process.

python tests/support/sharded/ranks.py RANK SIZE FOLDER NAME...
"""

from __future__ import annotations

import json
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))  # as in pytest

import torch
import torch.distributed as dist

import fastagg
from fastagg.server import checkpoint
from fastagg.shards import states
from support import inside
from support.presets import PRESETS, Call, calls, model, tensors, update

PATIENCE = 600.0  # seconds: emulated kernels under sanitizers, beside other work
sharded = partial(fastagg.sharded, timeout=PATIENCE)
SIZE = 4 * 65_536 + 5_001  # five groups, the last one not whole
ARRIVALS = 15
SEED = 2**40 + 7
LEFT_OUT = ("AsyncFedED, sketched",)
RESTARTED = (
    "FADAS, moments in 8 bits", "ACE, int8", "ACE, of five", "ACED, int4", "CA2FL, latest, int8", "AsyncFedED", "FedAC",
    "FedAvg, deterministic",
)  # fmt: skip
EVERY_NUMBER = ("FADAS, moments in 8 bits", "ACE, int8", "ACE, int4", "AsyncFedED")


def start(rank: int, size: int, folder: Path) -> None:
    torch.set_num_threads(1)
    fastagg.set_num_threads(1)
    store = dist.FileStore(str(folder / "store"), size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=PATIENCE))


def leave(path: Path, found: object) -> None:
    """Write down what a rank has found, unless it is None, and leave the group together with all others."""
    if found is not None:
        path.write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


def command(main: Callable[[int, int, Path], None]) -> None:
    """Run a rank's program with RANK SIZE FOLDER. Its error is printed at once: the process may be slow to end."""
    try:
        main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
    except BaseException:
        traceback.print_exc()
        raise


def make(name: str, device: torch.device | None = None) -> Callable[[Any], fastagg.Server]:
    return lambda piece: PRESETS[name](piece, seed=SEED, device=device)


@lru_cache(maxsize=64)
def shared(number: int) -> fastagg.SharedVector:
    values = update(number, SIZE)
    vector = fastagg.SharedVector(SIZE, values.dtype)
    vector.tensor.copy_(values)
    return vector


def play(server: Any, call: Call, name: str, lies: Callable[[int], Any]) -> Any:
    if call.number is None:
        return server.dispatch(call.client).local_steps
    control: dict[str, Any] = {}
    if name.startswith("FedAC") and call.number % 2:
        control = {"control": update(call.number + 100, SIZE).float()}
    receipt = server.receive(call.client, lies(call.number), num_samples=3 + call.number % 4, **control)
    return receipt


def run(name: str) -> list[Call]:
    return list(calls(name, ARRIVALS))


@cache
def alone(name: str) -> tuple[dict[str, torch.Tensor], list[Any]]:
    server = make(name)(model(SIZE))
    said = [play(server, call, name, lambda number: update(number, SIZE)) for call in run(name)]
    return tensors(server), said


def cases(size: int) -> dict[str, tuple[str, int]]:
    """Return every preset with 2 to ``size`` ranks in turn, and some presets with every number of ranks."""
    names = [name for name in PRESETS if name not in LEFT_OUT]
    found = [(name, 2 + place % (size - 1)) for place, name in enumerate(names)]
    found += [(name, count) for name in EVERY_NUMBER for count in range(1, size + 1)]
    return {f"{name}, {count} ranks": (name, count) for name, count in found}


class Whole:
    """What `tensors` needs: the state of the whole model, from the files of its slices."""

    def __init__(self, folder: Path, sliced: Mapping[str, str], size: int = SIZE) -> None:
        manifest = checkpoint.read(folder / "manifest.pt")
        parts = [states.Part(begin, end, checkpoint.read(folder / file)) for begin, end, file in manifest["slices"]]
        self.state = states.slice_of(parts, 0, size, sliced)

    def state_dict(self, copy: bool) -> Any:
        return self.state


def difference(name: str, folder: Path, said: list[Any], server: Any) -> str:
    """Return the differences from one process as text; empty if there are none."""
    expected, receipts = alone(name)
    found = tensors(Whole(folder, inside.direction(server).sliced))
    if found.keys() != expected.keys():
        return f"holds {sorted(found)}, expected {sorted(expected)}"
    for key, tensor in expected.items():
        if not torch.equal(found[key].view(torch.uint8), tensor.contiguous().view(torch.uint8)):
            return f"{key} differs"
    if not torch.equal(server.parameters().cpu(), expected["flat"]):
        return "parameters() differ"
    differ = [both for both in zip(said, receipts, strict=True) if both[0] != both[1]]
    return f"receipts differ: {differ[:1]}" if differ else ""


@contextmanager
def led(server: fastagg.Server) -> Iterator[bool]:
    """Yield True on rank 0. The other ranks follow until it is done."""
    if server.rank:
        server.follow()
        yield False
        return
    try:
        yield True
    finally:
        server.close()


def equal(name: str, group: Any, folder: Path) -> str:
    server = sharded(make(name), model(SIZE), group)
    found = ""
    with led(server) as leads:
        if leads:
            said = [play(server, call, name, shared) for call in run(name)]
            server.save(folder)
            found = difference(name, folder, said, server)
    return found


def reused(name: str, group: Any, *, own: bool) -> str:
    """Write every answer to one shared vector, the caller's ``own`` or the server's. All ranks but 0 are slow to
    step."""
    server, found = sharded(make(name), model(SIZE), group), ""
    if server.rank:
        agree = server._parts.norms.agree

        def agree_and_sleep() -> None:
            agree()
            time.sleep(0.05)

        server._parts.norms.agree = agree_and_sleep
    vector = fastagg.SharedVector(SIZE)

    def lies(number: int) -> Any:
        if not own:
            return update(number, SIZE)
        vector.tensor.copy_(update(number, SIZE))
        return vector

    with led(server) as leads:
        if leads:
            expected, receipts = alone(name)  # which computes the updates, too
            said = [play(server, call, name, lies) for call in run(name)]
            same = torch.equal(server.parameters(), expected["flat"]) and said == receipts
            found = "" if same else "the model or receipts differ"
    return found


def methods(group: Any) -> dict[str, bool]:
    """Call the methods that take several answers, chunks, or sums of leaves. Return which of them equal one process."""
    settings: dict[str, Any] = {"buffer_size": 6, "weighting": "samples", "clip_norm": 40.0}

    def fedbuff(piece: Any) -> fastagg.Server:
        return fastagg.FedBuff(piece, **settings)

    def fedac(piece: Any) -> fastagg.Server:
        return fastagg.FedAC(piece, lr=0.01, buffer_size=2)

    def leaf() -> fastagg.Partial:
        leaf = fastagg.Leaf(model(SIZE), weighting="samples", clip_norm=40.0)
        for number in (7, 8, 9):
            leaf.fold(update(number, SIZE), 10 + number)
        return leaf.take()

    def drive(one: Any) -> list[Any]:
        said: list[Any] = []
        for client in range(4):
            one.dispatch(client)
        bad = update(1, SIZE).clone()
        bad[-1] = torch.inf
        answers = [(0, update(0, SIZE), 0, 3), (1, bad, None, 1), (7, bad), [1, update(1, SIZE), 0, 2.5]]
        said += [str(outcome) for outcome in one.receive_many(answers)]
        sent = update(4, SIZE)  # bf16
        with one.receiving(2, 0, 5, dtype=sent.dtype) as upload:
            whole = sent.view(torch.uint8).numpy().tobytes()
            for at in range(0, len(whole), 300_001):
                upload.write(whole[at : at + 300_001])
        said.append(upload.receipt)
        said.append(one.receive_partial(3, leaf(), 0, incarnation=one.incarnation))
        said.append(torch.as_tensor(one.snapshot()).clone())
        return said

    server, found = sharded(fedbuff, model(SIZE), group), dict[str, bool]()
    with led(server) as leads:
        if leads:
            mine, its = drive(server), drive(fedbuff(model(SIZE)))
            found["receipts"] = mine[:-1] == its[:-1] and server.version == 1
            found["model"] = torch.equal(mine[-1], its[-1]) and torch.equal(server.parameters(), its[-1])
            try:
                with server.receiving(3, num_samples=1) as upload:
                    upload.write(b"too short")
            except fastagg.FastaggError as error:
                found["refused"] = isinstance(error, fastagg.UnknownVersion)  # it has been answered
    server = sharded(fedac, model(SIZE), group)
    with led(server) as leads:
        if leads:
            one = fedac(model(SIZE))
            for client, both in enumerate([(server, one)] * 4):
                for each in both:
                    each.dispatch(client)
                    each.receive(client, update(client, SIZE), control=update(client + 50, SIZE).float())
            _, begin, end, _ = server.slices()[0]
            assert server.control is not None and one.control is not None
            found["control"] = torch.equal(server.control, one.control[begin:end]) and bool(one.control.any())
    return found


def restarted(name: str, groups: list[Any], folder: Path, rank: int, device: torch.device | None = None) -> str:
    """Do a third of the run with each number of ranks. A folder carries the state from one to the next."""
    steps, said, found = run(name), [], ""
    for turn, group in enumerate(groups):
        if rank not in dist.get_process_group_ranks(group):
            dist.barrier()
            continue
        server = sharded(make(name, device), model(SIZE), group)
        with led(server) as leads:
            if leads:
                if turn:
                    server.load(folder)
                part = steps[len(steps) * turn // len(groups) : len(steps) * (turn + 1) // len(groups)]
                said += [play(server, call, name, shared) for call in part]
                server.save(folder)
                if turn == len(groups) - 1:
                    found = difference(name, folder, said, server)
        dist.barrier()
    return found


def main(rank: int, size: int, folder: Path) -> None:
    start(rank, size, folder)
    groups = {count: dist.new_group(list(range(count))) for count in range(1, size + 1)}
    found: dict[str, str] = {}
    for case, (name, count) in cases(size).items():
        if rank < count:
            found[case] = equal(name, groups[count], folder / case)
    for name in RESTARTED:
        turns = [groups[count] for count in (3, 2, 4, 1)]
        found[f"{name}, restarted"] = restarted(name, turns, folder / f"{name}, restarted", rank)
    for own in (True, False):
        found[f"reused, {own}"] = reused("FedAvg", groups[size], own=own)
    found |= {f"methods, {name}": "" if good else "differs" for name, good in methods(groups[size]).items()}
    leave(folder / "found.json", found if rank == 0 else None)


if __name__ == "__main__":
    command(main)
