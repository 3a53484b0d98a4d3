"""Keeps a server's folder in order. A thread writes the checkpoints, and removes the files that no recovery needs.

durable/opening.py makes the keeper. The keeper's arguments ``keep``, ``every`` and ``slack`` are explained there and in
:class:`Keeper`. These rules let a server keep running on a full volume:

1. While there is room, three kinds of files are made in advance. A *reserve* (``reserve-N/``) is the folder of the next
   checkpoint. A *room* (``room-N``) is a log file, large enough for all answers that may wait for the log. ``spare`` is
   a file for an upload. So the next checkpoint needs no new block or inode, unless a file of the state has grown by
   more than about ``slack / 4`` bytes.
2. A checkpoint that is no longer kept becomes a reserve. A segment of the log that no recovery needs may become a room.
   The file of a large upload that no recovery needs becomes ``spare``.
3. A new name may need more blocks for the folder. A room then gives up ``slack / 4`` bytes, which no upload may take.
4. The blocks of a reserve, a room, a spare file or an upload are reserved as a whole, or none of them is.
5. Free segments of the log are removed while all segments and uploads have more than ``(keep + 1) * every`` bytes.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from fastagg.durable import folder, trees
from fastagg.durable.disk import Disk, is_full, named
from fastagg.durable.folder import BLOCK, Contents, checkpoint_name, contents, model_digest, reserve_name, room_name
from fastagg.durable.snapshot import Snapshot
from fastagg.durable.uploads import Uploads
from fastagg.errors import CheckpointError, FastaggError, Reentered
from fastagg.server.engine import Runtime, ServerParts
from fastagg.timing import Stopwatch

EVERY = 1 << 30  # bytes of the log and of uploads after which a checkpoint is written
SLACK = 1 << 20  # bytes of a room, besides the bytes of two updates in fp32
_AGAIN = 0.05  # the thread's pause in seconds before the next attempt, after the process ran out of memory
_PATIENCE = 1.5  # the most seconds to wait for a failed log to recover, each time the log may get a room
_log = logging.getLogger("fastagg")


class Latch:
    """A flag that is set once. Threads can wait for the flag without a shared lock. A ``threading.Event`` has a shared
    lock, which a waiting thread holds for a moment. If a signal handler interrupts the thread in that moment, and waits
    for another thread to set the event, neither can go on."""

    def __init__(self) -> None:
        self._is_set = False
        self._waiting: deque[threading.Lock] = deque()  # a lock for each waiting thread

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        try:  # these calls allocate no memory, so the waiting threads wake even if no memory is left
            while self._waiting:
                self._waiting.pop().release()
        except IndexError:  # another thread called `set`, too, and took the last lock
            pass

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until the flag is set, at most ``seconds`` (None: any time). Return whether the flag is set."""
        mine = threading.Lock()
        mine.acquire()
        self._waiting.append(mine)  # before `_is_set` is read, so that a later `set` finds the lock
        return self._is_set or mine.acquire(timeout=-1 if seconds is None else seconds)


@dataclass(eq=False)
class _Request:
    """A call of `Keeper.checkpoint` that waits for the keeper's thread."""

    done: Latch = field(default_factory=Latch)
    written: int | None = None  # the checkpoint's number
    error: FastaggError | None = None


