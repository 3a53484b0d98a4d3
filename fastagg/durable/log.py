"""The log of a server: what changes the server is written down, and an answer is acknowledged when that is on the disk.

The engine makes the records (csrc/log). This is what a server of a folder has besides: its checkpoints and its uploads.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import torch

from fastagg._types import Native, State
from fastagg.durable import trees
from fastagg.durable.disk import Disk, named
from fastagg.durable.folder import checkpoint_name, say_end
from fastagg.durable.keeper import Keeper
from fastagg.durable.uploads import StoredUpload, Uploads
from fastagg.errors import CheckpointError
from fastagg.server.dispatch import Client, Receipt
from fastagg.server.server import Durability
from fastagg.server.uploads import HeldUpload, Refusing, Upload

SMALL = 256 << 10  # bytes of an upload that waits in memory, and lies in the log: a file costs two syncs, and a name


class Log:
    """What a server of a folder has.

    Args:
        disk: the folder, locked.
        journal: csrc/log/journal.h.

    Attributes:
        folder: the folder's path.
        durability: which answers wait for the disk: none of them, those that make a step, or each arrival.
    """

    def __init__(self, disk: Disk, journal: Native, keeper: Keeper, uploads: Uploads, durability: Durability) -> None:
        self.folder: Path = disk.path
        self.durability: Durability = durability
        self.journal, self.keeper = journal, keeper
        self._disk, self._uploads = disk, uploads
        update = 4 * keeper.parts.layout.size
        uploads.spare = update if update > SMALL else 0
        self._is_open = True  # until the folder is given back
        self._process = os.getpid()

    def flush(self) -> None:
        """Wait until all that has happened so far is on the disk."""
        if os.getpid() != self._process:  # a fork has no thread that writes
            with self.keeper.running.engine.reading:  # refuses it
                pass
        self.journal.wait(self.journal.last)

    def checkpoint(self) -> Path:
        """Write a checkpoint now, and wait for it. Return its folder."""
        return self.folder / checkpoint_name(self.keeper.checkpoint())

    def whole_state(self) -> State:
        """Return the state at one moment, from a new checkpoint: nobody waits for a copy of it."""
        while True:
            number = self.keeper.checkpoint()
            name = checkpoint_name(number)
            try:
                with named(self.folder / name):
                    state = trees.read(self._disk, name, trees.read_manifest(self._disk, name))
                if not isinstance(state, dict):
                    raise CheckpointError(f"{self.folder / name}: the checkpoint is damaged")
                return state
            except CheckpointError:
                if number in self.keeper.kept:
                    raise  # else its room became that of a newer one while it was read

    def upload(
        self, size: int, dtype: torch.dtype | None, encoded: int | None, task: tuple[Client, int],
        finish: Callable[..., Receipt], refusing: Refusing,
    ) -> Upload:  # fmt: skip
        """Return an update that will arrive in chunks, for a task. ``finish`` takes it, and the file that it is in."""
        self.journal.check()
        nbytes = size * getattr(dtype or torch.float32, "itemsize", 1) if encoded is None else encoded
        if nbytes <= SMALL:
            return HeldUpload(size, dtype, finish, refusing, encoded)
        return StoredUpload(size, dtype, finish, refusing, encoded, self._disk, self._uploads, task)

    def close(self, seconds: float | None = None) -> None:
        """Write what waits and give the folder back. Wait no longer than ``seconds`` for each. Every part of this may
        be done twice, so a signal handler may call it while it interrupts such a call."""
        if not self._is_open or os.getpid() != self._process:  # a fork has neither the threads nor the lock
            return
        if seconds is None:
            self.keeper.refuse_with_lock("close()")
        try:
            if seconds is None:
                self.journal.wait(self.journal.last)
        finally:
            ended = self.keeper.close(seconds)
            ended = self.journal.close(-1.0 if seconds is None else seconds) and ended
            if ended:  # otherwise a thread still writes to the folder
                say_end(self._disk, self.journal.durable)
                self._disk.leave()
                self._is_open = False
