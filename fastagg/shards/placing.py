"""Where a model is among the ranks, and how it gets from there into their slices and back.

A rank has each parameter whole or, if the model's tensors are distributed (DTensor, as FSDP2 makes them), some rows of
it. Both are ranges of the flat vector, and so is a slice. Parameters are moved one after the other. So besides its rows
and its slice a rank holds at most its part of one parameter.
"""

from __future__ import annotations

import math
import socket
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fastagg._types import Arrays, Foreign
from fastagg.errors import ConfigError
from fastagg.model import Entry, Layout, dense
from fastagg.shards.link import Link
from fastagg.storage import raw

Range = tuple[int, int]  # the first, and the end


class Move(NamedTuple):
    """Elements that one rank gives to another one, or to itself."""

    source: int
    target: int
    begin: int
    end: int


def moves(have: Sequence[Range], want: Sequence[Range]) -> Iterator[Move]:
    """Yield what must go where, so that every rank gets the range that it wants. Both arguments are by rank.

    What a rank has, it takes from itself. Everything else comes from the first rank that has it.
    """
    for target, (at, end) in enumerate(want):
        while at < end:
            ranks = (target, *range(len(have)))
            source = next(rank for rank in ranks if have[rank][0] <= at < have[rank][1])
            last = min(end, have[source][1])
            yield Move(source, target, at, last)
            at = last


def carry(link: Link, have: Sequence[Range], want: Sequence[Range], source: Tensor, target: Tensor) -> None:
    """Copy ranges of a vector between ranks. All ranks call it together.

    Args:
        link: the link to the other ranks.
        have, want: by rank, ranges of elements.
        source: the elements that this rank has, 1-D, of any floating-point type, on any device.
        target: memory for those that it wants, 1-D, fp32, on any device.

    Raises:
        RankLost: a rank does not answer.
    """
    sends: list[tuple[int, Tensor]] = []
    receives: list[tuple[int, Tensor]] = []
    landed: list[tuple[Tensor, Tensor]] = []
    for move in moves(have, want):
        if move.target == link.rank:
            first = want[link.rank][0]
            space = target[move.begin - first : move.end - first]
        if move.source == link.rank:
            first = have[link.rank][0]
            piece = source[move.begin - first : move.end - first]
            if move.target == link.rank:
                space.copy_(piece)
            else:
                sends.append((move.target, piece.to(link.carries, torch.float32)))
        elif move.target == link.rank:
            room = space if space.device == link.carries else torch.empty_like(space, device=link.carries)
            receives.append((move.source, room))
            landed.append((space, room))
    link.exchange(sends, receives)
    for space, room in landed:
        if room is not space:
            space.copy_(room)


class _Spread(NamedTuple):
    """Where one parameter is.

    Attributes:
        entry: its name, shape and type.
        device: where this rank's part of it is.
        rows: by rank, the rows that the rank has.
        mesh, placements: those of its DTensor. None and empty if every rank has it whole.
    """

    entry: Entry
    device: torch.device
    rows: list[Range]
    mesh: Foreign = None
    placements: tuple[Foreign, ...] = ()

    @property
    def whole(self) -> Range:
        """Its elements of the flat vector."""
        return self.entry.offset, self.entry.offset + self.entry.size

    @property
    def held(self) -> list[Range]:
        """By rank, the elements of the flat vector that the rank has."""
        begin, width = self.entry.offset, math.prod(self.entry.shape[1:])
        return [(begin + first * width, begin + last * width) for first, last in self.rows]