class Keeper:
    """Writes the checkpoints of one folder, in a thread, and removes files that no recovery needs.

    Args:
        made: the settings with which the folder was made, for the checkpoints.
        folder_id: the folder's random number.
        kept: the numbers of the folder's checkpoints, oldest first (:class:`.folder.Checkpoint`).
        keep: the number of checkpoints that are kept.
        every: a checkpoint is written after this many bytes of the log and of uploads.
        slack: bytes of a room, besides the bytes of two updates in fp32. Each file of a checkpoint has about
            ``slack / 4`` unused bytes at its end, if the volume has room.

    Attributes:
        room: bytes of a room, a multiple of a block's bytes.
    """

    def __init__(
        self, disk: Disk, parts: ServerParts, running: Runtime, uploads: Uploads, *, made: dict[str, Any],
        folder_id: int, kept: list[int], keep: int, every: int, slack: int,
    ) -> None:  # fmt: skip
        self.disk, self.parts, self.running, self.uploads = disk, parts, running, uploads
        self.made, self.folder_id = made, folder_id
        self.kept, self.keep, self.every = kept, keep, every
        self.history = 0  # how many of the oldest checkpoints are never removed. The log after them is kept, too.
        self.journal: Any = None
        self._due = every
        self._requests: deque[_Request] = deque()
        # Whether the disk has refused an upload since the last attempt, and the earliest time of a further attempt.
        self._full, self._again = False, 0.0
        self._closing = False
        self._thread: threading.Thread | None = None
        self._ended = Latch()
        self._wrong = ""  # why there is no room for the next checkpoint. Empty: there is room.
        self._lent: set[str] = set()  # names of rooms that the log may use
        listing = contents(disk)
        self.slack, self.room = slack, (slack + 8 * parts.layout.size) // BLOCK * BLOCK
        self._numbers = itertools.count(
            1 + max((int(name[-12:]) for name in listing.reserves + listing.rooms), default=0)
        )

    def start(self, journal: Any, replayed: int) -> None:
        """Begin to write checkpoints. ``replayed``: bytes of the log and of uploads after the last checkpoint."""
        self.journal = journal
        self.uploads.refused = self.full
        self.clear()
        self._due = max(0, self.every - replayed)
        self._thread = threading.Thread(target=self._run, name="fastagg checkpoints", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:
            raise OSError(errno.EAGAIN, f"the system refuses a thread: {error}") from error

    def wait(self, sequence: int) -> None:
        """Wait until record ``sequence`` is on the disk. A checkpoint that includes the record's change may be used
        only then. If a write of the log has failed, give the log a room."""
        for _ in range(2):
            if self.journal.failure:
                self._help_log()
            deadline = time.monotonic() + _PATIENCE
            while self.journal.failure and not self.journal.ended and time.monotonic() < deadline:
                time.sleep(0.01)
        self.journal.wait(sequence)

    def _rooms(self) -> list[str]:
        """Return the names of the rooms that the log may not use yet, the largest last."""
        rooms = [name for name in contents(self.disk).rooms if name not in self._lent]
        return sorted(rooms, key=self.disk.size_of)

    def _help_log(self) -> None:
        if self._lent.intersection(self.disk.names()):  # the log has a room, but has not renamed it yet
            self._free_blocks()
        elif rooms := self._rooms():
            self._lent.add(rooms[-1])
            self.journal.reuse(rooms[-1])

    def _free_blocks(self) -> bool:
        """Free some blocks of the largest room. The folder may need a block to store one more name. Return whether
        there was a room with blocks."""
        self.uploads.is_full = True
        for name in self._rooms()[-1:]:
            with self.disk.opened(name) as file:
                size = self.disk.size(file)
                self.disk.truncate(file, max(0, size - self.slack // 4))
                self.disk.sync(file)
                return size > 0
        return False

    def _rename(self, old: str, new: str) -> None:
        while True:
            try:
                self.disk.rename(old, new)
                return
            except OSError as error:
                if not is_full(error) or not self._free_blocks():
                    raise

    def checkpoint(self) -> int:
        """Let the thread write a checkpoint, wait for the checkpoint, and return its number. The caller holds no lock
        while it waits. So other calls continue, and a signal handler may call this method inside this method."""
        self.refuse_with_lock("checkpoint()")
        request = _Request()
        self._requests.append(request)
        self.journal.nudge()
        if self._ended.is_set():  # the thread may have ended before the request was in the queue
            self._refuse_requests()
        request.done.wait()
        if request.error is not None:
            raise request.error
        assert request.written is not None
        return request.written

    def full(self) -> None:
        """Note that the disk refused an upload. The thread then writes a checkpoint, which may free some room."""
        self._full = True
        self.journal.nudge()

    def refuse_with_lock(self, what: str) -> None:
        """Refuse a call that would wait for the thread, if the thread could wait for the caller.

        Raises:
            Reentered: the caller is in the middle of a step.
            ConfigError: this process is a fork of the server's process.
        """
        engine = self.running.engine
        if engine.holds_lock:
            raise Reentered(
                f"{what}: this thread is in the middle of a step, and called from a rule of your own, a finalizer or a "
                "signal handler; call it when the step is done"
            )
        with engine.reading:  # refuses a fork of the process, in which the thread does not run
            pass

    def close(self, seconds: float | None = None) -> bool:
        """End the thread, and wait for its end at most ``seconds`` (None: any time). The thread stops writing an
        unfinished checkpoint. Return whether the thread has ended."""
        self._closing = True
        if self._thread is None or not self._thread.is_alive():
            return True
        self.journal.nudge()
        return self._ended.wait(seconds)

    def _run(self) -> None:
        try:
            while not self._closing and self._safely(self._round):
                pass
        finally:
            self._ended.set()
            while self._safely(self._refuse_requests):
                pass

    def _safely(self, work: Callable[[], bool]) -> bool:
        """Call ``work`` and return its result. If there is no memory, wait and return True, so that the caller calls
        ``work`` again. ``work`` leaves requests in the queue until they are answered, so none is lost."""
        try:
            return work()
        except MemoryError:
            time.sleep(_AGAIN)
            self.journal.nudge()
            return True

    def _round(self) -> bool:
        """Wait until a checkpoint may be due or requested, and write it if so. Return whether to call this again. A
        request's error refers to its caller's frames, and so to the server. Variables of this method end with the call,
        so that the thread does not keep the server alive."""
        self.journal.wait_written(self._due)
        requests = list(self._requests)
        if not self._closing and (requests or self._is_due()):
            self._serve(requests)
        return bool(requests) or not self.journal.ended

    def _is_due(self) -> bool:
        full = self._full or bool(self.journal.failure)
        return self.journal.written >= self._due or (full and time.monotonic() >= self._again)

    def _serve(self, requests: list[_Request]) -> None:
        written, failed, start = None, None, time.monotonic()
        self._full = False
        try:
            written = self.write()
        except FastaggError as error:
            failed = error
        except Exception as error:  # the waiting callers must get the error
            failed = CheckpointError(f"{self.disk.path}: the checkpoint could not be written: {error!r:.200}")
        if failed is not None:
            self._due = self.every + self.journal.written  # the next attempt comes after `every` further bytes
            if not requests and not self._closing:
                _log.warning("checkpoint failed: %s", failed)
        # On a full disk, the next attempt waits for a second plus the time of this attempt, to save the disk's time.
        self._again = 2 * time.monotonic() - start + 1.0
        for request in requests:
            request.written, request.error = written, failed
            request.done.set()
            self._requests.popleft()

    def _refuse_requests(self) -> bool:
        while self._requests:
            error = CheckpointError(f"{self.disk.path}: this server is closed")
            try:
                request = self._requests.popleft()
            except IndexError:  # another thread has taken the last request
                break
            request.error = error
            request.done.set()
        return False

    def write(self) -> int:
        """Write a checkpoint, and return its number. Without changes since the last one, return the last one's number.
        Only one thread at a time calls this."""
        watch = Stopwatch(["held"])
        with watch.timing("held"), self.running.engine.locked:
            sequence = 0 if self.journal is None else self.journal.last
            written = 0 if self.journal is None else self.journal.written
            is_written = sequence in self.kept
            if is_written:
                self._due = written + self.every
            else:
                snapshot = Snapshot(self.parts, self.running, alone=self.journal is None)
                if self.journal is not None:
                    self.journal.mark()
                numbers = [*self.kept, sequence]
                del numbers[self._to_go(numbers)]
                uploads = {"uploads": self.uploads.recorded(numbers[0]), "next_upload": self.uploads.next()}
        if is_written:
            if self._wrong or self.uploads.is_full:
                self.clear()  # an earlier call of `clear` failed, or the disk has refused a file since
            return int(sequence)
        name = checkpoint_name(sequence)
        more = {"sequence": sequence, "made": self.made, "folder": self.folder_id, **uploads}

        def described() -> dict[str, Any]:
            end, digest = sequence, bytes(32)
            if self.journal is not None:
                self.wait(sequence)  # the digest is computed when the record is written
                end, digest = self.journal.durable, self.journal.digest(sequence)
            log = {"digest": digest.hex(), "end": end}
            return {"log": log, "model": model_digest(snapshot.state["flat"])}

        try:
            with named(self.disk.path / f"{name}: the checkpoint could not be written"):
                # A reserve may have been a checkpoint. Its old name must not come back after a power loss.
                self.disk.sync_folder()
                reserve = next(iter(contents(self.disk).reserves), reserve_name(next(self._numbers)))
                nbytes = snapshot.write(self.disk, reserve, more, self.slack // 4, described, self.go_on)
                self.disk.remove(name)  # an attempt that failed after the rename may have left a folder
                self._rename(reserve, name)
                self.disk.sync_folder()
            self._due = written + self.every
            self.kept.append(sequence)
        finally:
            snapshot.close()
            self.clear()
        _log.info(
            "checkpoint of version %d: %d bytes in %.2f s, calls held up %.4f s",
            snapshot.state["version"], nbytes, watch.total, watch.seconds["held"],
        )  # fmt: skip
        return int(sequence)

    def go_on(self) -> None:
        """Raise CheckpointError if the server is closed. :meth:`Snapshot.write` calls this between its parts."""
        if self._closing:
            raise CheckpointError(f"{self.disk.path}: this server is closed; the checkpoint was given up")

    def _to_go(self, kept: list[int]) -> slice:
        return slice(self.history, max(self.history, len(kept) - self.keep))

    def clear(self) -> None:
        """Remove the files that no recovery needs, and reserve room for the next checkpoints. A recovery needs the kept
        checkpoints, the log after the oldest of them, and the uploads to which this log refers. Open uploads stay."""
        if self.journal is None:
            return
        freed: list[str] = []  # names of segments that the log has given up
        wrong = ""
        try:
            for old in self.kept[self._to_go(self.kept)]:
                # The next checkpoint will use the blocks of the old one.
                self._rename(checkpoint_name(old), reserve_name(next(self._numbers)))
                self.kept.remove(old)
            self.disk.sync_folder()  # otherwise, after a power loss, a checkpoint could be there without its log
            freed += self.journal.release(self.kept[0])
            freed += iter(self.journal.give_up, "")
            listing = contents(self.disk)  # read before `needed`, because an upload is in `needed` before it has a file
            needed = self.uploads.needed(self.kept[0])
            for number in set(listing.uploads).difference(needed):
                with contextlib.suppress(FileNotFoundError):  # the upload has just ended, and removed its file
                    self.uploads.remove(self.disk, number)
            self._keep_room(listing, freed)
            self._keep_spare()
            self._shrink(freed)
            self.uploads.is_full = False
        except OSError as error:  # the next checkpoint calls `clear` again
            wrong = str(error)
        finally:
            for name in freed:
                self.journal.reuse(name)
        if wrong and not self._wrong and not self._closing:
            _log.warning("%s: the volume has no room for the next checkpoint: %s", self.disk.path, wrong)
        self._wrong = wrong

    def _keep_room(self, listing: Contents, freed: list[str]) -> None:
        """Keep a reserve for each checkpoint that may be written before one is removed, and ``keep + 1`` rooms.
        ``freed``: the names of free segments. Segments that become rooms or are removed are taken from the list."""
        limit = self.keep + self.history + 1 - len(self.kept)
        sizes = trees.used(self.disk, checkpoint_name(self.kept[-1]))
        reserves = listing.reserves + [reserve_name(next(self._numbers)) for _ in range(limit - len(listing.reserves))]
        self._lent.difference_update(freed)  # the log gave these rooms back
        rooms = [name for name in listing.rooms if name not in self._lent]
        freed[:] = [name for name in freed if name not in rooms]
        for name in reserves[limit:] + rooms[self.keep + 1 :]:
            self.disk.remove(name)
        for name in reserves[:limit]:
            while True:
                try:
                    trees.reserve(self.disk, name, sizes, self.slack // 4)
                    break
                except OSError:
                    if not freed:
                        raise
                    self.disk.remove(freed[-1])
                    freed.pop()
        while len(rooms) <= self.keep:
            rooms.append(room_name(next(self._numbers)))
            large = [name for name in freed if self.disk.size_of(name) >= self.room - self.slack // 4]
            if large:
                self._rename(large[0], rooms[-1])
                freed.remove(large[0])
        for name in rooms[: self.keep + 1]:
            with self.disk.opened(name, create=True) as file:
                self.disk.allocate(file, self.room)
                self.disk.truncate(file, self.room)

    def _keep_spare(self) -> None:
        """Make the spare file if it is missing and the volume has room. On a full volume an upload takes the file."""
        if not self.uploads.spare or folder.SPARE in self.disk.names():
            return
        with contextlib.suppress(OSError), self.disk.opened(folder.SPARE + folder.PARTIAL, create=True) as file:
            self.disk.allocate(file, self.uploads.spare)
            self.disk.sync(file)  # before the file gets its name: a spare file must have its blocks
            self.disk.rename(folder.SPARE + folder.PARTIAL, folder.SPARE)

    def _shrink(self, freed: list[str]) -> None:
        """Remove free segments, and take them from ``freed``, while the log, its free segments and the uploads have
        more than ``(keep + 1) * every`` bytes together."""
        listing, used = contents(self.disk), 0
        for name in (*listing.segments.values(), *listing.free, *listing.uploads.values()):
            with contextlib.suppress(FileNotFoundError):  # the log has just renamed the file
                used += self.disk.size_of(name)
        while used > (self.keep + 1) * self.every and freed:
            used -= self.disk.size_of(freed[-1])
            self.disk.remove(freed[-1])
            freed.pop()
