"""The log of a server with a folder. The log has a record of every change of the server's state. By default an answer
is acknowledged when its record is on the disk.

The engine makes the records (csrc/log). A server calls this module for checkpoints, uploads, waiting and closing.
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

# An upload of at most this many bytes is kept in memory, and then written to the log. A file needs two syncs more.
SMALL = 256 << 10


class Log:
    """The log, the checkpoints and the uploads of a server with a folder.

    Args:
        disk: the folder, which is locked.
        journal: the compiled log, which writes the records in a thread of its own (csrc/log/journal.h).
        keeper: writes the checkpoints.
        uploads: the folder's uploads.
        durability: which answers wait for the disk. ``arrival``: all. ``step``: those that make a step. ``none``: none.

    Attributes:
        folder: the folder's path.
    """

    def __init__(self, disk: Disk, journal: Native, keeper: Keeper, uploads: Uploads, durability: Durability) -> None:
        self.folder: Path = disk.path
        self.durability: Durability = durability
        self.journal, self.keeper = journal, keeper
        self._disk, self._uploads = disk, uploads
        update = 4 * keeper.parts.layout.size
        uploads.spare = update if update > SMALL else 0
        self._is_open = True  # False: the folder is closed and unlocked
        self._process = os.getpid()

    def flush(self) -> None:
        """Wait until all records so far are on the disk."""
        if os.getpid() != self._process:  # a forked process has no thread that writes the records
            with self.keeper.running.engine.reading:  # raises an error in a forked process
                pass
        self.journal.wait(self.journal.last)

    def checkpoint(self) -> Path:
        """Write a checkpoint, and wait until it is on the disk. Return its folder."""
        return self.folder / checkpoint_name(self.keeper.checkpoint())

    def whole_state(self) -> State:
        """Write a checkpoint, and return the state in it. So no other call has to wait while the state is copied."""
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
                    raise  # otherwise a newer checkpoint was written over this one meanwhile, so try again

    def upload(
        self, size: int, dtype: torch.dtype | None, encoded: int | None, task: tuple[Client, int],
        finish: Callable[..., Receipt], refusing: Refusing,
    ) -> Upload:  # fmt: skip
        """Return a new upload for an update of ``task`` (client, version). ``finish`` is called with the complete
        update. If the upload has a file, ``finish``'s second argument describes the file for the log (a Blob)."""
        self.journal.check()
        nbytes = size * getattr(dtype or torch.float32, "itemsize", 1) if encoded is None else encoded
        if nbytes <= SMALL:
            return HeldUpload(size, dtype, finish, refusing, encoded)
        return StoredUpload(size, dtype, finish, refusing, encoded, self._disk, self._uploads, task)

    def close(self, seconds: float | None = None) -> None:
        """Write the waiting records, then close and unlock the folder. Wait at most ``seconds`` for the end of each of
        two threads, the keeper's and the journal's (None: any time). If one does not end, the folder stays locked. A
        signal handler may call this method inside this method, because every part may run twice."""
        if not self._is_open or os.getpid() != self._process:  # a forked process has neither the threads nor the lock
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
