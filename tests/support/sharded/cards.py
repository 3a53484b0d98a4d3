"""Slices on CUDA devices, as the ranks of a sharded server. Rank 0 writes down every difference from one process on the
CPU.

python tests/support/sharded/cards.py RANK SIZE FOLDER

In a build that emulates CUDA (tests/emulation) the kernels run on the CPU. Otherwise every rank has a card if
there are enough, and then tensors go between cards with NCCL.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))  # as in pytest

import torch
import torch.distributed as dist

import fastagg
from fastagg._build import native
from fastagg.ops.place import emulated
from fastagg.storage import memory
from support.presets import CLIENTS, model, update
from support.sharded import ranks
from support.sharded.ranks import SIZE, alone, command, difference, leave, make, play, restarted, run, sharded, shared

NAMES = (
    "FADAS, moments in 8 bits", "FedBuff, clipped, by samples", "FedAsync, polynomial", "ACE, int8", "ACED, int4",
    "CA2FL, int4", "AsyncFedED", "FedAC, moments in 8 bits", "FedAvg, deterministic", "ASGD",
)  # fmt: skip
RESTARTED = "ACE, int8"
FAILS = "FADAS, moments in 8 bits"
Device = torch.device | None


def ranks_here() -> int:
    """Return how many ranks a run has on this machine."""
    return 4 if native.cuda_emulated else 2


def own_cards(size: int) -> bool:
    """Return whether every rank has a card of its own, and NCCL connects them."""
    return not native.cuda_emulated and torch.cuda.device_count() >= size and dist.is_nccl_available()


def cases(size: int) -> dict[str, tuple[str, int]]:
    """Return every preset with 1 to ``size`` ranks in turn."""
    found = [(name, 1 + place % size) for place, name in enumerate(NAMES)]
    found += [(RESTARTED, size), (FAILS, size)]
    return {f"{name}, {count} ranks": (name, count) for name, count in found}


def start(rank: int, size: int, folder: Path) -> Device:
    """Join the group. Return this rank's device; None for the CPU, on which the kernels are emulated."""
    if native.cuda_emulated:
        ranks.start(rank, size, folder)
        return None
    device = torch.device("cuda", rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    store = dist.FileStore(str(folder / "store"), size)
    backend = "cpu:gloo,cuda:nccl" if own_cards(size) else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=timedelta(seconds=ranks.PATIENCE))
    return device


def on_the_cpu() -> AbstractContextManager[None]:
    return emulated(False) if native.cuda_emulated else nullcontext()


class FrontEnd:
    """Gives its rank its slices of some answers. They are on the rank's device."""

    def __init__(self, server: fastagg.Server, name: str, device: Device) -> None:
        self.server, self.device, self.name = server, device, name
        self._coming = self._answers()

    def delivers(self, number: int | None) -> bool:
        return number is not None and number % 3 == 1 and not self.name.startswith("FedAC")  # which have a control

    def _answers(self) -> Iterator[int | None]:
        """Yield the number of the answer to each task of the run, in order."""
        steps = run(self.name)
        for at, call in enumerate(steps):
            if call.number is None:
                later = (one.number for one in steps[at + 1 :] if one.client == call.client and one.number is not None)
                yield next(later, None)

    def sent(self, task: fastagg.Dispatch) -> None:
        number = next(self._coming)
        if number is not None and self.delivers(number):
            _, begin, end, _ = self.server.slices()[self.server.rank]
            part = update(number, SIZE)[begin:end].clone()
            self.server.deliver(task.client, part if self.device is None else part.to(self.device), task.version)

    def lies(self, number: int) -> Any:
        """Return where rank 0 finds an answer: delivered, in shared memory, or whole on its own card."""
        if self.delivers(number):
            return None
        if number % 3 == 0:
            return shared(number)
        return update(number, SIZE) if self.device is None else update(number, SIZE).to(self.device)


def equal(name: str, group: Any, folder: Path, device: Device) -> str:
    there = model(SIZE) if device is None else model(SIZE).to(device)  # a model on a card makes a server on this card
    server = sharded(make(name), there, group)
    if device is not None and server.flat.device != device:
        return f"the slice is on {server.flat.device}, expected {device}"
    front = FrontEnd(server, name, device)
    if server.rank:
        server.follow(front.sent)
        return ""
    with server:
        said = []
        for call in run(name):
            said.append(play(_Tells(server, front), call, name, front.lies))
        server.save(folder)
        if device is not None and server.parameters().device != device:
            return f"parameters() are on {server.parameters().device}"
        with on_the_cpu():
            alone(name)
        return difference(name, folder, said, server)


