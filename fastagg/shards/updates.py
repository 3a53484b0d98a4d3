"""A sharded server's updates: in memory that all ranks of a host share, or delivered to each rank."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fastagg import ops
from fastagg._types import Foreign
from fastagg.errors import ConfigError, NotDelivered, ShapeMismatch
from fastagg.model import Layout, Parsed
from fastagg.server import admission
from fastagg.server.dispatch import Client
from fastagg.server.uploads import HeldUpload
from fastagg.storage.shared import DTYPES, Mapped, SharedVector

_HOST = torch.device("cpu")

Key = tuple[Client, int]  # client and version of the task that an update answers
Found = tuple[Parsed, Tensor | None]  # an update, and the change of a control variate


class Updates:
    """The updates of one rank.

    Args:
        rank: the rank's number.
        whole: the layout of the whole model.
        part: the layout of the rank's slice.
        bounds: the slice's first element and its end.
        one_host: whether all ranks are on one host.
    """

    def __init__(self, rank: int, whole: Layout, part: Layout, bounds: tuple[int, int], one_host: bool) -> None:
        self.rank, self.whole, self.part, self.bounds, self.one_host = rank, whole, part, bounds, one_host
        self._mapped = Mapped()
        self._scratch: dict[str, SharedVector] = {}
        self._held: dict[Key, Found] = {}

    def hold(self, key: Key, update: object, control: object) -> None:
        """Keep this rank's slice until :meth:`of` asks for it.

        Raises:
            ShapeMismatch, DTypeMismatch, NonFiniteUpdate: the update does not fit this slice.
        """
        parsed = self.part.parse(update)
        change = None if control is None else admission.checked_control(self.part, control).flat(torch.float32)
        self._held[key] = (parsed, change)

    def drop(self, key: Key) -> None:
        """Drop a slice that is held."""
        self._held.pop(key, None)

    def keep(self, wanted: Callable[[Key], bool]) -> None:
        """Drop all slices that are held, except those that are wanted."""
        for key in [key for key in list(self._held) if not wanted(key)]:
            self.drop(key)

    def check_host(self, name: str) -> None:
        """Refuse a vector in memory, if the ranks are on several hosts.

        Raises:
            ConfigError: they are.
        """
        if not self.one_host:
            raise ConfigError(f"{name}: ranks are on several hosts: deliver() each of them its slice, and receive None")

    def place(self, name: str, given: object) -> list[Foreign] | None:
        """Return where all ranks find a vector: its path and its type. None if each of them holds its slice.

        Raises:
            ConfigError: the ranks are on several hosts. ShapeMismatch, DTypeMismatch: the vector does not fit this
                model.
        """
        if given is None:
            return None
        self.check_host(name)
        if not isinstance(given, SharedVector):
            pieces = self.whole.parse(given, name).parameters
            if name not in self._scratch:
                self._scratch[name] = SharedVector(self.whole.size)
            ops.gather(pieces.to(_HOST), self._scratch[name].tensor)
            given = self._scratch[name]
        if given.size != self.whole.size:
            raise ShapeMismatch(f"{name}: expected {self.whole.size} numbers, got {given.size}")
        return [given.path, DTYPES.index(given.dtype)]

    def of(self, key: Key, update: list[Foreign] | None, control: list[Foreign] | None) -> Found:
        """Return this rank's slice of an answer, from the result of :meth:`place`.

        Raises:
            NotDelivered: the slice should be held here, but is not. ShapeMismatch: the shared vector is not there.
        """
        if update is not None:
            return self.part.parse(self._slice(update)), None if control is None else self._slice(control)
        if key not in self._held:
            raise NotDelivered(
                f"rank {self.rank} does not hold its slice of client {key[0]!r}'s answer to version {key[1]}"
            )
        return self._held[key]

    def _slice(self, where: list[Foreign]) -> Tensor:
        path, code = where
        begin, end = self.bounds
        return self._mapped.get(path, self.whole.size, DTYPES[code])[begin:end]


class SharedUpload(HeldUpload):
    """An upload into memory that all ranks of this host share."""

    def _room(self) -> Tensor:
        self._vector = SharedVector(self._size, self._dtype)
        return self._vector.tensor.view(torch.uint8)

    def _whole(self) -> tuple[SharedVector]:
        return (self._vector,)

    def _drop(self) -> None:
        self._vector.close()
