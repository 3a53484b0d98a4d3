"""The folder of a server in slices: every rank writes a log of its slice.

cut-<number>/                       the slices of one number of ranks; the newest cut counts
    slice-<first>-<end>/            a folder as of any server (fastagg/durable/folder.py): checkpoints and a log
*.partial                           an unfinished cut, which is never read

All logs have the same operations in the same order; the record of an answer holds the slice's part of the update, and
what was measured of the whole. So each slice is restored by itself. Ranks lose different tails when they die: all go on
from the last record that every log has. Whoever was acknowledged has a record in all of them.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from fastagg._types import Native
from fastagg.durable.disk import Disk
from fastagg.durable.folder import PARTIAL, checkpoint_name, read_checkpoint
from fastagg.durable.keeper import Keeper
from fastagg.durable.log import Durability, Log
from fastagg.durable.opening import CUT, lock, open_on
from fastagg.durable.recovery import end_of, load_into, made_of
from fastagg.durable.uploads import Uploads
from fastagg.errors import CheckpointError, NotDurable, RankLost
from fastagg.model import Piece
from fastagg.server import engine
from fastagg.server.server import Server
from fastagg.shards import states
from fastagg.shards.link import Link
from fastagg.shards.norms import Norms

if TYPE_CHECKING:
    from fastagg.shards.group import Group

_SLICE = re.compile(r"slice-(\d{15})-(\d{15})")
_LOOK = 0.01  # seconds between two looks at whether all disks have a record

Range = tuple[int, int]


def _name_of(bounds: Range) -> str:
    return f"slice-{bounds[0]:015d}-{bounds[1]:015d}"


class SliceLog(Log):
    """The log of this rank's slice. What happened is acknowledged when all ranks' logs have it."""

    def __init__(
        self, group: Group, disk: Disk, journal: Native, keeper: Keeper, uploads: Uploads, durability: Durability
    ) -> None:
        super().__init__(disk, journal, keeper, uploads, durability)
        self._group = group
        journal.mode = "none"  # nobody waits for this disk alone
        journal.elsewhere = journal.last
        keeper.wait = self._wait_for_all  # type: ignore[method-assign]

    def _wait_for_all(self, sequence: int) -> None:
        """A checkpoint counts when all logs have what is in it: a record that one of them lacks is given up by all."""
        while self.journal.everywhere < sequence:
            self.keeper.go_on()
            if self.journal.ended:
                raise NotDurable(f"{self.folder}: {self.journal.failure}")
            time.sleep(_LOOK)

    def sync(self, link: Link) -> None:
        """Wait until all ranks' logs are on their disks. All ranks call this together, after the same operation."""
        last = self.journal.last
        self.journal.wait(last)
        link.settle(str(last).encode(), _all_equal)
        self.journal.elsewhere = last

    def flush(self) -> None:
        """Wait until all that has happened so far is on all ranks' disks."""
        self._group.flush()

    def checkpoint(self) -> Any:
        """Let all ranks write a checkpoint, and wait for them."""
        return self.folder / checkpoint_name(self._group.checkpoint())


def _all_equal(all: list[bytes]) -> bytes:
    for rank, one in enumerate(all):
        if one != all[0]:
            raise RankLost(f"rank {rank}'s log has {one.decode()} records, rank 0's has {all[0].decode()}")
    return all[0]


