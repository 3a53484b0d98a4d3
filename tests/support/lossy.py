"""A disk in memory that loses power. It records every write and sync, and returns what may remain of them.

Data that was not synced is lost, kept or torn, sector by sector, in any order. Names that were not synced are lost from
some moment on.
"""

from __future__ import annotations

import errno
import os
import random
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fastagg.durable.disk import Disk

Step = tuple[Any, ...]
HOME = Path("/state")


class LossyDisk(Disk):
    """A folder of its own. ``steps`` has its operations in order; :meth:`after` returns what the first ones leave.

    ``fail(step)`` may raise OSError before a step.
    """

    def __init__(self, fail: Callable[[str], None] = lambda what: None, path: Path = HOME) -> None:
        self.path, self.descriptor = path, None  # the log calls these methods
        self._lock_file: int | None = None
        self.names_of: dict[str, int] = {}
        self.folders: set[str] = set()
        self.data: dict[int, bytearray] = {}
        self.open_files: dict[int, int] = {}
        self.steps: list[Step] = []
        self.base: tuple[dict[str, int], set[str], dict[int, bytes]] = ({}, set(), {})  # the state before these steps
        self.fail = fail
        self._next = 100
        self._one = threading.RLock()

    def note(self, *step: Any) -> None:
        """Record a moment, for example an acknowledgement."""
        with self._one:
            self.steps.append(step)

    def leave(self) -> None:
        """The same disk may be opened again."""
        self.unlock()

    def make_folder(self, name: str) -> None:
        with self._one:
            if name not in self.folders:
                self.fail("create")
                self.folders.add(name)
                self.steps.append(("folder", name))

    def names(self) -> list[str]:
        with self._one:
            return sorted(name for name in {*self.names_of, *self.folders} if "/" not in name)

    def open(self, name: str, *, create: bool = False, write: bool = True) -> int:
        with self._one:
            if name not in self.names_of:
                if not create:
                    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
                self.fail("create")
                self._next += 1
                self.names_of[name] = self._next
                self.data[self._next] = bytearray()
                self.steps.append(("create", name, self._next))
            self._next += 1
            self.open_files[self._next] = self.names_of[name]
            return self._next

    def close(self, file: int) -> None:
        with self._one:
            self.open_files.pop(file)

    def size(self, file: int) -> int:
        return len(self.data[self.open_files[file]])

    def allocate(self, file: int, size: int) -> None:
        self.fail("allocate")
        self.truncate(file, max(size, self.size(file)))

    def free(self) -> int:
        return 1 << 40

    def truncate(self, file: int, size: int) -> None:
        with self._one:
            node = self.open_files[file]
            self.data[node] = (self.data[node] + bytes(max(0, size - len(self.data[node]))))[:size]
            self.steps.append(("size", node, size))

    def write(self, file: int, buffers: Sequence[Any], offset: int) -> int:
        self.fail("write")
        with self._one:
            node, new = self.open_files[file], b"".join(map(bytes, buffers))
            _put(self.data[node], offset, new)
            self.steps.append(("write", node, offset, new))
            return offset + len(new)

    def read_into(self, file: int, view: memoryview, offset: int) -> int:
        found = self.data[self.open_files[file]][offset : offset + len(view)]
        view[: len(found)] = found
        return len(found)

    def sync(self, file: int) -> None:
        try:
            self.fail("sync")
        except OSError:  # the system takes what was written for synced, and never writes it
            with self._one:
                self.steps.append(("dropped", self.open_files[file]))
            raise
        with self._one:
            self.steps.append(("sync", self.open_files[file]))

    def sync_folder(self, name: str = ".") -> None:
        self.fail("sync")
        with self._one:
            self.steps.append(("sync folder", name))

    def rename(self, old: str, new: str) -> None:
        with self._one:
            if old not in self.names_of and old not in self.folders:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), old)
            self.names_of = _renamed(self.names_of, old, new)
            self.folders = set(_renamed(dict.fromkeys(self.folders), old, new))
            self.steps.append(("rename", old, new))

    def remove(self, name: str) -> None:
        with self._one:
            if any(_within(one, name) for one in (*self.names_of, *self.folders)):
                self.names_of = {one: node for one, node in self.names_of.items() if not _within(one, name)}
                self.folders = {one for one in self.folders if not _within(one, name)}
                self.steps.append(("remove", name))

    def lock(self, name: str) -> bool:
        with self._one:
            if self._lock_file is not None:
                return False
            self._lock_file = self.open(name, create=True)
            return True

    def unlock(self) -> None:
        with self._one:
            file, self._lock_file = self._lock_file, None
            if file is not None:
                self.close(file)

    def copy(self) -> LossyDisk:
        """Return the disk if the process ends now. What was not synced can still be lost with the power."""
        with self._one:
            left = LossyDisk(path=self.path)
            left.names_of, left.folders, left.base = dict(self.names_of), set(self.folders), self.base
            left.data = {node: bytearray(held) for node, held in self.data.items()}
            left.steps, left._next = list(self.steps), self._next
            return left

    def after(self, count: int, rng: random.Random, sector: int) -> LossyDisk:
        """Return what may remain if power is lost after ``count`` steps."""
        names, folders = dict(self.base[0]), set(self.base[1])
        pending: list[Step] = []  # of names, in order: a prefix is kept, and all up to the last sync
        synced = {node: bytearray(held) for node, held in self.base[2].items()}
        unsynced: dict[int, list[tuple[int, bytes]]] = {}
        for step in self.steps[:count]:
            kind = step[0]
            if kind in ("folder", "create", "rename", "remove"):
                pending.append(step)
            elif kind == "size":
                held = synced.setdefault(step[1], bytearray())  # a file's length is synced with its content
                synced[step[1]] = (held + bytes(max(0, step[2] - len(held))))[: step[2]]
            elif kind == "write":
                unsynced.setdefault(step[1], []).append(step[2:])
            elif kind == "sync":
                for offset, new in unsynced.pop(step[1], ()):
                    _put(synced.setdefault(step[1], bytearray()), offset, new)
            elif kind == "dropped":  # but for what had come to the disk by then
                for offset, new in unsynced.pop(step[1], ()):
                    _tear(synced.setdefault(step[1], bytearray()), offset, new, rng, sector)
            elif kind == "sync folder":
                _apply(pending, names, folders)
                pending = []
        _apply(pending[: rng.randint(0, len(pending))], names, folders)
        left = LossyDisk(path=self.path)
        for node, writes in unsynced.items():
            for offset, new in writes:
                _tear(synced.setdefault(node, bytearray()), offset, new, rng, sector)
        left.names_of, left.folders = names, folders
        left.data = {node: bytearray(synced.get(node, b"")) for node in names.values()}
        left.base = (dict(names), set(folders), {node: bytes(held) for node, held in left.data.items()})
        left._next = self._next
        return left


