"""Cuts a model into parts of whole tensors. Each part is the model of a separate server, with its own versions."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from torch import nn

from fastagg import _checks
from fastagg.errors import ConfigError, ShapeMismatch
from fastagg.model.layout import Layout, Part, Tied
from fastagg.storage.pieces import as_array


class PartList(list[Part]):
    """The parts of a model, in a list. Each part is the ``params`` of a server. ``layout`` is the whole model's."""

    def __init__(self, layout: Layout, parts: Iterable[Part] = ()) -> None:
        super().__init__(parts)
        self.layout = layout

    def split(self, update: Any) -> list[Any]:
        """Divide an update or a trained model. Item i of the result is for part i of the model. Nothing is copied.

        Args:
            update: an update or a model, in the form of the model, or one flat 1-D array.

        Raises:
            ShapeMismatch: ``update`` has other names, another number of arrays, or another length.
        """
        if isinstance(update, (nn.Module, Mapping, list, tuple)):
            arrays: Mapping[str, Any] = self.layout._arrays(update, "update")
        elif tuple((vector := as_array(update)).shape) != (self.layout.size,):
            raise ShapeMismatch(f"update: expected shape [{self.layout.size}], got {list(vector.shape)}")
        else:
            own = (entry for entry in self.layout.entries if entry.role == "parameter")
            arrays = {e.name: vector[e.offset : e.offset + e.size].reshape(e.shape) for e in own}
        named = ({e.name: arrays[e.name] for e in part.layout.entries if e.name in arrays} for part in self)
        return [self.layout.formed(arrays) for arrays in named]

    def join(self, models: Iterable[Any]) -> Any:
        """Return the whole model in its original form. ``models``: for each part its ``params`` or ``parameters()``."""
        arrays: dict[str, Any] = {}
        for part, model in zip(self, models, strict=True):
            arrays |= part.layout._arrays(model, "model")
        return self.layout.formed({e.name: arrays[e.name] for e in self.layout.entries})


def parts(
    model: Any, count: int, *, by_part: bool = False, buffers: Mapping[str, str] | None = None, tied: Tied | None = None
) -> PartList:
    """Cut a model into parts of similar size, each for a :class:`fastagg.Server` of its own.

    The cut depends only on names, shapes and order. Tensors are assigned by size, the largest first, and tensors of
    equal size in the model's order. Each tensor goes to the part that is smallest so far, or to the first of equally
    small parts. Tied tensors count as one tensor. Buffers, frozen and empty arrays go to the part of the first trained
    tensor of their module, or of the next module around it that has one. Their elements count for the tensor's size.

    Args:
        model: the model, in any form that a server takes. A 1-D array is one tensor, so it has one part.
        count: the number of parts.
        by_part: whether to allow rules that need the whole update's norm, cosine or distances (``clip_norm``,
            AsyncFedED, FedAC, Krum). Each server then uses only the numbers of its part, which is a different rule.
        buffers, tied: as for a :class:`fastagg.Server`.

    Raises:
        ConfigError: there are fewer tensors than parts. Other errors: the model is refused, as by a Server.
    """
    _checks.whole("count", count, least=1)
    layout = Layout.of(model, buffers=buffers, tied=tied)
    owner, sizes = _owners(layout), Counter[str]()
    for e in layout.entries:
        sizes[owner[e.name]] += 0 if e.role == "alias" else e.size
    if count > len(sizes):
        raise ConfigError(f"count: the model has {len(sizes)} tensors to give out, got {count} parts")
    place, loads = dict[str, int](), [(0, number) for number in range(count)]
    for name, size in sizes.most_common():  # tensors of equal size come in the model's order
        load, number = heapq.heappop(loads)
        place[name] = number
        heapq.heappush(loads, (load + size, number))
    arrays, cut = layout._arrays(model), PartList(layout)
    for number in range(count):
        mine = {e.name: arrays[e.name] for e in layout.entries if place[owner[e.name]] == number}
        part = layout.of_some(mine, buffers or {})
        cut.append(Part(part, layout.formed(mine), by_part, count == 1))
    return cut


def _owners(layout: Layout) -> dict[str, str]:
    """Return, for each array, the parameter to whose part the array goes. For a parameter this is the parameter itself,
    by its first name. For another array it is the first parameter of its module or of the next module around it."""
    owner, first = dict[str, str](), dict[str, str]()  # first: module -> its first parameter
    at: dict[int, str] = {}  # offset in the vector -> the first name of the parameter
    for e in layout.entries:
        if e.role in ("parameter", "alias") and e.size:
            owner[e.name] = at.setdefault(e.offset, e.name)
            for module in _modules(e.name):
                first.setdefault(module, owner[e.name])
    for e in layout.entries:
        if e.name not in owner:
            owner[e.name] = next(first[module] for module in _modules(e.name) if module in first)
    return owner


def _modules(name: str) -> Iterator[str]:
    """Yield the name of an array's module, and then the names of the modules around it, up to "", the whole model."""
    yield (module := name.rpartition(".")[0])
    if module:
        yield from _modules(module)