class Opening:
    """Opens the folder of a server in slices. All ranks do this together.

    Args:
        server: of this rank's slice of the model that was given.
        disk: the folder.
    """

    def __init__(
        self, group: Group, server: Server, disk: Disk, durability: Durability, keep: int, checkpoint_every: int
    ) -> None:
        self.group, self.link, self.server, self.disk = group, group.link, server, disk
        self.mine = group.bounds[group.rank]
        self.durability = durability
        self.settings: dict[str, Any] = {"keep": keep, "checkpoint_every": checkpoint_every}
        self._locked: dict[Range, Disk] = {}

    def run(self) -> tuple[SliceLog, list[list[int]]]:
        """Open it. Return the slice's log, and the incarnation that begins now.

        Raises:
            CheckpointError: the folder is damaged, or ranks see different folders. Busy: it is open already.
        """
        number, until = self._newest(), 0
        try:
            if number == 0:
                number = self._begin(1)
            else:
                slices = self._slices(number)
                mine = slices[self.link.rank :: self.link.size]  # this rank's own, if their number is the same
                until = self._common_end(number, mine)
                if slices != self.group.bounds:
                    self._recut(number, slices, mine, until)
                    number, until = self._begin(number + 1), 0
                self._clear(number)
            with self.link.working():
                make, log_of = partial(_itself, self.server), partial(SliceLog, self.group)
                self._open(number, self.mine, make, self.durability, until, log_of)
        finally:
            for disk in self._locked.values():  # those that no server has
                disk.leave()
        begins = [[self.server.version + 1, engine.new_incarnation()]]
        begins = json.loads(self.link.settle(json.dumps(begins).encode(), lambda all: all[0]))
        self.disk.leave()
        log = self.server._log
        assert isinstance(log, SliceLog)
        return log, begins

    def _common_end(self, number: int, mine: list[Range]) -> int:
        """Return what all slices' logs have. Nobody else writes to them from here on."""
        for one in mine:
            self._locked[one] = Disk(self._path(number, one))
            lock(self._locked[one])
        with self.link.working():
            ends = [end_of(self._locked[one]) for one in mine]
        return int(self.link.settle(json.dumps(ends).encode(), _common))

    def _open(
        self, number: int, bounds: Range, make: Callable[[], Server], durability: Durability, until: int,
        log_of: Callable[..., Log] = Log,
    ) -> Server:  # fmt: skip
        held = self._locked.pop(bounds, None)
        disk = held or Disk(self._path(number, bounds))
        return open_on(disk, make, durability, **self.settings, is_locked=held is not None, until=until, log_of=log_of)

    def _path(self, number: int, bounds: Range) -> Any:
        return self.disk.path / f"cut-{number:06d}" / _name_of(bounds)

    def _newest(self) -> int:
        """Return the number of the newest cut; 0: there is none.

        Raises:
            CheckpointError: ranks see different folders.
        """
        seen = [int(m[1]) for m in map(CUT.fullmatch, self.disk.names()) if m]
        found: int = json.loads(self.link.settle(json.dumps(max(seen, default=0)).encode(), lambda all: all[0]))
        if found != max(seen, default=0):
            raise CheckpointError(f"{self.disk.path}: rank {self.link.rank} sees another folder than rank 0")
        return found

    def _slices(self, number: int) -> list[Range]:
        """Return the slices of a cut, in order.

        Raises:
            CheckpointError: some are missing.
        """
        path = self.disk.path / f"cut-{number:06d}"
        found = [(int(m[1]), int(m[2])) for m in map(_SLICE.fullmatch, Disk(path).names()) if m]
        ends = [0, *(end for _, end in found)]
        if [begin for begin, _ in found] != ends[:-1] or ends[-1] != self.group.layout.size:
            raise CheckpointError(f"{path}: its slices are not those of a model of {self.group.layout.size} parameters")
        return found

    def _begin(self, number: int) -> int:
        """Make a new cut from the state of all ranks' servers. It counts when it is whole. Return its number."""
        name = f"cut-{number:06d}"
        if self.link.rank == 0:
            self.disk.remove(name + PARTIAL)
        self.link.settle()
        with self.link.working():
            self.disk.make_folder(name + PARTIAL)
            folder = Disk(self.disk.path / (name + PARTIAL) / _name_of(self.mine), create=True)
            keeper = Keeper(
                folder, self.server._parts, self.server._running, Uploads({}, 1), made=made_of(self.server),
                folder_id=engine.new_incarnation(), base=0, kept=[], keep=self.settings["keep"],
                every=self.settings["checkpoint_every"],
            )  # fmt: skip
            keeper.write()
            folder.sync_folder("..")
            folder.leave()
        self.link.settle()
        if self.link.rank == 0:
            self.disk.rename(name + PARTIAL, name)
            self.disk.sync_folder()
            self.disk.sync_folder("..")
        self.link.settle()
        return number

    def _recut(self, number: int, slices: list[Range], mine: list[Range], until: int) -> None:
        """Go on with another number of ranks: each restores some of the old slices and writes a checkpoint of them, and
        takes its own slice from all that overlap it."""
        for bounds in mine:
            with self.link.working():
                old = self._open(number, bounds, partial(self._blank, bounds), "none", until)
                old.checkpoint()
                old.close()
        self.link.settle()
        with self.link.working():
            found = [one for one in slices if one[0] < self.mine[1] and self.mine[0] < one[1]]
            parts = [
                states.Part(*one, read_checkpoint(Disk(self._path(number, one)), until).state) for one in found
            ]  # fmt: skip
            state = states.slice_of(parts, *self.mine, self.server._running.extension.state.sliced)
            config = {**state["config"], "origin": self.mine[0]}
            load_into(self.server, {**state, "config": config, "layout": self.server._parts.layout.spec()})

    def _blank(self, bounds: Range) -> Server:
        """Return a server of any slice, for a state to be loaded into."""
        flat = torch.zeros(bounds[1] - bounds[0], device=self.server.device)
        return self.group.make(Piece(flat, bounds[0], Norms(self.link)))

    def _clear(self, number: int) -> None:
        """Remove older cuts, and an unfinished one."""
        for name in self.disk.names() if self.link.rank == 0 else ():
            if CUT.fullmatch(name.removesuffix(PARTIAL)) and name != f"cut-{number:06d}":
                self.disk.remove(name)


def _itself(server: Server) -> Server:
    return server


def _common(all: list[bytes]) -> bytes:
    """Return the least end of all logs."""
    return str(min(end for rank in all for end in json.loads(rank))).encode()
