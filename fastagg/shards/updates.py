"""A sharded server's updates: in memory that all ranks of a host share, or delivered to each rank."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import Tensor

from fastagg import ops
from fastagg._types import Foreign
from fastagg.errors import Busy, ConfigError, NotDelivered, ShapeMismatch
from fastagg.model import Layout, Parsed
from fastagg.server import admission
from fastagg.server.dispatch import Client
from fastagg.server.uploads import HeldUpload
from fastagg.storage.shared import DTYPES, Mapped, SharedVector

_HOST = torch.device("cpu")

# A slice may come before this rank has heard of its task. So many of them are kept, up to so many bytes, and so long.
EARLY, EARLY_BYTES, EARLY_SECONDS = 64, 1 << 28, 60.0

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
        self._early: dict[Key, float] = {}  # when those of them came whose tasks are not known, in this order
        self._room = max(1, min(EARLY, EARLY_BYTES // (4 * part.size)))

    def hold(self, key: Key, update: object, control: object, *, known: bool) -> None:
        """Keep this rank's slice until :meth:`of` asks for it.

        Args:
            known: whether this rank knows the task. If not, the slice is dropped unless the task comes in time.

        Raises:
            ShapeMismatch, DTypeMismatch, NonFiniteUpdate: the update does not fit this slice.
            Busy: too many slices wait for their tasks.
        """
        parsed = self.part.parse(update)
        change = None if control is None else admission.checked_control(self.part, control).flat(torch.float32)
        if not known and key not in self._held:
            self._drop_late()
            if len(self._early) >= self._room:
                raise Busy(
                    f"deliver: {self._room} slices wait for tasks that rank {self.rank} has not heard of; "
                    f"deliver this one when the rank has heard of version {key[1]} for client {key[0]!r}"
                )
            self._early[key] = time.monotonic()
        self._held[key] = (parsed, change)

    def drop(self, key: Key) -> None:
        """Drop a slice that is held."""
        self._held.pop(key, None)
        self._early.pop(key, None)

    def keep(self, known: Callable[[Key], bool]) -> None:
        """Drop all slices that are held, except those of known tasks and those whose tasks may still come."""
        self._drop_late()
        for key in list(self._held):
            if known(key):
                self._early.pop(key, None)
            elif key not in self._early:
                self.drop(key)

    def clear(self) -> None:
        """Drop all slices that are held."""
        self._held.clear()
        self._early.clear()

    def _drop_late(self) -> None:
        since = time.monotonic() - EARLY_SECONDS
        for key in [key for key, came in list(self._early.items()) if came < since]:
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
