"""Makes the state of a server on one slice from the states on other slices, for another number of ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from fastagg._build import native
from fastagg._types import State, Tree
from fastagg.errors import CheckpointError
from fastagg.storage.cache import FORMATS, SCALE_BLOCK

Range = TypeVar("Range", bound=tuple[int, int, object])  # the first element, the end, and what is of them
Sliced = Mapping[str, str]  # name in a direction's state -> how it is cut: vector, rows or blocks
_BLOCK = native.block  # elements of one block of an exact resummation


class Part(NamedTuple):
    """A slice's state, and the slice's place in the whole model."""

    begin: int
    end: int
    state: State


def overlapping(slices: Sequence[Range], begin: int, end: int) -> list[Range]:
    """Return the slices, in order, that overlap the elements from ``begin`` to ``end``.

    Raises:
        CheckpointError: the slices leave out some of these elements.
    """
    found = [one for one in slices if one[0] < end and begin < one[1]]
    at = begin
    for first, last, _ in found:
        if first > at:
            break
        at = last
    if at < end:
        raise CheckpointError(f"the checkpoint is damaged: its slices leave out elements from {at} on")
    return found


def slice_of(parts: Sequence[Part], begin: int, end: int, sliced: Sliced) -> State:
    """Return the state of the slice from ``begin`` to ``end``. ``parts`` must contain all of its elements.

    Data that is not per element (tasks, versions, weights, who answered) is the same on all ranks, so the first part's
    is used.

    Args:
        sliced: what of the direction's state is per element (:attr:`DirectionState.sliced`).
    """
    if len(parts) == 1 and (parts[0].begin, parts[0].end) == (begin, end):
        return parts[0].state
    cut = _Cut(parts, begin, end)
    first = dict(parts[0].state)
    first["flat"] = cut.vector("flat")
    first["moments"] = {
        name: cut.units("moments", name) if name == "units" else cut.vector("moments", name)
        for name in first["moments"]
    }
    versions = {key: cut.vector("tasks", "versions", key) for key in first["tasks"]["versions"]}
    first["tasks"] = {**first["tasks"], "versions": versions}
    first["round"] = [
        {**entry, "update": [cut.joined(dim=0, of=_update_of(i))]} for i, entry in enumerate(first["round"])
    ]
    direction = dict(first["direction"])
    for name, how in sliced.items():
        if direction.get(name) is not None:
            direction[name] = getattr(cut, how)("direction", name)
    first["direction"] = direction
    return first


class _Cut:
    """Cuts a piece from every part along one dimension and joins the pieces."""

    def __init__(self, parts: Sequence[Part], begin: int, end: int) -> None:
        self.parts, self.begin, self.end = parts, begin, end

    def joined(self, of: Callable[[State], Tree], dim: int, per: float = 1.0) -> Tree:
        """Return ``of(state)`` of all parts joined, with ``per`` entries per element along ``dim``. None if it is None.

        A slice's padding to a whole block is included. Only the model's last slice has padding.
        """
        found = []
        for part in self.parts:
            tensor = of(part.state)
            if tensor is None:
                return None
            first = round((max(self.begin, part.begin) - part.begin) * per)
            last = tensor.shape[dim] if part.end <= self.end else round((self.end - part.begin) * per)
            found.append(tensor.narrow(dim, first, last - first))
        return torch.cat(found, dim)

    def vector(self, *path: str | int) -> Tree:
        return self.joined(_at(path), 0)

    def units(self, *path: str | int) -> Tree:
        return self.joined(_at(path), 1, 1 / SCALE_BLOCK)

    def rows(self, *path: str | int) -> State:
        held = dict(_at(path)(self.parts[0].state))
        held["data"] = self.joined(_at((*path, "data")), 1, FORMATS[held["format"]] / 8)
        if held["scales"].shape[1]:
            held["scales"] = self.units(*path, "scales")
        return held

    def blocks(self, *path: str | int) -> State:
        """Return the blocks that are being added up anew, counted from the slice's own beginning."""
        found: list[tuple[int, int, Tensor]] = []
        for part in self.parts:
            found += _inside(part, _at(path)(part.state), self.begin, self.end)
        shadows = torch.stack([shadow for _, _, shadow in found]) if found else None
        return {"blocks": [block for block, _, _ in found], "done": [done for _, done, _ in found], "shadows": shadows}


def _inside(part: Part, held: State, begin: int, end: int) -> Iterator[tuple[int, int, Tensor]]:
    for i, (block, done) in enumerate(zip(held["blocks"], held["done"], strict=True)):
        place = part.begin + block * _BLOCK
        if begin <= place < end:
            yield (place - begin) // _BLOCK, done, held["shadows"][i]


def _at(path: Sequence[str | int]) -> Callable[[State], Tree]:
    def of(state: State) -> Tree:
        found: Tree = state
        for key in path:
            found = found[key]
        return found

    return of


def _update_of(i: int) -> Callable[[State], Tree]:
    return lambda state: torch.cat([owner.reshape(-1) for owner in state["round"][i]["update"]])
