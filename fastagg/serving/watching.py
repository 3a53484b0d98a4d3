"""What a running server reports: lines in the log, and metrics for Prometheus.

A server reports nothing before :func:`watch` is called. Until then its methods are exactly those of its class.
"""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from fastagg import _checks, _extras
from fastagg._build import native
from fastagg.errors import ConfigError, FastaggError
from fastagg.serving.dispatch import Receipt
from fastagg.serving.server import Server

_log = logging.getLogger("fastagg")
_EVERY = 1.0  # at least so many seconds between two lines with the same reason
_waited = native.serving.Journal.waited  # seconds that the calling thread has waited for a disk
_SECONDS = (1e-5, 1e-4, 1e-3, 0.01, 0.1, 1.0, 10.0)
_DELAYS = (0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)


def watch(server: Server, registry: Any = None, *, slow: float = 1.0) -> Server:
    """Let a server report what happens to it. Servers of :func:`fastagg.open` write to the log without this call.

    The logger ``fastagg`` gets a line for a refusal and for a slow answer. For each reason there is at most one line a
    second, which tells how many refusals there were.

    Args:
        server: the server to watch. It is returned.
        registry: a registry of ``prometheus_client`` (the extra ``metrics``), for example
            ``prometheus_client.REGISTRY``. It gets counters and histograms of arrivals, refusals by reason, delays, and
            the seconds of steps and of waiting for the disk. When it is scraped, it also reads: open tasks, the age of
            the oldest one (with ``lease``), bytes by part, the version, the last record that is on the disk, and
            whether the model is finite.
        slow: an answer is slow if it takes at least this many seconds.

    Raises:
        MissingDependency: ``registry`` is given, but prometheus_client is not installed.
        ConfigError: ``server`` is not a server, or already has a registry.
    """
    if not isinstance(server, Server):
        raise ConfigError(f"server: expected a fastagg.Server, got {server!r:.200}")
    _checks.number("slow", slow, above=0)
    found = server.__dict__.get("_watch")
    if found is None:
        found = server.__dict__["_watch"] = Watch(server)
        found.stand_before(server)
    found.slow = slow
    if registry is not None:
        if found.numbers is not None:
            raise ConfigError("registry: this server has one already")
        _extras.require("a registry", "metrics", _extras.METRICS)
        found.numbers = Numbers(server, registry)
        found.stand_before(server)
    if "_door" in server.__dict__:
        server.__dict__["_door"].slow = math.inf if found.stands else slow
    return server


