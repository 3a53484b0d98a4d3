"""Rows of clients on a disk: for more clients than memory has rows for.

A folder has the rows, in rows.bin (csrc/store/slots.h), and for every checkpoint that refers to them a file with the
slots that it needs:

slots-<id>-<number>         its checkpoint is written; these slots are not written over
slots-<id>-<number>.begun   its checkpoint is being written, or was when the process ended
rows.json                   what older versions had in place of these: the numbers alone

The checkpoint has the slots, too, and the rows' checksums. <id> is of the server that made the rows.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import json
import logging
import os
import random
import re
import secrets
import weakref
import zlib
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fastagg import _checks, _keywords
from fastagg._build import native
from fastagg._types import Plain, State
from fastagg.errors import CacheError, CheckpointError, ConfigError
from fastagg.rules.names import Cache
from fastagg.storage import files

ROWS, OLD = "rows.bin", "rows.json"
_SLOTS = re.compile(r"slots-([0-9a-f]{16})-(\d+)(\.begun)?")
SAMPLE = 1 << 30  # bytes of rows that are compared with their checksums when a checkpoint is loaded
_SHOWN = 20  # clients in a line of the log
_log = logging.getLogger("fastagg")


@dataclass(frozen=True)
class Tiered:
    """Cached updates on a disk: ``fastagg.ACE(..., cache=fastagg.Tiered("int8", path="a/"))``.

    When a client is sent a model the system is asked for its cached update, so that it is in the page cache when the
    client answers: leave memory free for those of the clients that train. A checkpoint of the server refers to the
    file in ``path`` and does not copy it, so keep both. One server at a time can use a folder. The server's model is on
    the CPU.

    A cached update whose checksum is wrong is given up: the sum is computed again without it, which reads the whole
    file once, an error in the log names the client, and the client counts as one that has not answered yet.

    Args:
        format: ``fp32``, ``bf16``, ``int8`` or ``int4``.
        path: a folder on a local disk, which is made if it is missing.
        keep: how many checkpoints stay loadable, counting back from the last. What changes after a checkpoint takes a
            second place in the file until that checkpoint is given up.

    Raises:
        ConfigError: a setting is out of range.

    Example:
        >>> cache = fastagg.Tiered("int8", path="updates/")
        >>> server = fastagg.ACE(torch.zeros(1000), lr=0.1, num_clients=100, cache=cache, warmup="partial")
        >>> task = server.dispatch(7)
        >>> server.receive(7, torch.ones(1000)).applied
        True
    """

    format: Cache = "int8"
    path: str | os.PathLike[str] = field(default="rows", kw_only=True)
    keep: _checks.Count = field(default=2, kw_only=True)

    def __post_init__(self) -> None:
        _checks.fields(self)
        if not isinstance(self.path, (str, os.PathLike)) or not str(self.path):
            raise ConfigError(f"path: expected a folder, got {self.path!r:.100}")
        object.__setattr__(self, "path", os.fspath(self.path))


Tiered.__init__ = _keywords.checked(Tiered.__init__)  # type: ignore[method-assign]


def tiered_of(config: Plain) -> Tiered:
    """The settings of a checkpoint; those of older ones say more."""
    gone = "damaged", "device", "memory"
    return Tiered(**{key: value for key, value in config.items() if key not in gone})


class _Kept(NamedTuple):
    """A checkpoint that a folder of rows has a file of."""

    id: str
    number: int
    begun: bool  # it is not known whether its checkpoint is written
    name: str  # of the file; empty: an older version's


class TieredRows:
    """A row for each client, on a disk.

    Nothing is opened before the first arrival, :meth:`state_dict` or :meth:`load_state_dict`.

    Args:
        setting: format and folder.
        size: d, elements of a row.
        clients: n.
    """

    def __init__(self, setting: Tiered, size: int, clients: int) -> None:
        self.setting, self.size, self.clients = setting, size, clients
        self.folder = Path(setting.path).absolute()  # the program may go to another folder
        self.native = native.engine.RowFile(format=setting.format, shape=(size, clients), path=str(self.folder / ROWS))
        self._stride = native.engine.RowFile.stride(setting.format, size)  # bytes of a row
        me = weakref.proxy(self)
        self.native.on_first_use(lambda: me._claim())
        self.native.on_loss(lambda clients: me._tell(clients))
        # Called when rows were given up. It is a method of what holds this server, and must not hold that alive.
        self.after_loss: Callable[[], Callable[[], object] | None] = lambda: None
        self._id, self._last = "", 0  # the number of the last checkpoint
        self._kept: dict[int, np.ndarray] = {}  # the slots of checkpoints that count, by number, in order

    def _named(self) -> AbstractContextManager[None]:
        return files.named(f"{self.folder}: the folder of the cached updates", CacheError)

    def state_dict(self) -> State:
        """Where the rows are. When this returns they are on the disk, and stay there until :meth:`saved` of a later
        one."""
        cut = self.native.cut()
        self._last += 1
        with self._named():
            files.write(self.folder / f"{self._name(self._last)}.begun", _packed(cut["slots"]))
        return {"number": self._last, **cut, "id": self._id, "format": self.setting.format}

    def saved(self, state: State) -> None:
        """A checkpoint with this :meth:`state_dict` is written: those before the last ``keep`` are given up."""
        number = state["number"]
        kept = {one: slots for one, slots in self._kept.items() if one != number}
        kept[number] = _plain(state)["slots"]
        kept = dict([*kept.items()][-self.setting.keep :])
        with self._named():
            begun = {one: self._slots_of(one) for one in self._listed() if one.begun and one.number > number}
            with contextlib.suppress(FileNotFoundError):  # an attempt that failed behind this has renamed it
                os.replace(self.folder / f"{self._name(number)}.begun", self.folder / self._name(number))
            self._tidy([*map(self._name, kept), *(one.name for one in begun)])
        self._kept = kept
        self.native.keep([*kept.values(), *(slots for slots in begun.values() if slots is not None)])

    def load_state_dict(self, state: State) -> list[int]:
        """Inverse of :meth:`state_dict`, for rows that were not used yet. Return the clients whose rows are damaged:
        they have none now. :data:`SAMPLE` bytes are looked at, or with ``state["later"]`` none: :meth:`look` follows.

        Raises:
            CheckpointError: the folder does not have these rows any more, or none is whole. CacheError: it is in use.
        """
        lost = self._beyond(state) if state.get("later") else self.damaged(state, all=False)
        given = _plain(state)
        if lost:
            with_row = given["slots"] >= 0
            whole = ~np.isin(np.flatnonzero(with_row), lost)
            if not whole.any():
                raise self._none_is_whole(len(whole))
            given["sums"] = given["sums"].reshape(len(whole), -1)[whole].ravel()
            given["slots"] = np.where(np.isin(np.arange(len(with_row)), lost), -1, given["slots"])
        self._id, number = state["id"], state["number"]
        with self._named():
            there = self._listed()
            kept = {
                one.number: slots for one in there
                if not one.begun and one.number != number and (slots := self._slots_of(one)) is not None
            }  # fmt: skip
            kept[number] = _plain(state)["slots"]
            self._take(0, lambda file: self.native.load(file, given, [*kept.values()]))
            files.write(self.folder / self._name(number), _packed(kept[number]))
            self._tidy(map(self._name, kept))
        self._kept, self._last = kept, max([number, *(one.number for one in there)])
        return lost

    def look(self, *, all: bool) -> list[int]:
        """Return the clients whose rows are damaged now, as :meth:`damaged` does."""
        cut = self.native.cut()
        lost = self._damaged(cut["slots"], cut["sums"], all)
        if lost and len(lost) == np.count_nonzero(cut["slots"] >= 0):
            raise self._none_is_whole(len(lost))
        return lost

    def _beyond(self, state: State) -> list[int]:
        """The clients whose rows lie behind the end of the file."""
        self.check(state)
        there = os.stat(self.folder / ROWS).st_size // self._stride
        return [int(client) for client in np.flatnonzero(_plain(state)["slots"] >= there)]

    def _none_is_whole(self, count: int) -> CheckpointError:
        return CheckpointError(
            f"{self.folder / ROWS}: none of its {count} cached updates is whole: put back the file that belongs to the "
            "checkpoint"
        )

    def check(self, state: State) -> None:
        """Whether the folder has the rows of this :meth:`state_dict`."""
        there = self._listed()
        numbers = [one.number for one in there if one.id in ("", state["id"])]
        if not numbers:
            raise CheckpointError(f"{self.folder}: it does not have the cached updates of this checkpoint")
        if state["format"] != self.setting.format:
            raise CheckpointError(
                f"the checkpoint's cached updates are {state['format']}, this server's {self.setting.format}"
            )
        if state["number"] not in numbers and any(one.id for one in there):
            raise CheckpointError(
                f"{self.folder}: the cached updates of this checkpoint were given up; it has those of the checkpoints "
                f"{numbers}, and this is number {state['number']} (Tiered.keep says how many stay)"
            )

    def damaged(self, state: State, *, all: bool) -> list[int]:
        """The clients whose rows of this :meth:`state_dict` cannot be read, or have other checksums. Reads all rows, or
        :data:`SAMPLE` bytes; if one of these is damaged, all. Takes no lock and writes nothing."""
        self.check(state)
        given = _plain(state)
        with files.named(f"{self.folder / ROWS}: rows cannot be opened"):
            return self._damaged(given["slots"], given["sums"], all)

    def _damaged(self, slots: np.ndarray, sums: np.ndarray, all: bool) -> list[int]:
        with_row = np.flatnonzero(slots >= 0).tolist()
        sums = sums.reshape(len(with_row), self.native.windows)
        every = 1 if all else max(1, -(-len(with_row) * self._stride // SAMPLE))

        def is_damaged(row: int) -> bool:
            try:
                rows.seek(int(slots[with_row[row]]) * self._stride)
                return self.native.sums(rows.read(self._stride)) != sums[row].tolist()
            except OSError:  # a bad place on the disk
                return True

        with open(self.folder / ROWS, "rb") as rows:
            if every > 1 and not any(map(is_damaged, range(random.randrange(every), len(with_row), every))):
                return []
            return [client for row, client in enumerate(with_row) if is_damaged(row)]

    def _tell(self, clients: list[int]) -> None:
        shown = ", ".join(map(str, sorted(clients)[:_SHOWN])) + ", ..." * (len(clients) > _SHOWN)
        _log.error(
            "%s: the rows of %d clients are damaged and given up: %s. They count as clients that have not answered yet",
            self.folder / ROWS, len(clients), shown,
        )  # fmt: skip
        if (tell := self.after_loss()) is not None:
            tell()

    def _claim(self) -> None:
        """Make the folder this server's, which has no rows yet. What a server began to save and did not, before it was
        killed, is nobody's."""
        if any(not one.begun for one in self._listed()):
            raise ConfigError(
                f"{self.folder}: checkpoints of another server refer to what is in it: load one of them, name "
                "another folder, or remove this one"
            )
        with self._named():
            files.make_folder(self.folder)
            self._take(os.O_CREAT, self.native.open)
            self._tidy([])
        self._id = secrets.token_hex(8)

    def _take(self, flags: int, use: Callable[[int], None]) -> None:
        """Open the file and lock it, for ``use``. A server that nobody refers to may still have it, until Python
        collects cycles."""
        with open(
            self.folder / ROWS, "r+b", buffering=0, opener=lambda path, mode: os.open(path, mode | flags, 0o666)
        ) as file:
            for collected in (False, True):
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if collected:
                        raise CacheError(
                            f"{self.folder / ROWS}: its rows are in use, by another server or process"
                        ) from None
                    gc.collect()
            use(file.fileno())

    def _tidy(self, stay: Iterable[str]) -> None:
        """Remove all files of checkpoints but these. The names in the folder are on the disk then."""
        held = {*stay}
        for path in self.folder.iterdir():
            if (path.name == OLD or path.name.startswith("slots-")) and path.name not in held:
                path.unlink()
        files.sync_folder(self.folder)

    def _name(self, number: int) -> str:
        return f"slots-{self._id}-{number}"

    def _listed(self) -> list[_Kept]:
        """The checkpoints that the folder has rows of, the oldest first. An older version's list may be damaged: then
        it has one without an id, and the checksums of the rows say the rest."""
        try:
            names = [path.name for path in self.folder.iterdir()]
        except (FileNotFoundError, NotADirectoryError):
            return []
        found = [
            _Kept(match[1], int(match[2]), match[3] is not None, match[0])
            for match in map(_SLOTS.fullmatch, names) if match
        ]  # fmt: skip
        if OLD in names:
            try:
                index = json.loads((self.folder / OLD).read_text())
                found += [_Kept(str(index["id"]), int(number), False, "") for number in index["checkpoints"]]
            except (ValueError, LookupError, TypeError):
                found.append(_Kept("", 0, False, ""))
        return sorted(found, key=lambda one: one.number)

    def _slots_of(self, one: _Kept) -> np.ndarray | None:
        """The slots by client that a checkpoint needs. None: they are not known, so it cannot be kept."""
        if not one.name or one.id != self._id:
            return None
        held = (self.folder / one.name).read_bytes()
        if len(held) == 8 * self.clients + 4 and zlib.crc32(held[:-4]) == int.from_bytes(held[-4:], "little"):
            return np.frombuffer(held[:-4], dtype="<i8")
        _log.warning("%s: it is damaged; its checkpoint cannot be loaded any more", self.folder / one.name)
        return None


def _packed(slots: np.ndarray) -> bytes:
    held = slots.astype("<i8").tobytes()
    return held + zlib.crc32(held).to_bytes(4, "little")


def _plain(state: State) -> State:
    return {**state, **{name: state[name].numpy() for name in ("slots", "sums", "shadow")}}
