"""Reports a running server's refusals, slow answers and metrics: in the log, in a CSV file, and for Prometheus.

A server without a folder reports nothing before :func:`watch` is called. :func:`fastagg.open` turns on the log lines.
"""

from __future__ import annotations

import contextlib
import csv
import io
import logging
import math
import os
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from fastagg import _checks, _extras
from fastagg._types import Foreign
from fastagg.errors import AlreadyCounted, ConfigError, FastaggError
from fastagg.server import engine
from fastagg.server.dispatch import Client, Dispatch
from fastagg.server.server import Server

_log = logging.getLogger("fastagg")
_EVERY = 1.0  # the least number of seconds between two lines about the same kind of refusal
_SECONDS = (1e-5, 1e-4, 1e-3, 0.01, 0.1, 1.0, 10.0)
_OPEN = 100_000  # the most unanswered tasks whose time of dispatch is kept. The oldest times are dropped first.
TIMES = ("client", "dispatched", "answered")  # the columns of a file of times
_DELAYS = (0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
Sends = Callable[[Client, int | None, int | None], Dispatch]


def watch(
    server: Server, registry: Foreign = None, *, slow: float = 1.0, times: str | os.PathLike[str] | None = None
) -> Server:
    """Let a server report refusals, slow answers and metrics.

    The logger ``fastagg`` gets a line for a refusal and for a slow answer. For each kind of refusal there is at most
    one line a second, with the number of refusals since the last line. A server of :func:`fastagg.open` logs these
    lines even without this call.

    Args:
        server: the server to watch. It is returned.
        registry: a registry of ``prometheus_client`` (the extra ``metrics``), for example
            ``prometheus_client.REGISTRY``. It gets counters and histograms of updates, refusals by reason, delays, and
            the seconds of answers and of waiting for the disk. Each scrape also reads the open tasks, the age of the
            oldest one (with ``lease``), bytes by part, the version, the last record that is on the disk, and whether
            all numbers of the state are finite. None: the server gets no metrics.
        slow: a number of seconds, > 0. An answer is slow if its call takes longer, besides the wait for the disk.
        times: a CSV file with a line for each answer to a task: the client, the time when the task was sent, and the
            time of the answer, both in seconds since 1970. Lines are appended to an existing file of this form. The
            simulator can replay the file (``delay.name = "measured"``). Tasks from :meth:`Server.hand_on`, and tasks
            that were sent before this call or before a restart, have no line. If the disk refuses a line, an error is
            logged, the file gets no more lines, and the server keeps running. None: there is no such file.

    Raises:
        MissingDependency: ``registry`` is given, but prometheus_client is not installed.
        ConfigError: ``server`` is not a server, or already has a registry or a file of times. The file ``times`` cannot
            be written, or is not a file of times.

    Example:
        >>> server = fastagg.watch(fastagg.FedBuff(torch.zeros(2)), slow=0.5)
    """
    if not isinstance(server, Server):
        raise ConfigError(f"server: expected a fastagg.Server, got {server!r:.200}")
    _checks.number("slow", slow, above=0)
    reporter = watch_of(server) or ServerWatch()
    if registry is not None:
        if reporter.numbers is not None:
            raise ConfigError("registry: this server has one already")
        _extras.require("a registry", "metrics", _extras.METRICS)
        if not hasattr(registry, "register"):
            raise ConfigError(_checks.wrong("registry", "one of prometheus_client, such as REGISTRY", registry))
    if times is not None:
        if reporter.times is not None:
            raise ConfigError("times: this server writes a file already")
        reporter.times = AnswerTimes(_checks.path("times", times))
        server._dispatch = reporter.times.sending(server._dispatch)
    server._watch = reporter
    reporter.begin(server, slow, None if registry is None else ServerMetrics(server, registry))
    return server


def watch_of(server: Server) -> ServerWatch | None:
    """Return the object that reports on a server. None: nothing reports on the server yet."""
    return server._watch if isinstance(server._watch, ServerWatch) else None


class ServerWatch:
    """Reports on one server. The server calls these methods.

    Attributes:
        slow: an answer that takes more seconds than this is logged.
        numbers: the metrics. None: there is no registry.
        times: writes the file with the times of tasks and answers. None: there is no such file.
    """

    def __init__(self) -> None:
        self.slow = math.inf
        self.numbers: ServerMetrics | None = None
        self.times: AnswerTimes | None = None
        # Kind of refusal -> the time of its last line, and the number of refusals since then.
        self._said: dict[str, tuple[float, int]] = {}

    def begin(self, server: Server, slow: float, numbers: ServerMetrics | None = None) -> None:
        """Begin to report answers that take more than ``slow`` seconds. With ``numbers``, also count all answers."""
        self.slow = slow
        self.numbers = numbers or self.numbers
        every = self.numbers is not None or self.times is not None
        server._engine.watch(-1.0 if every else slow, self._arrived)

    def _arrived(self, seconds: float, waited: float, delays: Sequence[int], tasks: Sequence[int]) -> None:
        """Report the answers of one call. The call took ``seconds``, and further ``waited`` seconds for the disk.
        ``delays``: the answers' delays in versions. ``tasks``: the ids of the answered tasks (0: there was no task)."""
        if self.times is not None:
            self.times.answered(tasks)
        if seconds > self.slow:
            _log.warning("slow: %d answers took %.3f s", len(delays), seconds)
        if self.numbers is not None:
            self.numbers.arrived(delays, seconds, waited)

    def refused(self, error: FastaggError) -> None:
        """Report a refused call. A second answer to a task is logged at level INFO, because its sender can get the
        outcome of the first answer. Other refusals are logged at level WARNING."""
        reason, now = type(error).__name__, time.monotonic()
        if self.numbers is not None:
            self.numbers.refused(reason)
        last, count = self._said.get(reason, (-_EVERY, 0))
        if now - last < _EVERY:
            self._said[reason] = last, count + 1
            return
        self._said[reason] = now, 0
        more = f" (and {count} more of these since the last line)" if count else ""
        again = isinstance(error, AlreadyCounted) and error.version is not None
        level, what = (logging.INFO, "again") if again else (logging.WARNING, "refused")
        _log.log(level, "%s: %s: %.400s%s", what, reason, error, more)


class AnswerTimes:
    """Writes a CSV file with the times when tasks were sent and answered. Each write has whole lines, and each change
    of the table of tasks is atomic, so threads need no lock. If the disk refuses a line, the file gets no more."""

    def __init__(self, path: Path) -> None:
        self._sent: OrderedDict[int, tuple[Client, float]] = OrderedDict()  # task's id -> client, time of dispatch
        # The system's time minus the monotonic clock's. Computed once, so that setting the system's clock changes no
        # duration.
        self._offset = time.time() - time.monotonic()
        self._path, self._ended = path, False
        heading = f"{','.join(TIMES)}\n".encode()
        try:
            self._file = open(path, "a+b", buffering=0)  # noqa: SIM115  stays open as long as the server lives
            self._file.seek(0)
            first = self._file.readline(1000)
            if not first:
                self._append(heading)
        except OSError as error:
            raise ConfigError(f"times: cannot write {path}: {error.strerror or error}") from None
        if first not in (b"", heading):
            raise ConfigError(f"times: {path} holds something else: its first line is not {heading.decode().strip()}")

    def sending(self, dispatch: Sends) -> Sends:
        """Return a function that calls ``dispatch``, and stores the time when the task was sent."""

        def noted(client: Client, format: int | None, local_steps: int | None) -> Dispatch:
            task = dispatch(client, format, local_steps)
            # The task has been sent. If there is no memory, only the task's line will be missing.
            with contextlib.suppress(MemoryError):
                # If a client gets its open task again, the time of the first dispatch stays.
                if task.id is not None and task.id not in self._sent and not self._ended:
                    self._sent[task.id] = task.client, self._now()
                    if len(self._sent) > _OPEN:
                        self._sent.popitem(last=False)
            return task

        return noted

    def answered(self, tasks: Sequence[int]) -> None:
        """Write a line for each of these tasks whose time of dispatch is known. ``tasks``: the tasks' ids."""
        now, lines = self._now(), io.StringIO()
        for task in tasks:
            if (sent := self._sent.pop(task, None)) is not None:
                csv.writer(lines, lineterminator="\n").writerow((sent[0], f"{sent[1]:.6f}", f"{now:.6f}"))
        if self._ended or not (text := lines.getvalue()):
            return
        try:
            self._append(text.encode())
        except OSError as error:
            self._ended = True
            self._sent.clear()
            _log.error("times: %s: %s; nothing more is written to it", self._path, error.strerror or error)

    def _append(self, lines: bytes) -> None:
        """Write whole lines. If the disk refuses, raise OSError and leave no part of the lines in the file."""
        end = self._file.seek(0, os.SEEK_END)
        try:
            while lines:
                lines = lines[self._file.write(lines) :]
        except OSError:
            with contextlib.suppress(OSError):
                self._file.truncate(end)
            raise

    def _now(self) -> float:
        return self._offset + time.monotonic()


class ServerMetrics:
    """A server's metrics in a Prometheus registry."""

    def __init__(self, server: Server, registry: Foreign) -> None:
        from prometheus_client import Counter, Histogram

        self._me = weakref.ref(server)
        self._arrivals = Counter("fastagg_arrivals", "Updates taken", registry=registry)
        self._refusals = Counter("fastagg_refusals", "Calls refused", ["reason"], registry=registry)
        self._delays = Histogram("fastagg_delay_versions", "Delays of updates", buckets=_DELAYS, registry=registry)
        self._steps = Histogram("fastagg_step_seconds", "Seconds per answer", buckets=_SECONDS, registry=registry)
        self._waits = Histogram(
            "fastagg_wait_seconds", "Seconds waiting for the disk", buckets=_SECONDS, registry=registry
        )
        registry.register(self)

    def arrived(self, delays: Sequence[int], seconds: float, waited: float) -> None:
        """Count the updates that one call has taken. ``seconds`` and ``waited`` are those of the whole call."""
        self._arrivals.inc(len(delays))
        self._steps.observe(seconds)
        self._waits.observe(waited)
        for delay in delays:
            self._delays.observe(delay)

    def refused(self, reason: str) -> None:
        """Count a refused call. ``reason``: the name of the error's class."""
        self._refusals.labels(reason).inc()

    def describe(self) -> list[Foreign]:
        """Return no descriptions. A registry calls this when the metrics are registered. Without this method it could
        call :meth:`collect`, which reads the whole state."""
        return []

    def collect(self) -> Iterator[Foreign]:
        """Yield the gauges. A registry calls this when it is scraped."""
        from prometheus_client.core import GaugeMetricFamily

        server = self._me()
        if server is None:
            return
        with server._engine.reading:
            native = server._engine
            gauges = {
                "version": ("Steps so far", native.version),
                "open_tasks": ("Open tasks", native.open_tasks),
                "oldest_task_seconds": ("Age of the oldest task with a lease", native.oldest_task),
                "expired_tasks": ("Tasks that ended without an answer", native.expired),
                "misformed_updates": ("Updates that looked like models, or models like updates", native.misformed),
            }
            held, finite = server.memory(), engine.finite(server._running)
        if server._log is not None:
            journal = server._log.journal
            gauges["journal_last"] = ("The log's last record", journal.last)
            gauges["journal_durable"] = ("The last record on the disk", journal.durable)
            gauges["journal_bytes"] = ("Bytes written to the log", journal.written)
            gauges["journal_syncs"] = ("Calls of fdatasync", journal.syncs)
        gauges["finite"] = ("Whether all numbers held are finite", int(finite))
        for name, (help_text, value) in gauges.items():
            yield GaugeMetricFamily(f"fastagg_{name}", help_text, value=value)
        family = GaugeMetricFamily("fastagg_memory_bytes", "Bytes held, by part", labels=["part"])
        for part, nbytes in held.items():
            if part != "total":
                family.add_metric([part], nbytes)
        yield family