def _within(name: str, folder: str) -> bool:
    return name == folder or name.startswith(folder + "/")


def _renamed(names: dict[str, Any], old: str, new: str) -> dict[str, Any]:
    moved = {one: value for one, value in names.items() if _within(one, old)}
    stays = {one: value for one, value in names.items() if not (_within(one, old) or _within(one, new))}
    return {**stays, **{new + one[len(old) :]: value for one, value in moved.items()}}


def _apply(steps: list[Step], names: dict[str, int], folders: set[str]) -> None:
    for kind, *told in steps:
        if kind == "folder":
            folders.add(told[0])
        elif kind == "create":
            names[told[0]] = told[1]
        elif kind == "rename":
            found, held = _renamed(names, *told), _renamed(dict.fromkeys(folders), *told)
            names.clear()
            names.update(found)
            folders.clear()
            folders.update(held)
        else:
            for one in [one for one in names if _within(one, told[0])]:
                del names[one]
            folders.difference_update([one for one in folders if _within(one, told[0])])


def _put(held: bytearray, offset: int, new: bytes) -> None:
    if len(held) < offset + len(new):
        held += bytes(offset + len(new) - len(held))
    held[offset : offset + len(new)] = new


def _tear(held: bytearray, offset: int, new: bytes, rng: random.Random, sector: int) -> None:
    """Write each sector: lost, written, or torn. A later write may overwrite a lost sector."""
    mood = rng.random()  # most sectors are there, most are lost, or anything between
    for begin in range(offset - offset % sector, offset + len(new), sector):
        first, last = max(begin, offset), min(begin + sector, offset + len(new))
        fate = rng.random()
        if mood < 0.3 or fate < mood * 0.6:
            fate = 1.0 if mood < 0.3 and fate < 0.9 else 0.0
        if fate < 0.4:
            continue
        if fate < 0.55:
            last = rng.randint(first, last)
        elif fate < 0.65:
            first = rng.randint(first, last)
        _put(held, first, new[first - offset : last - offset])
