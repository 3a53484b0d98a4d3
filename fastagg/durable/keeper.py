"""Keeps a server's folder in order: a thread writes its checkpoints, and removes what no recovery will ask for."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import deque
from typing import Any

from fastagg._build import native
from fastagg.durable.disk import Disk
from fastagg.durable.folder import PARTIAL, checkpoint_name, model_digest, upload_name
from fastagg.durable.snapshot import Snapshot
from fastagg.durable.uploads import Uploads
from fastagg.errors import CheckpointError, FastaggError, Reentered
from fastagg.server.engine import Parts, Running
from fastagg.timing import Stopwatch

EVERY = 1 << 30  # bytes of the log after which a checkpoint is written
_log = logging.getLogger("fastagg")


class Latch:
    """What is set once, and waited for. Unlike ``threading.Event`` it has no lock that a waiting thread holds for a
    moment: a signal's handler that fell into that moment, and waited for the thread that sets this, would wait for
    ever."""

    def __init__(self) -> None:
        self._is_set = False
        self._waiting: deque[threading.Lock] = deque()  # each waiter's own

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        with contextlib.suppress(IndexError):
            while True:
                self._waiting.pop().release()

    def wait(self, seconds: float | None = None) -> bool:
        """Return whether it is set, after ``seconds`` at the latest."""
        mine = threading.Lock()
        mine.acquire()
        self._waiting.append(mine)  # before the look, so that whoever sets it later finds it
        return self._is_set or mine.acquire(timeout=-1 if seconds is None else seconds)


class _Request:
    """Somebody waits for a checkpoint."""

    def __init__(self) -> None:
        self.done = Latch()
        self.written: int | None = None
        self.error: FastaggError | None = None


class Keeper:
    """The checkpoints of one folder.

    Args:
        made: the settings that the folder was begun with.
        folder_id: the folder's random number.
        kept: sequence numbers of the checkpoints that are there, oldest first.
        keep: how many checkpoints stay.
        every: bytes of the log after which one is written.
    """

    def __init__(
        self, disk: Disk, parts: Parts, running: Running, uploads: Uploads, *, made: dict[str, Any], folder_id: int,
        kept: list[int], keep: int, every: int,
    ) -> None:  # fmt: skip
        self.disk, self.parts, self.running, self.uploads = disk, parts, running, uploads
        self.made, self.folder_id, self.kept, self.keep, self.every = made, folder_id, kept, keep, every
        self.history = 0  # of the oldest checkpoints, which stay with all of the log behind them
        self.journal: Any = None
        self._due = every
        self._requests: deque[_Request] = deque()
        self._closing = False
        self._ended = Latch()

    def start(self, journal: Any, replayed: int) -> None:
        """Begin to write checkpoints. ``replayed``: bytes of the log behind the last one."""
        self.journal = journal
        lost = self.running.extension.state.on_loss(self.soon)
        self._due = 0 if lost else max(0, self.every - replayed)
        threading.Thread(target=self._run, name="fastagg checkpoints", daemon=True).start()

    def wait(self, sequence: int) -> None:
        """Wait until the record is on the disk, so that a checkpoint with it may count."""
        self.journal.wait(sequence)

    def request(self) -> _Request:
        """Let the thread write a checkpoint."""
        request = _Request()
        self._requests.append(request)
        self.journal.nudge()
        if self._ended.is_set():  # it may have ended before it saw the request
            self._refuse_requests()
        return request

    def checkpoint(self) -> int:
        """Let the thread write a checkpoint, wait for it, and return its number. The caller holds nothing meanwhile, so
        others go on, and a signal handler may call this while it interrupts such a call.

        Raises:
            CheckpointError, NotDurable: it could not be written. Reentered: the caller is in the middle of a step.
        """
        self.refuse_inside("checkpoint()")
        request = self.request()
        request.done.wait()
        if request.error is not None:
            raise request.error
        assert request.written is not None
        return request.written

    def soon(self) -> None:
        """Write a checkpoint as soon as possible: the log alone does not lead to this state."""
        self._due = 0
        self.journal.nudge()

    def refuse_inside(self, what: str) -> None:
        """Refuse what waits for the thread, if the thread could wait for the caller.

        Raises:
            Reentered: the caller is in the middle of a step. ConfigError: the process is a fork of the server's.
        """
        engine = self.running.engine
        if engine.is_inside:
            raise Reentered(
                f"{what}: this thread is in the middle of a step, and called from a rule of your own, a finalizer or a "
                "signal handler; call it when the step is done"
            )
        with engine.reading:  # refuses a fork, which has no such thread
            pass

    def close(self, seconds: float | None = None) -> bool:
        """End the thread; a checkpoint that it is writing is given up. Wait no longer than ``seconds``. Return whether
        it has ended."""
        self._closing = True
        if self.journal is None:
            return True
        self.journal.nudge()
        return self._ended.wait(seconds)

    def _run(self) -> None:
        try:
            while not self._closing and self._round():
                pass
        finally:
            self._ended.set()
            self._refuse_requests()

    def _round(self) -> bool:
        """Wait for something to do, and do it. Return whether more may come. Nothing of it is held afterwards: the
        error of a request holds the caller's frames, and so the server."""
        self.journal.wait_written(self._due)
        requests = [self._requests.popleft() for _ in range(len(self._requests))]
        if not self._closing and (requests or self.journal.written >= self._due):
            self._serve(requests)
        else:
            self._requests.extendleft(reversed(requests))
        return bool(requests) or not self.journal.ended

    def _serve(self, requests: list[_Request]) -> None:
        written, failed = None, None
        try:
            written = self.write()
        except FastaggError as error:
            failed = error
        except Exception as error:  # whoever waits must hear of it
            failed = CheckpointError(f"{self.disk.path}: the checkpoint could not be written: {error!r:.200}")
        if failed is not None:
            self._due = self.every + self.journal.written  # tried again after as many bytes
            if not requests and not self._closing:
                _log.warning("checkpoint failed: %s", failed)
        for request in requests:
            request.written, request.error = written, failed
            request.done.set()

    def _refuse_requests(self) -> None:
        while True:
            try:
                request = self._requests.popleft()
            except IndexError:
                return
            request.error = CheckpointError(f"{self.disk.path}: this server is closed")
            request.done.set()

    def write(self) -> int:
        """Write a checkpoint, and return its number. Only one thread at a time calls this.

        Raises:
            CheckpointError: it could not be written. NotDurable: the log could not be.
        """
        watch, engine = Stopwatch(["held"]), self.running.engine
        with watch.timing("held"), engine.inside:
            sequence = 0 if self.journal is None else self.journal.last
            written = 0 if self.journal is None else self.journal.written
            if sequence in self.kept:
                self._due = written + self.every
                return int(sequence)
            cut = Snapshot(self.parts, self.running)
            if self.journal is not None:
                self.journal.mark()
            uploads = self.uploads.recorded()
        name = checkpoint_name(sequence)
        more = {"sequence": sequence, "made": self.made, "folder": self.folder_id, "uploads": uploads}

        def told() -> dict[str, Any]:
            if self.journal is None:
                digest = native.log.Tree(0).root
            else:
                self.wait(sequence)  # its digest is known then
                digest = self.journal.digest(sequence)
            return {**more, "digest": "" if digest is None else digest.hex(), "model": model_digest(cut.state["flat"])}

        try:
            nbytes = cut.write(self.disk, name + PARTIAL, told, self.go_on)
            self.disk.rename(name + PARTIAL, name)
            self.disk.sync_folder()
            with engine.inside:
                self.running.extension.state.saved(cut.state["direction"])
        except OSError as error:
            raise CheckpointError(
                f"{self.disk.path / (name + PARTIAL)}: the checkpoint could not be written: {error}"
            ) from error
        finally:
            cut.close()
            self._remove(name + PARTIAL)
        self._due = written + self.every
        self.kept.append(sequence)
        self._clear()
        _log.info(
            "checkpoint of version %d: %d bytes in %.2f s, calls held up %.4f s",
            cut.state["version"],
            nbytes,
            watch.total,
            watch.seconds["held"],
        )
        return int(sequence)

    def go_on(self) -> None:
        """Give up the checkpoint that is being written, if the server is closed."""
        if self._closing:
            raise CheckpointError(f"{self.disk.path}: this server is closed; the checkpoint was given up")

    def _remove(self, name: str) -> None:
        with contextlib.suppress(OSError):  # the next opening removes it
            self.disk.remove(name)

    def _clear(self) -> None:
        """Remove what no recovery will ask for."""
        with contextlib.suppress(OSError):  # it is tried again after the next one
            while len(self.kept) > self.keep + self.history:
                self.disk.remove(checkpoint_name(self.kept[self.history]))
                self.kept.pop(self.history)
            self.disk.sync_folder()  # else a checkpoint could come back with a power loss, and its log not
            if self.journal is not None:
                self.journal.release(self.kept[0])
            for number, sequence in self.uploads.recorded().items():
                if sequence <= self.kept[0]:
                    self.disk.remove(upload_name(number))
                    self.uploads.removed(number)
