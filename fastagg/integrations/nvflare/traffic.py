"""Connects a server to FLARE's messages. All FLARE adapters use this module, and a user's own controller may.

Methods of :class:`Traffic` may be called from any thread. A reply counts once, or is refused and changes nothing.
"""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from nvflare.apis.fl_constant import FLMetaKey, WorkspaceConstants
from nvflare.apis.fl_context import FLContext
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.private.fed.simulator.simulator_const import SimulatorConstants

import fastagg
from fastagg._types import Arrays, Plain
from fastagg.errors import DTypeMismatch, FastaggError, RunFailed, ShapeMismatch, UnknownVersion
from fastagg.integrations import number_of, replies
from fastagg.integrations.evaluation import Metrics, Window
from fastagg.integrations.run import AdapterRun, App
from fastagg.integrations.session import Book, OpenTask, Session
from fastagg.model import Layout
from fastagg.server.answers import Answer
from fastagg.server.dispatch import Dispatch, Receipt
from fastagg.server.server import Outcome
from fastagg.storage import memory
from fastagg.storage.pieces import as_tensor

PREFIX = "fastagg_"  # the start of keys in a reply's meta, such as fastagg_kind ("gradient" for ACE, ACED, ASGD)
EXTRA = "fastagg_extra"  # a key in the meta of tasks and replies: the further arrays of a user's own rule, by name
LOCAL_STEPS = "fastagg_local_steps"  # a key in the meta of tasks, if the rule decides the local steps (AsyncFedED)


def _app(context: FLContext | None) -> App:
    """Return the job's name and a folder. The next job with the same name gets the same folder. The folder is in the
    server's workspace. For FLARE's simulator the folder is beside the workspace, because the simulator deletes its
    workspace at the start. Without a workspace, the name and the folder are empty."""
    engine: Any = None if context is None else context.get_engine()
    workspace = engine.get_workspace() if hasattr(engine, "get_workspace") else None
    if context is None or workspace is None:
        return App("FLARE job", "", Path())
    job, root = context.get_job_id(), Path(workspace.get_root_dir()).absolute()
    meta = Path(workspace.get_run_dir(job), WorkspaceConstants.JOB_META_FILE)
    name = str(json.loads(meta.read_text()).get("name", job)) if meta.is_file() else job
    if job == SimulatorConstants.JOB_NAME:
        return App("FLARE job", name, root.parent.with_name(f"{root.parent.name}.fastagg"))
    return App("FLARE job", name, root / "fastagg" / name)