class Placing:
    """Where the parameters of a model are.

    Args:
        model: the model, in any form that a server takes, whole or with distributed tensors. It is not kept.
        link: the link to the other ranks.

    Attributes:
        layout: the layout of the whole model.
        device: where the model is on this rank: the device of its first parameter.

    Raises:
        ConfigError: a tensor is placed in another way than Replicate or Shard(0), or on other ranks than the link's.
    """

    def __init__(self, model: Arrays, link: Link) -> None:
        self._link = link
        self.layout = Layout.of(model, _taken)
        self._spreads = [_spread(entry, tensor, link) for entry, tensor in self.layout.parameters(model, _taken)]
        self.device = self._spreads[0].device if self._spreads else torch.device("cpu")
        self._distributed = any(one.mesh is not None for one in self._spreads)

    def described(self) -> dict[str, str]:
        """Return placements and mesh of every distributed parameter as text. All ranks must have the same."""
        return {
            one.entry.name: f"{one.placements} on the ranks {one.mesh.mesh.tolist()}"
            for one in self._spreads
            if one.mesh is not None
        }

    def checksum(self, model: Arrays) -> str:
        """Return a checksum of all parameters that every rank has whole. All ranks must have the same: each makes its
        slice from its own model."""
        found = 0
        for spread, (_, tensor) in zip(self._spreads, self.layout.parameters(model, _taken), strict=True):
            if spread.mesh is None:
                values = tensor.detach().cpu().contiguous()
                found = raw.crc32c([raw.at(values.data_ptr(), values.nbytes)], found)
        return f"{found:08x}"

    def card(self) -> list[str] | None:
        """Return what identifies the card that the model is on; None if it is on none."""
        if self.device.type != "cuda":
            return None
        return [socket.gethostname(), str(torch.cuda.get_device_properties(self.device).uuid)]

    def slice_of(self, model: Arrays, bounds: Sequence[Range]) -> Tensor:
        """Return this rank's slice of the flat vector, fp32, on the model's device. All ranks call this together,
        because it is collected from them.

        Args:
            model: the model.
            bounds: the slices of all ranks.
        """
        begin, end = bounds[self._link.rank]
        found = torch.empty(end - begin, device=self.device)
        for spread, (_, tensor) in zip(self._spreads, self.layout.parameters(model, _taken), strict=True):
            want = [_common(one, spread.whole) for one in bounds]
            target = _inside(found, begin, want[self._link.rank])
            carry(self._link, spread.held, want, _local(tensor).reshape(-1), target)
        return found

    def given_back(self, flat: Tensor, bounds: Sequence[Range]) -> Arrays:
        """Return the model in the form in which it was given. It is made of the slices. All ranks call this together.

        Args:
            flat: this rank's slice.
            bounds: the slices of all ranks.

        Returns:
            If the model was whole, it is whole on rank 0, on the device on which it was given, and the other ranks get
            None. If tensors were distributed, every rank gets its part of them, with the same mesh, placements and
            device, and every other tensor whole.
        """
        rank = self._link.rank
        if not self._distributed:
            want = [(0, 0 if other else self.layout.size) for other in range(self._link.size)]
            whole = torch.empty(want[rank][1], device=self.device)
            carry(self._link, bounds, want, flat, whole)
            return None if rank else self.layout.views(whole, torch.empty(0), [])
        made: dict[tuple[int, tuple[int, ...]], Tensor] = {}
        for spread in self._spreads:
            have, want = [_common(one, spread.whole) for one in bounds], spread.held
            values = torch.empty(want[rank][1] - want[rank][0], device=spread.device)
            carry(self._link, have, want, _inside(flat, bounds[rank][0], have[rank]), values)
            made[spread.entry.offset, spread.entry.shape] = _as_given(spread, spread.rows[rank], values)
        arrays = {
            e.name: self.layout.constants[e.offset] if e.role == "constant" else made[e.offset, e.shape]
            for e in self.layout.entries
        }
        if self.layout.form in ("module", "state_dict"):
            return arrays
        return list(arrays.values()) if self.layout.form == "list" else arrays[""]


def _taken(name: str, value: Arrays) -> Tensor:
    """Return an array as a tensor, which may be distributed."""
    if not (isinstance(value, Tensor) and hasattr(value, "device_mesh")):
        return dense(name, value)
    found = value.detach()
    dense(name, _local(found))
    return found


def _local(tensor: Arrays) -> Tensor:
    found: Tensor = tensor.to_local() if hasattr(tensor, "device_mesh") else tensor
    return found


def _spread(entry: Entry, tensor: Arrays, link: Link) -> _Spread:
    rows = entry.shape[0] if entry.shape else 1
    mesh = getattr(tensor, "device_mesh", None)
    if mesh is None:
        return _Spread(entry, tensor.device, [(0, rows)] * link.size)
    from torch.distributed.tensor import Replicate, Shard

    placements, grid = tuple(tensor.placements), mesh.mesh
    cut = [dim for dim, placement in enumerate(placements) if placement != Replicate()]
    if len(cut) > 1 or any(type(placements[dim]) is not Shard or placements[dim].dim != 0 for dim in cut):
        raise ConfigError(
            f"model: {entry.name!r} is placed {placements}; a sharded server takes Replicate and one Shard(0). Give "
            "every rank the whole state_dict, as get_model_state_dict(model, "
            "options=StateDictOptions(full_state_dict=True)) of torch.distributed.checkpoint.state_dict makes it"
        )
    if grid.flatten().tolist() != sorted(link.ranks):  # torch does not scatter as its own offsets say in other orders
        raise ConfigError(
            f"model: {entry.name!r} is on the ranks {grid.tolist()}; expected those of the server's group, in order: "
            f"{sorted(link.ranks)}"
        )
    mine = _local(tensor)
    spread = _Spread(entry, mine.device, [_rows(rows, grid, cut, rank) for rank in link.ranks], mesh, placements)
    first, last = spread.held[link.rank]
    if mine.numel() != last - first:
        raise ConfigError(
            f"model: {entry.name!r}: expected {last - first} elements on rank {link.rank}, got {mine.numel()}"
        )
    return spread


def _rows(rows: int, grid: Tensor, cut: list[int], rank: int) -> Range:
    """Return the rows of a rank: chunks as those of torch.chunk, so the last ranks may have fewer, or none."""
    if not cut:
        return 0, rows
    each = -(-rows // grid.shape[cut[0]])
    first = each * int((grid == rank).nonzero()[0, cut[0]])
    return min(rows, first), min(rows, first + each)


def _as_given(spread: _Spread, rows: Range, values: Tensor) -> Tensor:
    shape = (rows[1] - rows[0], *spread.entry.shape[1:]) if spread.entry.shape else ()
    found = values.view(shape).to(getattr(torch, spread.entry.dtype))
    if spread.mesh is None:
        return found
    from torch.distributed.tensor import DTensor

    whole = torch.empty(spread.entry.shape, device="meta")
    return DTensor.from_local(
        found, spread.mesh, spread.placements, run_check=False, shape=whole.shape, stride=whole.stride()
    )


def _common(one: Range, other: Range) -> Range:
    begin, end = max(one[0], other[0]), min(one[1], other[1])
    return begin, max(begin, end)


def _inside(vector: Tensor, begin: int, part: Range) -> Tensor:
    """Return a part of a vector whose first element is ``begin``. An empty part may be anywhere."""
    return vector[part[0] - begin : part[1] - begin] if part[0] < part[1] else vector[:0]
