"""Rows of clients on a disk: for more clients than memory has rows for.

A folder has the rows, in rows.bin (csrc/store/row_file.h), and for every checkpoint that refers to them a file with the
slots that it needs:

slots-<id>-<number>         its checkpoint is written; these slots are not written over
slots-<id>-<number>.begun   its checkpoint is being written, or was when the process ended
rows.json                   what older versions had in place of these: the numbers alone

The checkpoint has the slots, too, and the rows' checksums. <id> is of the server that made the rows.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import re
import secrets
import weakref
import zlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
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
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_BINARY = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_log = logging.getLogger("fastagg")


@dataclass(frozen=True)
class Tiered:
    """Cached updates on a disk: ``fastagg.ACE(..., cache=fastagg.Tiered("int8", path="a/"))``.

    When a client is sent a model the system is asked for its cached update, so that it is in the page cache when the
    client answers. A checkpoint of the server refers to the file in ``path`` and does not copy it, so keep both. One
    server at a time can use a folder. The server's model is on the CPU.

    A cached update whose checksum is wrong is given up: the sum is computed again without it, which reads the whole
    file once, an error in the log names the client, and the client counts as one that has not answered yet.

    Args:
        format: ``fp32``, ``bf16``, ``int8`` or ``int4``.
        memory: bytes of cached updates that the system is asked for ahead, as a number or as text: ``"64GB"``,
            ``"512MiB"``. It should have as much memory free.
        path: a folder on a local disk, which is made if it is missing.
        keep: how many checkpoints stay loadable, counting back from the last. What changes after a checkpoint takes a
            second place in the file until that checkpoint is given up.

    Raises:
        ConfigError: a setting is out of range.

    Example:
        >>> cache = fastagg.Tiered("int8", memory="8MB", path="updates/")
        >>> server = fastagg.ACE(torch.zeros(1000), lr=0.1, num_clients=100, cache=cache, warmup="partial")
        >>> task = server.dispatch(7)
        >>> server.receive(7, torch.ones(1000)).applied
        True
    """

    format: Cache = "int8"
    memory: int | str = "1GB"
    path: str | os.PathLike[str] = "rows"
    keep: _checks.Count = 2

    def __post_init__(self) -> None:
        _checks.fields(self)
        bytes_of("memory", self.memory)
        if not isinstance(self.path, (str, os.PathLike)) or not str(self.path):
            raise ConfigError(f"path: expected a folder, got {self.path!r:.100}")
        object.__setattr__(self, "path", os.fspath(self.path))


def bytes_of(name: str, given: int | str, expected: str = "bytes, such as 8_000_000_000 or '8GB'") -> int:
    """``"64GB"`` as a number, for the setting of this name."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(i?)B?\s*", given, re.I) if isinstance(given, str) else None
    if found is not None:
        number, unit, binary = found.groups()
        return int(float(number) * (_BINARY if binary and unit else _UNITS)[unit.upper()])
    if isinstance(given, bool) or not isinstance(given, int) or given < 1:
        raise ConfigError(_checks.wrong(name, expected, given))
    return given