class Traffic:
    """A fastagg server that sends and receives FLModels.

    Args:
        run: the run's rule, settings and files.
        clients: names of all clients, needed by rules that keep an update of each client (ACE, ACED, CA2FL).
        weight_key: the key of a reply's weight in its ``meta``, for ``weighting="samples"``.
        evaluate: ``evaluate(version, model)`` returns metrics of a version on the server. None: no evaluation.
        versions: the run ends with this version. None: the caller ends the run.
        lean: whether each reply is checked in a first pass and then added to the sum in place. This saves the memory of
            a second sum, but reads each reply twice.

    Attributes:
        held: replies that were checked, but not yet added.
    """

    def __init__(
        self, run: AdapterRun, clients: Sequence[str] | None = None,
        weight_key: str = FLMetaKey.NUM_STEPS_CURRENT_ROUND, evaluate: Callable[[int, Arrays], Metrics] | None = None,
        versions: int | None = None, lean: bool = False,
    ) -> None:  # fmt: skip
        self.run, self.clients, self.weight_key, self.versions, self.lean = run, clients, weight_key, versions, lean
        self._evaluate = evaluate
        self.server: fastagg.Server
        self.session: Session
        self.book: Book[tuple[str, int], str]  # tasks by client and round
        self.held: list[tuple[OpenTask[str], Answer, Metrics]] = []
        self._logged: set[tuple[str, str]] = set()  # pairs of a client and a message that the log already has
        self._lock = threading.RLock()

    def start(self, params: dict[str, Arrays], context: FLContext | None = None) -> bool:
        """Make the server of the first global model, and load a checkpoint. Only the first call has an effect.

        Returns:
            Whether this call loaded a checkpoint. The server's model is then the checkpoint's, not ``params``.

        Raises:
            FastaggError: a setting, the model or the checkpoint is refused.
        """
        with self._lock:
            if hasattr(self, "server"):
                return False
            self.run.place(_app(context))
            resumes = self.run.file is not None and self.run.file.exists()
            self.run.begin(params, self._evaluate, ("clients",))
            # Memory for the sum so far and for the next sum. With `lean`, the sum changes in place.
            memory.reserve(self.run.server.layout.size, 1 if self.lean else 2)
            self.session = session = self.run.session
            self.book = session.book = Book(self.run.server)
            session.window, self.first, self.server = Window(), self.run.server.version, self.run.server
            self.run.is_finished("versions", self.versions, self.first)
            session.stepped()
            return resumes

    def send(self, client: str, number: int | None = None, timeout: float = math.inf) -> FLModel:
        """Open a task of ``client`` and return its message. ``number``: FLARE's round. None: the server's version."""
        with self._lock:
            task = self.server.dispatch(number_of(self.server, client, self.clients, "clients"))
            number = task.version if number is None else number
            for open_task in self.book:
                if open_task.task.flat is task.flat and open_task.task.incarnation == task.incarnation:
                    task.share(open_task.task)
                    break
            self.book.put((client, number), client, task, timeout)
        rounds = {"current_round": number}
        if self.versions is not None:
            rounds |= {"start_round": self.first, "total_rounds": self.versions}
        meta: Plain = {} if task.local_steps is None else {LOCAL_STEPS: task.local_steps}
        if task.extra:
            meta[EXTRA] = {name: array.cpu().numpy() for name, array in task.extra.items()}
        return FLModel(ParamsType.FULL, dict(task.views), meta=meta, **rounds)

    def take(self, client: str, reply: FLModel) -> Outcome:
        """Add a reply, and the held replies. Return the reply's receipt, or the error of a refused reply. A refused
        reply changes nothing, and the log has the error.

        Raises:
            RunFailed: too many replies were refused.
        """
        with self._lock:
            return self.hold(client, reply) or self.add()[-1][3]

    def hold(self, client: str, reply: FLModel) -> FastaggError | None:
        """Check a reply, except for NaN and infinity, and keep the reply in :attr:`held` for :meth:`add`.

        Returns:
            The error of a refused reply. None: the reply is kept.

        Raises:
            RunFailed: too many replies were refused.
        """
        number = -1 if reply.current_round is None else reply.current_round
        with self._lock:
            task = self.book.pop((client, number))
            try:
                if task is None:
                    owed = sorted(number for _, number in self.book.keys_of(client))
                    raise UnknownVersion(f"a reply to task {reply.current_round} came, but it owes {owed or 'none'}")
                answer = self._read(client, task.task, reply)
                self.server.check(answer)
            except FastaggError as error:
                return self.session.refuse(client, task, error)
            self.held.append((task, answer, reply.metrics))
            return None

    def add(self) -> list[tuple[str, Answer, Metrics, Outcome]]:
        """Add the replies in :attr:`held` in one pass. A refused reply changes nothing, and the log has the error.

        Returns:
            For each reply: its client, its answer, its metrics, and its receipt or error.

        Raises:
            RunFailed: too many replies were refused.
        """
        with self._lock:
            held, self.held = self.held, []
            try:
                outcomes = self.session.take(held)
            except RunFailed:
                raise
            except BaseException:  # the next call adds the replies again, and refuses those that have counted
                self.held = held
                raise
            if any(isinstance(outcome, Receipt) and outcome.applied for outcome in outcomes):
                self.session.stepped()
            results = zip(held, outcomes, strict=True)
            return [(task.holder, answer, metrics, outcome) for (task, answer, metrics), outcome in results]

    def is_done(self) -> bool:
        """Whether later replies no longer count."""
        return self.session.over is not None or (self.versions is not None and self.server.version >= self.versions)

    def is_over(self, clients: Iterable[str]) -> bool:
        """Whether the run has ended. This call also reports evaluations that have ended and saves a due checkpoint.

        Args:
            clients: the clients that are connected.

        Raises:
            RunFailed: the run cannot continue.
        """
        with self._lock:
            self.session.settle()
            if self.run.is_due:
                self.run.save()
            if not self.is_done():
                self.session.failures.check(present := list(clients))
                self.session.lacks = "" if present else "clients: none is there"
            return self.is_done()

    def end(self) -> None:
        """End the run, and save its state. Open tasks stay in the book, but answers to them do not count any more."""
        with self._lock:
            for client, number in self.book.keys_of():
                self.run.log(f"fastagg: client {client}: task {number} was still out; its answer will not count")
            for task in self.book:
                self.book.forget(task.task)
            self.session.stepped(last=True)
            self.session.settle(wait=True)
            self.run.save()
            self.run.log(f"fastagg: {self.session.summary()}")
            self.session.close()

    def forget(self, client: str | None = None) -> int:
        """End the open tasks of ``client``, or of all clients, and log them. Their answers do not count any more.
        Return the number of ended tasks."""
        with self._lock:
            keys = self.book.keys_of(client)
            self.book.end(keys)
            for name, number in keys:
                self.run.warn(f"fastagg: client {name}: task {number} was not answered; it is dropped")
            return len(keys)

    def model(self) -> dict[str, Arrays]:
        """Return the current model. Later steps do not change its arrays."""
        return dict(self.server.parameters())

    def _read(self, client: str, task: Dispatch, reply: FLModel) -> Answer:
        is_model = bool(reply.params_type == ParamsType.FULL)
        kind, arrays = "model" if is_model else "difference", reply.params
        if reply.meta.get(f"{PREFIX}kind", kind) == kind:  # otherwise the reply is of another kind, such as a gradient
            arrays, missing = _completed(arrays, task.views, is_model, self.server.layout)
            if missing:
                what = f"{len(missing)} arrays are not in its replies ({missing[0]!r})"
                self._once(client, f"{what}: they count as they were")
        return replies.answer(
            self.server, task, arrays, reply.meta, prefix=PREFIX, kind=kind, samples=self._weight(client, reply),
            extra=reply.meta.get(EXTRA),
        )._replace(still=self.lean)  # fmt: skip

    def _weight(self, client: str, reply: FLModel) -> float | None:
        """Return the weight of a reply. If the server weighs by samples, a missing weight is 1, as in FLARE's FedAvg.
        Otherwise a missing weight is None."""
        weight = reply.meta.get(self.weight_key)
        if weight is None and self.server.weighting == "samples":
            self._once(client, f"its replies have no {self.weight_key}: each counts as 1")
            return 1.0
        return weight

    def _once(self, client: str, message: str) -> None:
        if (client, message) not in self._logged:
            self._logged.add((client, message))
            self.run.log(f"fastagg: client {client}: {message}")


