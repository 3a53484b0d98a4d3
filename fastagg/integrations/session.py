"""The run of a server in any framework: open tasks, outcomes of replies, metrics of versions, and the end of the run.

A reply counts once, or it is refused and changes nothing. The server's own metrics are reported in the order of
versions. Only adapters call this module, from one thread or under a lock of their own.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from fastagg._types import Arrays, State
from fastagg.errors import ConfigError, FastaggError, RunFailed, UnknownClient, UnknownVersion
from fastagg.integrations.evaluation import Evaluation, Metrics, Window
from fastagg.integrations.goals import Failures, Settings, Watch
from fastagg.integrations.models import drop_round, tensors
from fastagg.integrations.replies import ClientFailure, LateReply, judged, stripped
from fastagg.server import checkpoint
from fastagg.server.answers import Answer
from fastagg.server.dispatch import Dispatch, Receipt
from fastagg.server.server import Outcome, Server
from fastagg.trackers import Trackers, numeric

Key = TypeVar("Key", bound=Hashable)
Holder = TypeVar("Holder", bound=Hashable)


@dataclass
class Tally:
    """Counts since the run began, including the time before restarts."""

    updates: int = 0  # the number of updates that the server took
    refused: Counter[str] = field(default_factory=Counter)  # the number of refused replies, by the error's name
    failed: int = 0  # the number of tasks that ended without a reply, by a client's error or a timeout
    delays: int = 0  # the sum of the updates' delays, in versions
    longest: int = 0  # the largest delay of an update, in versions
    by_client: Counter[Hashable] = field(default_factory=Counter)  # the number of updates, by client

    def state_dict(self) -> State:
        """Return the counts as plain data. ``Tally(**data)`` is an equal tally."""
        return {name: dict(kept) if isinstance(kept, Counter) else kept for name, kept in vars(self).items()}

    def __post_init__(self) -> None:
        self.refused, self.by_client = Counter(self.refused), Counter(self.by_client)


class VersionMetrics(NamedTuple):
    """All metrics of one version.

    Attributes:
        version: the version's number.
        result: the metrics that the version's evaluation returned. None if the version was not evaluated.
        metrics: all numbers. The evaluation's metrics keep their names. The names of clients' training metrics begin
            with ``train/``, and the names of the run's counts with ``run/``.
    """

    version: int
    result: Metrics
    metrics: dict[str, float]


@dataclass(frozen=True)
class OpenTask(Generic[Holder]):
    """A task that waits for its answer.

    Attributes:
        holder: the framework's name of the client that has the task. ``task.client`` is the server's id of this client.
        deadline: the time of the book's clock, in seconds, after which the adapter gives up the task. Infinity: never.
    """

    holder: Holder
    task: Dispatch
    deadline: float = inf


class Book(Generic[Key, Holder]):
    """The open tasks of a run, with their clients and deadlines. Each adapter chooses the type of the tasks' keys, such
    as a message's id or a client's name.

    The server may end a task before its answer comes (``lease``, ``max_delay``). The task then stays in the book until
    its answer comes or :meth:`end` removes the task. Such an answer is refused as :class:`LateReply`.
    """

    def __init__(self, server: Server, clock: Callable[[], float] = time.monotonic) -> None:
        self.server, self._clock = server, clock
        self._open: dict[Key, OpenTask[Holder]] = {}
        self.known: set[Holder] = set()  # all clients that ever had a task

    def __iter__(self) -> Iterator[OpenTask[Holder]]:
        """Iterate over the open tasks, the newest first."""
        return reversed(self._open.values())

    def keys_of(self, holder: Holder | None = None) -> list[Key]:
        """Return the keys of all open tasks, or of the tasks of ``holder``."""
        return [key for key, task in self._open.items() if holder is None or task.holder == holder]

    @property
    def busy(self) -> Set[Holder]:
        """The clients with an open task, oldest task first, as a new set. Any thread may read this property."""
        return dict.fromkeys(task.holder for task in list(self._open.values())).keys()  # list() is atomic

    def put(self, key: Key, holder: Holder, task: Dispatch, timeout: float = inf) -> None:
        self.pop(key)
        self.known |= {holder} - {None}
        self._open[key] = OpenTask(holder, task, self._clock() + timeout)

    def pop(self, key: Key) -> OpenTask[Holder] | None:
        """Remove and return the task with this key. None: no such task is open."""
        return self._open.pop(key, None)

    def late(self) -> list[Key]:
        """Return the keys of tasks whose deadline is over."""
        now = self._clock()
        return [key for key, task in self._open.items() if task.deadline < now]

    def end(self, keys: Iterable[Key] | None = None) -> list[OpenTask[Holder]]:
        """Remove the tasks with these keys from the book, end these tasks at the server, and return them. Their answers
        no longer count. ``keys``: None means all tasks."""
        ended = [task for key in (self.keys_of() if keys is None else keys) if (task := self.pop(key)) is not None]
        for task in ended:
            self.forget(task.task)
        return ended

    def take(self, answers: Sequence[tuple[OpenTask[Holder], Answer | FastaggError]]) -> list[Outcome]:
        """Pass answers to the server, in one pass over memory for each step. Return each answer's receipt or error. If
        an answer is refused, its task ends.

        Args:
            answers: pairs of a task and its answer. An error in place of an answer: the reply could not be read.
        """
        taken = iter(self.server.receive_many([answer for _, answer in answers if isinstance(answer, Answer)]))
        outcomes = [judged(next(taken)) if isinstance(answer, Answer) else stripped(answer) for _, answer in answers]
        for (task, _), outcome in zip(answers, outcomes, strict=True):
            if not isinstance(outcome, Receipt):
                self.forget(task.task)
        return outcomes

    def forget(self, task: Dispatch) -> None:
        """End a task at the server, unless the server has ended it."""
        with suppress(UnknownClient, UnknownVersion):
            self.server.forget(task.client, task.version)


class Session:
    """The state of a run, for a framework's adapter.

    The adapter calls :meth:`take` or :meth:`refused` for replies, :meth:`stepped` for every version, and from time to
    time :meth:`settle`, which returns the versions whose metrics are complete. :attr:`over` is the reason why the run
    must end, or None. A permanent problem raises :class:`fastagg.RunFailed`.

    Args:
        server: the run's server.
        settings: the user's settings. None: the defaults.
        evaluate: ``evaluate(version, model)`` returns metrics or None. The model is ``server.parameters()``. None: the
            server evaluates no version.
        say: called with a line of progress for each version and each update. None: a logger's ``info``.
        warn: called with a line for each refused reply or failed client. None: a logger's ``warning``.
        clock: returns seconds.

    Attributes:
        book: the open tasks. Some adapters replace this book by a book of their own.
        window: averages the metrics in replies, if clients evaluate the model that they were sent. Otherwise None.
        lacks: text for the log: what the adapter waits for besides replies, such as nodes. Empty: only for replies.
        noun: the framework's word for a client.
        ended: an event that is set when the session is closed.
    """

    def __init__(
        self, server: Server, settings: Settings | None = None,
        evaluate: Callable[[int, Arrays], Metrics] | None = None, say: Callable[[str], None] | None = None,
        clock: Callable[[], float] = time.monotonic, warn: Callable[[str], None] | None = None,
    ) -> None:  # fmt: skip
        self.server, self.settings = server, settings or Settings()
        self.failures = Failures(self.settings, clock)
        self.tally = Tally()
        self.over: str | None = None
        self.trackers = Trackers(self.settings.trackers)
        goals = {"stop": self.settings.stop, "best": self.settings.best}
        self._watches = {name: Watch(goal.metric, goal.mode) for name, goal in goals.items() if goal is not None}
        self.evaluation = Evaluation(evaluate, self.settings.evaluate_aside)
        self._looked_at = any((evaluate, self.settings.best, self.settings.on_version))
        self.say, self.warn = say or logging.getLogger("fastagg").info, warn or logging.getLogger("fastagg").warning
        self._clock, self._began, self._before = clock, clock(), 0.0
        self._rows: dict[int, dict[str, float]] = {}  # by version: the metrics that are not from the evaluation
        self.book: Book[Any, Any] = Book(server)
        self.window: Window | None = None
        self.lacks, self.noun, self.ended = "", "client", threading.Event()
        self._skipped = 0  # the number of rounds in a row that were skipped, because they were too small for the rule

    # -- replies -------------------------------------------------------------------------------------------------

    def take(self, replies: Sequence[tuple[OpenTask[Any], Answer | FastaggError, Metrics]]) -> list[Outcome]:
        """Give replies to the server in one call. Log, count and return the outcome of each reply.

        Args:
            replies: for each reply its task, its answer and the client's metrics. An error in place of an answer: the
                reply could not be read.

        Raises:
            RunFailed: too many replies were refused.
        """
        outcomes = self.book.take([(task, answer) for task, answer, _ in replies])
        for (task, _, metrics), outcome in zip(replies, outcomes, strict=True):
            if isinstance(outcome, Receipt):
                self.taken(task.holder, outcome)
                if self.window is not None:
                    self.window.add(task.task, metrics)
                if row := numeric(metrics or {}):
                    named = {f"client/{task.holder}/{name}": value for name, value in row.items()}
                    self.trackers.log(named, outcome.version)
                step = f"version {outcome.version}" if outcome.applied else "kept for the next step"
                what = f"update from version {task.task.version} taken, delay {outcome.delay}: {step}"
                self.say(f"fastagg: {self.noun} {task.holder}: {what}")
        for (task, *_), outcome in zip(replies, outcomes, strict=True):
            if isinstance(outcome, FastaggError):
                self.refused(task.holder, outcome)
        return outcomes

    def taken(self, client: Hashable, receipt: Receipt) -> None:
        self.failures.taken(client)
        self.tally.updates += 1
        self.tally.by_client[client] += 1
        self.tally.delays += receipt.delay
        self.tally.longest = max(self.tally.longest, receipt.delay)

    def refused(self, client: Hashable, error: FastaggError) -> None:
        """Log and count a refused reply. If no reply came, ``error`` is a :class:`ClientFailure`. A :class:`LateReply`
        is not counted among the client's failures.

        Raises:
            RunFailed: too many replies were refused.
        """
        failed = isinstance(error, ClientFailure)
        self.warn(f"fastagg: {self.noun} {client}: {'failed' if failed else 'refused'}: {error}")
        self.tally.failed += failed
        if not failed:
            self.tally.refused[type(error).__name__] += 1
        if not isinstance(error, LateReply):
            self.failures.failed(client, str(error) if failed else f"{type(error).__name__}: {error}")

    def refuse(self, client: Hashable, task: OpenTask[Any] | None, error: FastaggError) -> FastaggError:
        """End the task of a reply that could not be read, and log and count ``error``. Return ``error``."""
        if task is not None:
            self.book.forget(task.task)
        self.refused(client, stripped(error))
        return error

    # -- versions ------------------------------------------------------------------------------------------------

    def stepped(self, train: Metrics = None, last: bool = False) -> None:
        """Note that the server has a new version. Call this once for the first version, too.

        Args:
            train: the averaged training metrics of the clients whose updates made the version.
            last: whether this is the run's last version. The last version is evaluated even if it is not due.
        """
        version = self.server.version
        if last and self.evaluation.knows(version):
            return
        self._rows[version] = {**self._rows.get(version, {}), **self._counts(train)}
        model = self.server.parameters() if self._looked_at else None
        self.evaluation.add(version, model, last or version % self.settings.evaluate_every == 0)

    def close_round(self) -> bool:
        """End the server's round. If the round is too small for its rule, skip it: its updates do not count.

        Returns:
            Whether the model has stepped.

        Raises:
            RunFailed: ``max_in_a_row`` rounds in a row were too small.
            ConfigError: the round is too small, and the server is durable, so its round cannot be skipped.
        """
        try:
            stepped = self.server.close_round() is not None
        except ConfigError as error:
            try:
                drop_round(self.server)
            except ConfigError:  # a durable server cannot drop a round
                raise error from None
            self._skipped += 1
            self.warn(f"fastagg: this round is skipped, the {self._skipped}. in a row: {error}")
            if self._skipped == self.settings.max_in_a_row:
                raise RunFailed(f"{self._skipped} rounds in a row were skipped; the last: {error}") from error
            return False
        self._skipped = 0
        return stepped

    # -- waiting and evaluation ----------------------------------------------------------------------------------

    def progress(self) -> object:
        """Return a value that changes with each update, failure, refusal, version and evaluation."""
        tally, evaluated = self.tally, len(self._rows)
        return self.server.version, tally.updates, tally.failed, tally.refused.total(), evaluated

    def waits_for(self) -> str:
        """Return what the run waits for, as text for the log. Empty: no reply, evaluation or node is awaited."""
        busy = [*self.book.busy]
        names = sorted(str(holder) for holder in busy if holder is not None)
        replies = f"{len(busy)} replies, of {', '.join(names[:5])}{', ...' * (len(busy) > 5)}" if busy else ""
        versions = ", ".join(map(str, self.evaluation.waiting))
        words = self.lacks, replies, versions and f"the evaluation of version {versions}"
        return "; ".join(filter(None, words))

    def measured(self, step: int, metrics: Metrics, train: Metrics, model: Arrays) -> None:
        """Log and track the metrics of a version or round that the framework has evaluated itself.

        Args:
            step: the number of the version or round.
            metrics: the metrics of the evaluation.
            train: the metrics of the clients' training.
            model: the model after the step, for ``best`` and ``on_version``.
        """
        self._tell(step, {**self._counts(train), **numeric(metrics or {})}, model)
        self._look_at_the_clock()

    def settle(self, wait: bool = False) -> list[VersionMetrics]:
        """Report and return, in order, the versions whose metrics became complete since the last call. ``wait``:
        whether to wait first until all evaluations have ended."""
        rows = []
        for version, model, result, why in self.evaluation.finished(wait):
            metrics = {**self._rows.pop(version), **numeric(result or {})}
            rows.append(VersionMetrics(version, result, metrics))
            self.end(why)
            self._tell(version, metrics, model)
        self._look_at_the_clock()
        return rows

    def end_window(self, clients: int) -> Dispatch | None:
        """If at least ``clients`` replies are in the window, note the means of their metrics. The means are assigned to
        the newest version among the replies' tasks.

        Returns:
            A task of this version. None: there are fewer replies so far.
        """
        if self.window is None or (ended := self.window.end(clients)) is None:
            return None
        task, means = ended
        self.evaluated(task.version, means, task.views if self.settings.best is not None else None)
        return task

    def evaluated(self, version: int, means: Mapping[str, object], model: Arrays = None) -> None:
        """Log and track the mean metrics of clients that evaluated ``version``. ``model``: its model, for ``best``."""
        metrics = {f"clients/{name}": value for name, value in numeric(means).items()}
        for watch in self._watches.values():
            if not metrics and watch.best is None and watch.metric.startswith("clients/"):
                self.say(f"fastagg: clients were to measure {watch.metric}, and report no metrics")
        self.trackers.log(metrics, version)
        self._look(version, metrics, model)

    def end(self, why: str | None) -> None:
        """Note the reason why the run must end. Later reasons and None have no effect."""
        self.over = self.over or why

    def close(self) -> None:
        self.ended.set()
        self.evaluation.close()
        self.trackers.close()

    def summary(self) -> str:
        tally, seconds = self.tally, self.seconds
        if not (tally.updates or tally.refused or tally.failed or self.over):
            return f"version {self.server.version}: no update has come yet"
        rate = tally.updates / seconds if seconds > 0 else 0.0
        mean = tally.delays / tally.updates if tally.updates else 0.0
        lines = [
            f"version {self.server.version} after {tally.updates} updates of {len(tally.by_client)} clients in "
            f"{seconds:.1f} s ({rate:.3g} updates a second)",
            f"delay: {mean:.2f} versions in the mean, {tally.longest} at most",
        ]
        if tally.refused or tally.failed:
            refused = ", ".join(f"{count} {name}" for name, count in tally.refused.most_common())
            lines.append(f"not counted: {tally.failed} failures; refused: {refused or 'none'}")
        for watch in self._watches.values():
            if watch.best is not None:
                lines.append(f"best {watch.metric}: {watch.best:.4g} at version {watch.version}")
            else:
                lines.append(f"nobody measured {watch.metric}")
        if self.over is not None:
            lines.append(f"it ended because {self.over}")
        return "\n".join(dict.fromkeys(lines))

    @property
    def seconds(self) -> float:
        """The seconds that the run has taken, including the time before restarts."""
        return self._before + self._clock() - self._began

    # -- checkpoints ---------------------------------------------------------------------------------------------

    def state_dict(self) -> State:
        kept = {name: watch.state_dict() for name, watch in self._watches.items()}
        return {"tally": self.tally.state_dict(), "seconds": self.seconds, "watches": kept}

    def load_state_dict(self, state: State) -> None:
        if state:
            self.tally, self._before = Tally(**state["tally"]), state["seconds"]
            for name in self._watches.keys() & state["watches"].keys():
                self._watches[name].load_state_dict(state["watches"][name])

    # -- after a version ---------------------------------------------------------------------------------------

    def _tell(self, version: int, metrics: dict[str, float], model: Arrays) -> None:
        shown = ", ".join(f"{name} {value:.4g}" for name, value in metrics.items() if not name.startswith("run/"))
        counts = f"{metrics['run/updates']:.0f} updates, {metrics['run/seconds']:.1f} s"
        self.say(f"fastagg: version {version}: {shown + ', ' if shown else ''}{counts}")
        self.trackers.log(metrics, version)
        self._look(version, metrics, model)
        if self.settings.on_version is not None:
            try:
                self.settings.on_version(version, metrics, model)
            except StopIteration as error:
                self.end(str(error) or f"on_version said so at version {version}")

    def _look(self, version: int, metrics: Mapping[str, float], model: Arrays) -> None:
        stop, best = self.settings.stop, self.settings.best
        if best is not None and self._watches["best"].see(version, metrics):
            checkpoint.write(tensors(model), Path(best.file))
        if stop is not None and (stop.target is not None or stop.patience is not None):
            (watch := self._watches["stop"]).see(version, metrics)
            if stop.target is not None and watch.reached(stop.target):
                self.end(f"{stop.metric} reached {stop.target:g}: it is {watch.best:.4g} at version {version}")
            elif stop.patience is not None and watch.since >= stop.patience:
                since = f"{watch.best:.4g} at version {watch.version}"
                self.end(f"{stop.metric} has not been better in {stop.patience} evaluations than {since}")

    def _look_at_the_clock(self) -> None:
        stop = self.settings.stop
        if stop is not None and stop.seconds is not None and self.seconds >= stop.seconds:
            self.end(f"{stop.seconds:g} s are over")

    def _counts(self, train: Metrics) -> dict[str, float]:
        tally = self.tally
        return {
            "run/updates": float(tally.updates), "run/delay": tally.delays / max(1, tally.updates),
            "run/refused": float(tally.refused.total()), "run/failed": float(tally.failed), "run/seconds": self.seconds,
            **{f"train/{name}": value for name, value in numeric(train or {}).items()},
        }  # fmt: skip