def tiered_of(config: Plain) -> Tiered:
    """The settings of a checkpoint; older ones say what happens to damaged rows, and how many a device has."""
    return _keywords.made(Tiered, {key: value for key, value in config.items() if key not in ("damaged", "device")})


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
        setting: format, memory and folder.
        size: d, elements of a row.
        clients: n.
    """

    def __init__(self, setting: Tiered, size: int, clients: int) -> None:
        self.setting, self.size, self.clients = setting, size, clients
        self.folder = Path(setting.path)
        self.native = native.engine.RowFile(
            format=setting.format, shape=(size, clients), memory=bytes_of("memory", setting.memory),
            keep=setting.keep, path=str(self.folder / ROWS),
        )  # fmt: skip
        me = weakref.proxy(self)
        self.native.on_first_use(lambda: me._claim())
        self.native.on_loss(lambda clients: me._tell(clients))
        # Called when rows were given up. It is a method of what holds this server, and must not hold that alive.
        self.after_loss: Callable[[], Callable[[], object] | None] = lambda: None
        self._id = ""

    def _named(self) -> AbstractContextManager[None]:
        return files.named(f"{self.folder}: the folder of the cached updates", CacheError)

    def counts(self) -> dict[str, int]:
        """What happened to rows since the folder was opened, and what they take."""
        return {**self.native.counts(), "on_disk": self.native.nbytes_on_disk}

    def state_dict(self) -> State:
        """Where the rows are. When this returns they are on the disk, and stay there until :meth:`saved` of a later
        one."""
        cut = self.native.cut()
        with self._named():
            files.write(self.folder / f"{self._name(cut['number'])}.begun", _packed(cut["slots"]))
        return {**cut, "id": self._id, "format": self.setting.format}

    def saved(self, state: State) -> None:
        """A checkpoint with this :meth:`state_dict` is written: those before the last ``keep`` are given up."""
        number = state["number"]
        stay = [self._name(one) for one in self.native.kept_with(number)]
        with self._named():
            for one in self._listed():
                if one.begun and one.number == number:
                    os.replace(self.folder / one.name, self.folder / self._name(number))
                elif one.begun and one.number > number:
                    stay.append(one.name)
            self._tidy(stay)  # before the places of other rows are used
        self.native.confirm(number)

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
            slots = {one: self._slots_of(one) for one in there}
            others = [
                (one.number, held) for one, held in slots.items()
                if held is not None and not one.begun and one.number != number
            ]  # fmt: skip
            last = max([number, *(one.number for one in there)])
            _once_more(lambda: self.native.load(given, others, last))
            mine = self._name(number)
            files.write(self.folder / mine, _packed(_plain(state)["slots"]))
            self._tidy([mine, *(self._name(other) for other, _ in others)])
        return lost

    def look(self, *, all: bool) -> list[int]:
        """Return the clients whose rows are damaged now, as :meth:`damaged` does."""
        cut = self.native.cut()
        lost: list[int] = self.native.damaged(cut, 1 << 62 if all else SAMPLE)
        if lost and len(lost) == np.count_nonzero(cut["slots"] >= 0):
            raise self._none_is_whole(len(lost))
        return lost

    def _beyond(self, state: State) -> list[int]:
        """The clients whose rows lie behind the end of the file."""
        self.check(state)
        stride = native.engine.RowFile.stride(self.setting.format, self.size)
        there = os.stat(self.folder / ROWS).st_size // stride
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
        try:
            found: list[int] = self.native.damaged(_plain(state), 1 << 62 if all else SAMPLE)
        except (CacheError, ValueError) as error:
            raise CheckpointError(str(error)) from error
        return found

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
            _once_more(self.native.open)
            self._tidy([])
        self._id = secrets.token_hex(8)

    def _tidy(self, stay: list[str]) -> None:
        """Remove all files of checkpoints but these. The names in the folder are on the disk then."""
        for path in self.folder.iterdir():
            if (path.name == OLD or path.name.startswith("slots-")) and path.name not in stay:
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


def problems(setting: Tiered, size: int, state: State, *, all: bool) -> list[str]:
    """What is wrong with the rows that a checkpoint refers to. Takes no lock and writes nothing.

    Args:
        setting: the server's.
        size: d, elements of a row.
        state: :meth:`TieredRows.state_dict` of the checkpoint.
        all: look at all rows, as in :meth:`TieredRows.damaged`.
    """
    rows = TieredRows(setting, size, len(state["slots"]))
    try:
        slots = state["slots"].tolist()
        lost = rows.damaged(state, all=all)
        return [f"{rows.folder / ROWS}: client {one}'s row is damaged (slot {slots[one]})" for one in lost]
    except (LookupError, TypeError, ValueError, RuntimeError, ArithmeticError) as error:
        if isinstance(error, CheckpointError):
            return [str(error)]
        return [f"the places of the cached updates are damaged: {error!s:.200}"]


def _packed(slots: np.ndarray) -> bytes:
    held = slots.astype("<i8").tobytes()
    return held + zlib.crc32(held).to_bytes(4, "little")


def _plain(state: State) -> State:
    return {**state, **{name: state[name].numpy() for name in ("slots", "sums", "shadow")}}


def _once_more(take: Callable[[], None]) -> None:
    """Take the folder. A server that nobody refers to may still have it, until Python collects cycles."""
    try:
        take()
    except CacheError:
        gc.collect()
        take()