def _completed(
    arrays: object, sent: Mapping[str, Arrays], is_model: bool, layout: Layout
) -> tuple[dict[str, Arrays], list[str]]:
    """Complete a reply, so that the reply has all arrays of the model, in types that the server reads.

    FLARE's ``ExcludeVars`` removes arrays from a reply. A removed array counts as unchanged. FLARE's privacy filters
    turn floats into float64 and counters into floats. Such floats become float32, and such counters get their own type.
    Arrays with unknown names stay in the reply, and the server refuses them.

    Args:
        arrays: the reply's ``params``.
        sent: the model that was sent to this client.
        is_model: True for a trained model, False for a difference from ``sent``.
        layout: the server's layout.

    Returns:
        The complete arrays by name, and the names of the arrays that were missing.
    """
    if not isinstance(arrays, Mapping) or not any(name in arrays for name in sent):
        names = sorted(arrays)[:4] if isinstance(arrays, Mapping) else type(arrays).__name__
        raise ShapeMismatch(f"a reply without any of the model's arrays: {names}")
    types = {entry.name: getattr(torch, entry.dtype) for entry in layout.entries}
    missing = [name for name in sent if name not in arrays]
    complete = {name: _typed(name, _loaded(value), types.get(name)) for name, value in arrays.items()}
    for name in missing:
        complete[name] = sent[name] if is_model else torch.zeros_like(as_tensor(sent[name]))
    return complete, missing


def _loaded(value: Arrays) -> Arrays:
    """Return an array. If FLARE has moved the array to the disk (``enable_tensor_disk_offload``), load it first."""
    load = getattr(value, "materialize", None)
    return load() if callable(load) else value


def _typed(name: str, value: Arrays, own: torch.dtype | None) -> Arrays:
    dtype = getattr(value, "dtype", None)
    if own is None or dtype is None:
        return value
    if own.is_floating_point:
        return as_tensor(value).to(torch.float32) if str(dtype).endswith("float64") else value
    counts = as_tensor(value)
    if not counts.is_floating_point():
        return value
    if not bool(torch.isfinite(counts).all()):
        raise DTypeMismatch(f"update {name!r}: expected whole numbers, got NaN or infinity")
    return counts.round().to(own)