class Watch:
    """Reports on a server. A server with a folder calls it itself. For other servers, or if there is a registry, it
    wraps the server's methods.

    Attributes:
        numbers: the metrics; None if there is no registry.
        stands: whether it wraps the server's methods.
    """

    def __init__(self, server: Server) -> None:
        self.slow, self.numbers = 1.0, None  # type: float, Numbers | None
        self.stands = False
        self._said: dict[str, tuple[float, int]] = {}  # reason -> time of the last line, refusals since then
        self._inside = threading.local()

    def stand_before(self, server: Server) -> None:
        """Wrap the server's methods. From now on every call passes through this object."""
        if self.stands:
            return
        self.stands = True
        for name in ("receive", "receive_many", "receive_models", "dispatch"):
            server.__dict__[name] = self._watched(weakref.ref(server), getattr(type(server), name), name)

    def refused(self, error: FastaggError) -> None:
        """Report that a server with a folder has refused a call."""
        if not self.stands:
            self._refused(error)

    def was_slow(self, seconds: float, answers: int = 1) -> None:
        """Report that answers took this long, not counting any wait for the disk."""
        _log.warning("slow: %d answers took %.3f s", answers, seconds)

    @contextlib.contextmanager
    def timed(self, answers: int = 1) -> Iterator[None]:
        """Report if the code in this block is slow."""
        begun, waited = time.perf_counter(), _waited()
        yield
        seconds = time.perf_counter() - begun - (_waited() - waited)
        if seconds > self.slow and not self.stands:
            self.was_slow(seconds, answers)

    def _watched(self, me: weakref.ref[Server], method: Callable[..., Any], name: str) -> Callable[..., Any]:
        def call(*arguments: Any, **settings: Any) -> Any:
            server, inside = me(), self._inside
            if getattr(inside, "depth", 0):
                return method(server, *arguments, **settings)
            inside.depth = 1
            begun, waited = time.perf_counter(), _waited()
            try:
                outcome = method(server, *arguments, **settings)
            except FastaggError as error:
                self._refused(error)
                raise
            finally:
                inside.depth = 0
            if name != "dispatch":
                outcomes = outcome if isinstance(outcome, list) else [outcome]
                waited = _waited() - waited
                self._arrived(outcomes, time.perf_counter() - begun - waited, waited)
            return outcome

        call.__doc__ = method.__doc__
        return call

    def _arrived(self, outcomes: list[Any], seconds: float, waited: float) -> None:
        if seconds > self.slow:
            self.was_slow(seconds, len(outcomes))
        for outcome in outcomes:
            if isinstance(outcome, FastaggError):
                self._refused(outcome)
        if self.numbers is not None:
            self.numbers.arrived([one for one in outcomes if isinstance(one, Receipt)], seconds, waited)

    def _refused(self, error: FastaggError) -> None:
        reason, now = type(error).__name__, time.monotonic()
        if self.numbers is not None:
            self.numbers.refused(reason)
        last, count = self._said.get(reason, (-_EVERY, 0))
        if now - last < _EVERY:
            self._said[reason] = last, count + 1
            return
        self._said[reason] = now, 0
        more = f" (and {count} more of these since the last line)" if count else ""
        _log.warning("refused: %s: %.400s%s", reason, error, more)


class Numbers:
    """A server's metrics in a Prometheus registry."""

    def __init__(self, server: Server, registry: Any) -> None:
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

    def arrived(self, receipts: list[Receipt], seconds: float, waited: float) -> None:
        """Count updates that one call has taken."""
        self._arrivals.inc(len(receipts))
        self._steps.observe(seconds)
        self._waits.observe(waited)
        for receipt in receipts:
            self._delays.observe(receipt.delay)

    def refused(self, reason: str) -> None:
        """Count a refused call."""
        self._refusals.labels(reason).inc()

    def describe(self) -> list[Any]:
        """Return nothing: a registry asks for it when the metrics are registered, before they have values."""
        return []

    def collect(self) -> Iterator[Any]:
        """Yield the metrics that are read when the registry is scraped."""
        from prometheus_client.core import GaugeMetricFamily

        server = self._me()
        if server is None:
            return
        with server._lock:
            core = server._core
            found = {
                "version": ("Steps so far", core.ledger.version),
                "open_tasks": ("Open tasks", core.ledger.open_tasks),
                "oldest_task_seconds": ("Age of the oldest task with a lease", core.ledger.oldest_task),
                "expired_tasks": ("Tasks that ended without an answer", core.ledger.expired),
            }
            held, finite = server.memory(), core.finite()
        journal = getattr(server, "_journal", None)
        if journal is not None:
            found["journal_last"] = ("The journal's last record", journal.last)
            found["journal_durable"] = ("The last record on the disk", journal.durable)
            found["journal_bytes"] = ("Bytes written to the journal", journal.written)
            found["journal_syncs"] = ("Calls of fdatasync", journal.syncs)
        found["finite"] = ("Whether all numbers held are finite", int(finite))
        for name, (told, value) in found.items():
            yield GaugeMetricFamily(f"fastagg_{name}", told, value=value)
        family = GaugeMetricFamily("fastagg_memory_bytes", "Bytes held, by part", labels=["part"])
        for part, nbytes in held.items():
            if part != "total":
                family.add_metric([part], nbytes)
        yield family
