"""Models whose tensors are distributed, as the ranks of a sharded server. Each rank writes down what it found.

python tests/support/sharded/distributed.py RANK SIZE FOLDER
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

sys.path.insert(0, str(Path(__file__).parents[2]))  # as in pytest

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import fastagg
from support.presets import update
from support.sharded.ranks import command, leave, led, sharded, start

ONE_DIMENSION, TWO_DIMENSIONS = (2, 3), 4  # how many ranks have which mesh
ARRIVALS = 5
Found = dict[str, Any]


def make(piece: Any) -> fastagg.Server:
    return fastagg.FADAS(piece, lr=0.01, buffer_size=2, clip_norm=50.0, moments="8bit", seed=5)


def net() -> nn.Module:
    """Four groups of parameters; no number of rows is a multiple of the ranks, and two rows are fewer than three."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(401, 301), nn.Tanh(), nn.Linear(301, 301), nn.Tanh(), nn.Linear(301, 2))


def drive(server: Any, size: int, *, delivered: bool = False) -> None:
    for number in range(ARRIVALS):
        server.dispatch(number)
        server.receive(number, None if delivered else update(number, size))


def deliver(server: fastagg.Server) -> None:
    """Put this rank's slices of all updates where `drive` expects them. Two updates are a step."""
    _, begin, end, _ = server.slices()[server.rank]
    for number in range(ARRIVALS):
        server.deliver(number, update(number, server.layout.size)[begin:end].clone(), number // 2)


class Largest(TorchDispatchMode):
    """Finds the size of the largest tensor that is made on this rank. Nothing may be redistributed meanwhile."""

    def __init__(self) -> None:
        super().__init__()
        self.size = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        plain = [one for one in tree_leaves(found) if type(one) is Tensor and not one.is_meta]
        self.size = max(self.size, *(one.untyped_storage().nbytes() // 4 for one in plain), 0)
        return found


@contextmanager
def watched() -> Iterator[Largest]:
    with mock.patch.object(DTensor, "redistribute", side_effect=AssertionError), Largest() as largest:
        yield largest


def mine_elsewhere(server: fastagg.Server, held: list[tuple[int, int]]) -> int:
    """Return how many elements this rank has in its rows or in its slice, but not in both."""
    _, begin, end, _ = server.slices()[server.rank]
    both = sum(max(0, min(end, last) - max(begin, first)) for first, last in held)
    return (end - begin) + sum(last - first for first, last in held) - 2 * both


def rows_of(entries: Any, ranks: int, rank: int) -> list[tuple[int, int]]:
    """Return the elements of the flat vector that torch.chunk gives this rank."""
    found = []
    for entry in entries:
        whole = torch.arange(entry.offset, entry.offset + entry.size).view(entry.shape)
        chunks = whole.chunk(ranks)
        if rank < len(chunks):
            found.append((int(chunks[rank].min()), int(chunks[rank].max()) + 1))
    return found


def fsdp(found: Found, mesh: DeviceMesh) -> None:
    whole, module = net(), net()
    for layer in module:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(module, mesh=mesh)
    with watched() as largest:
        server = sharded(make, module)
    size = server.layout.size
    _, begin, end, _ = server.slices()[server.rank]
    found["size"], found["largest at the start"], found["slice"] = size, largest.size, end - begin
    elsewhere = mine_elsewhere(server, rows_of(server.layout.entries, dist.get_world_size(), dist.get_rank()))
    found["traffic"] = [server.traffic, 4 * elsewhere]
    deliver(server)
    with watched() as largest:
        if server.rank == 0:
            with server:
                drive(server, size, delivered=True)
                module.load_state_dict(server.parameters())
        else:
            server.follow(collected=module.load_state_dict)
    found["largest at the end"] = largest.size
    alone = make(whole)
    drive(alone, size)
    whole.load_state_dict(alone.parameters())
    found["version"] = [server.version, alone.version]
    found["taken back"] = same(module.state_dict(), whole.state_dict())
    found["goes on"] = trained_alike(module, whole)
    again = sharded(make, module)
    got = list[Any]()
    if again.rank == 0:
        with again:
            got.append(again.parameters())
    else:
        again.follow(collected=got.append)
    found["taken again"] = same(got[0], module.state_dict())


def same(given: Any, expected: Any) -> bool:
    """Compare to the bit. All ranks must call it if tensors are distributed."""
    return list(given) == list(expected) and all([torch.equal(whole(given[k]), whole(expected[k])) for k in given])


def whole(value: Any) -> Tensor:
    return value.full_tensor() if isinstance(value, DTensor) else value


def trained_alike(module: nn.Module, plain: nn.Module) -> bool:
    """Train both for two steps on the same data, and compare them."""
    images, losses = torch.randn(16, 401, generator=torch.Generator().manual_seed(1)), []
    for one in (module, plain):
        optimizer = torch.optim.SGD(one.parameters(), lr=0.1, momentum=0.9)
        for _ in range(2):
            optimizer.zero_grad()
            loss = one(images).square().mean()
            loss.backward()
            optimizer.step()
        losses.append(loss)
    torch.testing.assert_close(losses[0], losses[1], rtol=1e-4, atol=1e-6)
    for mine, other in zip(module.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(whole(mine), other, rtol=1e-4, atol=1e-6)
    return True


def forms(found: Found, mesh: DeviceMesh, cut: list[Any], kept: list[Any], folder: Path) -> None:
    """Take and give back a model in every form. ``cut`` and ``kept``: placements."""

    def spread(value: Tensor, placements: list[Any]) -> DTensor:
        return distribute_tensor(value, mesh, placements)

    torch.manual_seed(0)
    arrays = {
        "cut": torch.randn(401, 301), "half": torch.randn(303, 300).bfloat16(), "few": torch.randn(2, 7),
        "kept": torch.randn(50, 301), "scalar": torch.tensor(0.5), "plain": torch.randn(77),
    }  # fmt: skip
    placements = {"cut": cut, "half": cut, "few": cut, "kept": kept, "scalar": kept}
    given = {name: spread(v, placements[name]) if name in placements else v for name, v in arrays.items()}
    flat = torch.randn(270_001)
    module, plain = tied(lambda value: nn.Parameter(spread(value, cut))), tied(nn.Parameter)
    for name, (one, expected) in {
        "state_dict": (given, arrays), "list": (list(given.values()), list(arrays.values())),
        "flat": (spread(flat, cut), flat), "module": (module, plain),
    }.items():  # fmt: skip
        found[name] = there_and_back(one, expected, folder / name)


def tied(parameter: Callable[[Tensor], nn.Parameter]) -> nn.Module:
    """A module with a tied parameter and a frozen one."""
    torch.manual_seed(1)
    module = nn.Module()
    module.first = parameter(torch.randn(401, 701))
    module.frozen = parameter(torch.randn(33, 3)).requires_grad_(False)
    module.second = module.first
    return module


def there_and_back(model: Any, plain: Any, folder: Path) -> str:
    """Return what is wrong; empty if nothing is."""
    server, alone = sharded(make, model), make(plain)
    got = list[Any]()
    if server.rank == 0:
        with server:
            drive(server, server.layout.size)
            got.append(server.parameters())
            server.save(folder)
    else:
        server.follow(collected=got.append)
    drive(alone, server.layout.size)
    expected, before = alone.parameters(), model.state_dict() if isinstance(model, nn.Module) else model
    if type(got[0]) is not type(expected) and not isinstance(got[0], DTensor):
        return f"a {type(got[0])}, expected a {type(expected)}"
    for name, mine, value, former in zip(*map(named, (got[0], got[0], expected, before)), strict=True):
        if not torch.equal(whole(mine[1]), value[1]) or mine[1].dtype != value[1].dtype:
            return f"{name[0]} differs"
        if isinstance(former[1], DTensor) != isinstance(mine[1], DTensor):
            return f"{name[0]} is a {type(mine[1])}"
        if isinstance(former[1], DTensor):
            now, then = mine[1], former[1]
            if (now.device_mesh, now.placements, now.shape) != (then.device_mesh, then.placements, then.shape):
                return f"{name[0]} is placed {now.placements}"
            if now.to_local().shape != then.to_local().shape:
                return f"{name[0]} has {now.to_local().shape} on rank {dist.get_rank()}"
    other = sharded(make, plain)  # a checkpoint does not depend on where the tensors were
    with led(other) as leads:
        if leads:
            other.load(folder)
            pairs = zip(named(other.parameters()), named(expected), strict=True)
            if not all(torch.equal(mine, value) for (_, mine), (_, value) in pairs):
                return "the checkpoint differs"
    return ""


def named(model: Any) -> list[tuple[Any, Any]]:
    if isinstance(model, dict):
        return list(model.items())
    return list(enumerate(model)) if isinstance(model, list) else [("", model)]


def refused(found: Found, mesh: DeviceMesh) -> None:
    values = torch.zeros(400, 700)
    small = DeviceMesh("cpu", [0])
    rank, rows, kept = dist.get_rank(), *(distribute_tensor(values, mesh, [one]) for one in (Shard(0), Replicate()))
    backwards = DeviceMesh("cpu", list(reversed(range(dist.get_world_size()))))
    models = {
        "another order": {"w": DTensor.from_local(values, backwards, [Replicate()])},
        "Shard(1)": {"w": distribute_tensor(values, mesh, [Shard(1)])},
        "Partial": {"w": DTensor.from_local(values, mesh, [Partial()])},
        "another mesh": {"w": distribute_tensor(values, small, [Replicate()])},
        "one has it whole": {"w": rows if rank else values},
        "no numbers": {"w": distribute_tensor(values.to("meta"), mesh, [Shard(0)])},
        "another placement": {"w": rows if rank else kept},
    }
    for case, model in models.items():
        try:
            sharded(make, model)
            found[case] = ""
        except fastagg.FastaggError as error:
            found[case] = f"{type(error).__name__}: {error}"


def main(rank: int, size: int, folder: Path) -> None:
    start(rank, size, folder)
    found: Found = {}
    if size == TWO_DIMENSIONS:
        mesh = DeviceMesh("cpu", [[0, 1], [2, 3]])
        forms(found, mesh, [Replicate(), Shard(0)], [Replicate(), Replicate()], folder)
    else:
        mesh = DeviceMesh("cpu", list(range(size)))
        fsdp(found, mesh)
        forms(found, mesh, [Shard(0)], [Replicate()], folder)
        refused(found, mesh)
    leave(folder / f"found-{rank}.json", found)


if __name__ == "__main__":
    command(main)
