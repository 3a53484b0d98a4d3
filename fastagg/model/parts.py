"""Cuts a model by whole tensors into parts. Each is the model of a server of its own, with its own versions."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, overload

from torch import nn

from fastagg import _checks
from fastagg._types import Arrays
from fastagg.errors import ConfigError, ShapeMismatch
from fastagg.model.layout import Entry, Layout, Part, Tied
from fastagg.storage.pieces import as_array


class Split(tuple[Any, ...]):
    """An update by part, as :meth:`Cut.split` makes it."""


class Cut(Sequence[Part]):
    """A model in parts: each is the ``params`` of a server.

    Attributes:
        layout: that of the whole model.
    """

    def __init__(self, layout: Layout, parts: Iterable[Part]) -> None:
        self.layout, self._parts = layout, tuple(parts)

    def __len__(self) -> int:
        return len(self._parts)

    @overload
    def __getitem__(self, index: int) -> Part: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Part]: ...
    def __getitem__(self, index: int | slice) -> Part | Sequence[Part]:
        return self._parts[index]

    def bare(self) -> Cut:
        """The same cut without the model's arrays: it splits and joins."""
        return Cut(self.layout, (replace(part, arrays=None) for part in self))

    def split(self, update: Any) -> Split:
        """Return an update or a trained model by part: views, nothing is copied.

        Args:
            update: in the form of the model, or one flat 1-D array.

        Raises:
            ShapeMismatch: it has other names, another number of arrays, or another length.
        """
        if isinstance(update, (nn.Module, Mapping, list, tuple)):
            arrays: Mapping[str, Any] = self.layout._arrays(update, "update")
        elif tuple((vector := as_array(update)).shape) != (self.layout.size,):
            raise ShapeMismatch(f"update: expected shape [{self.layout.size}], got {list(vector.shape)}")
        else:
            own = (entry for entry in self.layout.entries if entry.role == "parameter")
            arrays = {e.name: vector[e.offset : e.offset + e.size].reshape(e.shape) for e in own}
        named = ({e.name: arrays[e.name] for e in part.layout.entries if e.name in arrays} for part in self)
        return Split(map(self._formed, named))

    def join(self, models: Iterable[Any]) -> Any:
        """Return the whole of each part's ``params`` or ``parameters()``, in the form in which the model came."""
        arrays: dict[str, Any] = {}
        for part, model in zip(self, models, strict=True):
            arrays |= part.layout._arrays(model, "model")
        return self._formed({e.name: arrays[e.name] for e in self.layout.entries})

    def _formed(self, arrays: dict[str, Any]) -> Arrays:
        if self.layout.form in ("module", "state_dict"):
            return arrays
        return list(arrays.values()) if self.layout.form == "list" else arrays[""]


def parts(
    model: Any, count: int, *, by_part: bool = False, buffers: Mapping[str, str] | None = None, tied: Tied | None = None
) -> Cut:
    """Cut a model by whole tensors into parts of like size, each for a :class:`fastagg.Server` of its own.

    The cut depends on nothing but names, shapes and order: tensors are given out by size, the largest first (equal ones
    in the model's order), each to the part that has least so far (of equal ones the first). Tied tensors are one.
    Buffers and what does not train go with the first tensor that trains in their module, or else around it.

    Args:
        model: in any form that a server takes. A 1-D array is one tensor, so one part.
        count: the number of parts.
        by_part: allow what needs the whole model's norm or cosine (``clip_norm``, AsyncFedED, FedAC). Each part then
            uses its own, which is another rule.
        buffers, tied: which arrays of a state_dict or a list are buffers, and which are one: as for a server.

    Raises:
        ConfigError: there are fewer tensors than parts. Others: the model is refused, as by a server.

    Example:
        >>> cut = fastagg.parts(torch.nn.Sequential(torch.nn.Linear(9, 9), torch.nn.Linear(9, 9)), 2)
        >>> [list(part.arrays) for part in cut]
        [['0.weight', '0.bias'], ['1.weight', '1.bias']]
        >>> servers = [fastagg.FedBuff(part, buffer_size=1) for part in cut]
        >>> tasks = [server.dispatch("ann") for server in servers]
        >>> for server, task, update in zip(servers, tasks, cut.split(torch.ones(180))):
        ...     receipt = server.receive("ann", update, task=task.id)
        >>> model = cut.join(server.parameters() for server in servers)
    """
    _checks.whole("count", count, least=1)
    layout = Layout.of(model, buffers=buffers, tied=tied)
    together = list(_together(layout))
    if count > len(together):
        raise ConfigError(f"count: the model has {len(together)} tensors to give out, got {count} parts")
    loads, members = [(0, number) for number in range(count)], [set[str]() for _ in range(count)]
    for group in sorted(together, key=_size, reverse=True):  # stable, as the model's order is
        load, number = heapq.heappop(loads)
        members[number] |= {entry.name for entry in group}
        heapq.heappush(loads, (load + _size(group), number))
    cut = Cut(layout, [Part(_part(layout, names), None, by_part or count == 1) for names in members])
    return Cut(layout, map(lambda part, arrays: replace(part, arrays=arrays), cut, cut.split(model)))


def _size(group: Sequence[Entry]) -> int:
    return sum(entry.size for entry in group if entry.role != "alias")


def _together(layout: Layout) -> Iterator[list[Entry]]:
    """Yield each parameter with what goes with it: other names, and what its module has besides parameters."""
    groups: dict[str, list[Entry]] = {}
    at, first = dict[int, str](), dict[str, str]()  # by place in the vector; the first parameter of each module
    for e in layout.entries:
        if e.role == "parameter" and e.size:
            groups[e.name], at[e.offset] = [], e.name
            for module in _modules(e.name):
                first.setdefault(module, e.name)
    for e in layout.entries:
        leader = e.name if e.name in groups else at[e.offset] if e.role == "alias" and e.size else None
        groups[leader or next(first[module] for module in _modules(e.name) if module in first)].append(e)
    yield from groups.values()


def _modules(name: str) -> Iterator[str]:
    """Yield the module of an array, then those around it."""
    yield (module := name.rpartition(".")[0])
    if module:
        yield from _modules(module)


def _part(layout: Layout, names: set[str]) -> Layout:
    """Return the layout of some arrays, which lie one after the other."""
    entries, constants, end = list[Entry](), [], dict.fromkeys(("parameter", "buffer", "counter", "constant"), 0)
    moved: dict[int, int] = {}  # where parameters lie now
    for e in layout.entries:
        if e.name not in names:
            continue
        if e.role == "alias":
            entries.append(replace(e, offset=moved.get(e.offset, 0)))
            continue
        entries.append(replace(e, offset=end[e.role]))
        if e.role == "parameter":
            moved.setdefault(e.offset, end[e.role])
        elif e.role == "constant":
            constants.append(layout.constants[e.offset])
        end[e.role] += e.size if e.role in ("parameter", "buffer") else 1
    return Layout(layout.form, entries, constants, layout.numpy)