class _Tells:
    """A server whose tasks its front end hears of."""

    def __init__(self, server: fastagg.Server, front: FrontEnd) -> None:
        self._front, self.receive = front, server.receive
        self._dispatch = server.dispatch

    def dispatch(self, client: fastagg.server.dispatch.Client) -> fastagg.Dispatch:
        task = self._dispatch(client)
        self._front.sent(task)
        return task


def refused(name: str, device: Device, size: int) -> dict[str, Any]:
    """What a card refuses, no rank applies: memory that one card lacks, or a NaN in the last slice."""
    server = sharded(make(name, device), model(SIZE))
    if server.rank:
        with failing_once() if server.rank == size - 1 else nullcontext():
            server.follow()
        return {}
    found: dict[str, Any] = {}
    with on_the_cpu():
        one = make(name)(model(SIZE))
    bad = update(0, SIZE).clone()
    bad[-1] = torch.nan
    with server:
        for number, given in enumerate((update(0, SIZE), bad, *(update(later, SIZE) for later in range(1, 8)))):
            before, client = server.parameters().clone(), number % CLIENTS
            for each in (server, one):
                with on_the_cpu() if each is one else nullcontext():
                    each.dispatch(client)
            try:
                server.receive(client, given)
            except fastagg.FastaggError as error:
                found[str(number)] = [f"{type(error).__name__}: {error}", torch.equal(before, server.parameters())]
                for each in (server, one):
                    each.forget(client)
                continue
            with on_the_cpu():
                one.receive(client, given)
        found["same"] = torch.equal(server.parameters().cpu(), one.flat) and server.version == one.version > 1
    return found


@contextmanager
def failing_once() -> Iterator[None]:
    """Let this rank's card be without memory once."""
    empty_bytes = memory.empty_bytes

    def fails(*given: Any, **named: Any) -> Any:
        memory.empty_bytes = empty_bytes
        raise MemoryError("none left on the card")

    memory.empty_bytes = fails
    try:
        yield
    finally:
        memory.empty_bytes = empty_bytes


def on_a_mesh(device: torch.device, size: int) -> dict[str, Any]:
    """A model of FSDP2 on a mesh of cards is taken and given back."""
    from distributed import ARRIVALS, drive, net, same
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import fully_shard

    module = net().to(device)
    fully_shard(module, mesh=DeviceMesh("cuda", list(range(size))))
    server = sharded(make(FAILS), module)
    _, begin, end, _ = server.slices()[server.rank]
    for number in range(ARRIVALS):
        server.deliver(number, update(number, server.layout.size)[begin:end].to(device), number // 2)
    if server.rank == 0:
        with server:
            drive(server, server.layout.size, delivered=True)
            module.load_state_dict(server.parameters())
    else:
        server.follow(collected=module.load_state_dict)
    one = make(FAILS)(net())
    drive(one, server.layout.size)
    taken = {name: value.full_tensor().cpu() for name, value in module.state_dict().items()}
    return {"same": same(taken, one.parameters()), "device": str(server.flat.device), "expected": str(device)}


def main(rank: int, size: int, folder: Path) -> None:
    device = start(rank, size, folder)
    groups = {count: dist.new_group(list(range(count))) for count in range(1, size + 1)}
    found: dict[str, Any] = {}
    with emulated() if native.cuda_emulated else nullcontext():
        for case, (name, count) in cases(size).items():
            if rank < count:
                found[case] = equal(name, groups[count], folder / case, device)
        with on_the_cpu():
            alone(RESTARTED)
        turns = [groups[count] for count in (size, 1, size // 2, size)]
        found["restarted"] = restarted(RESTARTED, turns, folder / "restarted", rank, device)
        found["refused"] = {name: refused(name, device, size) for name in (FAILS, RESTARTED)}
        if device is not None and own_cards(size):
            found["mesh"] = on_a_mesh(device, size)
    leave(folder / f"found-{rank}.json", found)


if __name__ == "__main__":
    command(main)
