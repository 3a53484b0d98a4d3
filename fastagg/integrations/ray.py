"""Ray actors for large models and for many clients. :class:`Parts` cuts a model into parts, each with a server in an
actor. :class:`Leaves` has actors that train clients and send their updates' sums to a server. Users call both."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import Any

import torch

import fastagg
from fastagg import ops
from fastagg._types import Foreign
from fastagg.integrations import require
from fastagg.model import ModelState, Part
from fastagg.model.parts import PartList
from fastagg.server import admission
from fastagg.server.dispatch import Client
from fastagg.server.server import Outcome
from fastagg.server.together import answers_per_step
from fastagg.storage.pieces import as_tensor

require("ray", "2.40", "ray")

import ray  # noqa: E402
from ray.exceptions import RayActorError  # noqa: E402

_ACTOR = {"num_cpus": 1, "max_restarts": -1, "max_task_retries": -1, "scheduling_strategy": "SPREAD"}
Options = Mapping[str, Any]


class Parts:
    """A model in parts. Each part has a durable :class:`fastagg.Server` in an actor of its own.

    If an actor dies, Ray starts it again. The actor continues from its folder, and Ray repeats the unanswered calls. An
    answer still counts only once: the error of a repeated answer is :class:`fastagg.AlreadyCounted`. Threads may share
    this object. Ray's tasks and actors may get this object, too. They then exchange models with the parts' actors
    directly, not through the driver.

    Args:
        cut: :func:`fastagg.parts` of the model.
        make: ``make(part)`` returns the server of a part, for example ``lambda part: fastagg.FADAS(part, lr=0.01)``.
            The function is sent to the actors.
        folder: the folder in which each part has a folder, such as ``folder/part-2``. All nodes must see ``folder``,
            unless ``options`` keeps each actor on its node. A part's folder may be missing only at the first start of a
            model, when the folders of all parts are missing.
        options: Ray's options of all actors, or a function that returns the options for a part's number. Without
            other options an actor has one CPU and any number of restarts.
        opening: settings of :func:`fastagg.open`, such as ``durability``.

    Raises:
        CheckpointError: some actors find the folder of their part, and others do not. Busy: another program serves a
            part. Errors of ``make`` and :func:`fastagg.open` are raised, too.
    """

    def __init__(
        self, cut: PartList, make: Callable[[Part], fastagg.Server], folder: str | os.PathLike[str], *,
        options: Options | Callable[[int], Options] | None = None, **opening: Any,
    ) -> None:  # fmt: skip
        path = Path(folder).absolute()
        self.cut, self._actors = PartList(cut.layout, (replace(part, arrays=None) for part in cut)), []
        for number, part in enumerate(self.cut):
            own = options(number) if callable(options) else options or {}
            actor: Foreign = ray.remote(_Part).options(**{"max_concurrency": 16, **_ACTOR, **own})
            self._actors.append(actor.remote(part, make, path / f"part-{number}", opening))
        try:
            states = _all(actor.look.remote() for actor in self._actors)
            missing = [number for number, names in enumerate(states) if f"part-{number}" not in names]
            if missing and any(states):
                raise fastagg.CheckpointError(
                    f"{path}: there are folders of parts, and those of {missing} are not where their actors are: start "
                    "these there (options=), or begin in another folder"
                )
            fresh = [None if any(states) else replace(part, arrays=_shared(part.arrays)) for part in cut]
            opened = zip(self._actors, fresh, strict=True)
            _all(actor.run.remote(lambda server: None, start=part) for actor, part in opened)
        except BaseException:
            _end(self._actors)
            raise

    def dispatch(self, client: Client, only: Sequence[int] | None = None) -> dict[int, fastagg.Dispatch]:
        """Open a task of ``client`` for each part, or for the parts in ``only``. Return the tasks by part number. With
        ``durability="arrival"``, the default, the tasks are then on the disk.

        ``parts.cut.join(task.params for task in tasks.values())`` is the model.

        Raises:
            RunFailed: Ray cannot start an actor again. Other errors are those of :meth:`fastagg.Server.dispatch`. After
                an error some parts may have opened a task. If the call is repeated, these parts return the same task.
        """
        numbers = list(range(len(self.cut)) if only is None else only)
        sent = _all(self._actors[number].run.remote(_dispatch, client) for number in numbers)
        tasks = {}
        for number, (version, steps, incarnation, id, model) in zip(numbers, sent, strict=True):
            layout = self.cut[number].layout
            tasks[number] = fastagg.Dispatch(client, version, steps, None, layout, _state(model), incarnation, id)
        return tasks

    def receive(
        self, tasks: Mapping[int, fastagg.Dispatch], update: Any, num_samples: float | None = None
    ) -> dict[int, Outcome]:
        """Take a client's answer to tasks of :meth:`dispatch`.

        Args:
            tasks: the tasks by part number.
            update: a flat update, an update in the form of the model, or a dict of updates by part number. Parts that
                this dict lacks get no answer.
            num_samples: as in :meth:`fastagg.Server.receive`.

        Returns:
            By part number, a copy of the receipt or the error. The error of a part whose actor Ray cannot start again
            is RunFailed.

        Raises:
            ShapeMismatch, DTypeMismatch, NonFiniteUpdate, ConfigError: the update is refused. No part has changed.
        """
        by_part = isinstance(update, dict) and all(isinstance(number, int) for number in update)
        pieces = update if by_part else dict(enumerate(self.cut.split(update)))
        if by_part and (extra_parts := pieces.keys() - tasks.keys()):
            raise fastagg.ConfigError(f"update: the client was not sent the parts {sorted(extra_parts)}")
        answers = {number: (task, pieces[number]) for number, task in tasks.items() if number in pieces}
        for number, (_, piece) in answers.items():
            parsed = (layout := self.cut[number].layout).parse(piece)
            if not ops.inspect(parsed.parameters).finite:
                raise admission.non_finite(layout, parsed)
        calls = {}
        for number, (task, piece) in answers.items():
            said = task.client, task.version, task.id, task.incarnation
            calls[number] = self._actors[number].run.remote(_receive, _shared(piece), said, num_samples)
        return {number: _got(call) for number, call in calls.items()}

    @property
    def versions(self) -> list[int]:
        """The version of every part."""
        return self._each(lambda server: server.version)

    def parameters(self) -> Any:
        """Return the model of the current version of every part, in the form of the model that was cut."""
        models = self._each(lambda server: _shared(list(server.current())))
        pairs = zip((part.layout for part in self.cut), map(_state, models), strict=True)
        return self.cut.join(layout.as_given(layout.views(*model)) for layout, model in pairs)

    def close(self) -> None:
        """Close the servers and end the actors. All answers are then on the disk."""
        try:
            self._each(fastagg.Server.close)
        finally:
            _end(self._actors)

    def _each(self, work: Callable[..., Any], *arguments: Any) -> list[Any]:
        return _all(actor.run.remote(work, *arguments) for actor in self._actors)


class _Part:
    """The actor of a part. Its methods return errors of fastagg as results, because Ray would wrap a raised error."""

    def __init__(
        self, part: Part, make: Callable[[Part], fastagg.Server], folder: Path, opening: Mapping[str, Any]
    ) -> None:
        _take_threads()
        self._part, self._make, self._folder, self._opening = part, make, folder, opening
        self._server: fastagg.Server | None = None
        self._lock = Lock()

    def look(self) -> set[str]:
        """Return the names of the parts' folders that this node sees."""
        return {path.parent.name for path in self._folder.parent.glob("part-*/checkpoint-*")}

    def run(self, work: Callable[..., Any], *arguments: Any, start: Part | None = None) -> Any:
        """Return ``work(server, *arguments)``, or fastagg's error that was raised. The first call opens the server.
        ``start``: the part with the model to start from, if the folder has no state. None: the folder has one."""
        try:
            with self._lock:
                self._server = self._server or self._opened(start)
            return work(self._server, *arguments)
        except fastagg.FastaggError as error:
            return error

    def _opened(self, start: Part | None) -> fastagg.Server:
        if start is None and self._folder.name not in self.look():
            where = ray.util.get_node_ip_address()
            raise fastagg.CheckpointError(f"{self._folder}: none on node {where}; the part's past is elsewhere")
        layout, flat = self._part.layout, torch.zeros(self._part.layout.size)
        blank = replace(self._part, arrays=layout.views(flat, *layout.blank(flat.device)))
        for _ in range(100):  # try for ten seconds: the process of a killed actor may still have the folder open
            with contextlib.suppress(fastagg.Busy):
                return fastagg.open(self._folder, lambda: self._make(start or blank), **self._opening)
            time.sleep(0.1)
        raise fastagg.Busy(f"{self._folder}: another program serves this part")


class Leaves:
    """Actors that are leaves of a server, the root. Each leaf trains its own clients and sends the root the sum of the
    clients' updates.

    If an actor dies, Ray starts it again, and the actor computes its sum again. The root counts the sum once.

    Args:
        server: the root. Its rule must take sums of updates (:meth:`fastagg.Server.receive_partial`).
        clients: the clients of each leaf, by the leaf's id.
        train: ``train(client, task)`` returns an update and its number of samples. The function is sent to the actors.
        options: Ray's options of the actors. Without other options an actor has one CPU and any number of restarts.
    """

    def __init__(
        self, server: fastagg.Server, clients: Mapping[Client, Sequence[Client]],
        train: Callable[[Client, fastagg.Dispatch], tuple[Any, float | None]], **options: Any,
    ) -> None:  # fmt: skip
        self._server, self._working = server, dict[Foreign, tuple[Client, fastagg.Dispatch]]()
        self._counts_clients = answers_per_step(server.direction, server.config()) is not None
        self._resting: dict[Client, int] = {}  # by leaf: the version at which the leaf's last sum counted
        self._stored: tuple[int, Foreign] = -1, None  # the newest version and its model in Ray's store, for all leaves
        settings = {name: getattr(server, name) for name in ("clip_norm", "weighting", "max_samples")}
        actor: Foreign = ray.remote(_Leaf).options(**{**_ACTOR, "max_task_retries": 3, **options})
        whole = Part(server.layout, None, True)
        self._actors = {leaf: actor.remote(whole, settings, [*own], train) for leaf, own in clients.items()}
        ray.get([leaf.__ray_ready__.remote() for leaf in self._actors.values()])  # so that all leaves begin together

    def sums(self) -> Iterator[tuple[Client, Outcome, dict[Client, fastagg.FastaggError]]]:
        """Pass each leaf's sum to the root when the sum arrives. Then send the leaf the newest version. If the rule
        limits how often a client counts in a step, first wait for a new version. The iterator does not end.

        Yields:
            The leaf, the root's receipt or error for the leaf's sum, and the errors of refused updates by client.

        Raises:
            RunFailed: Ray cannot start a leaf again, or the step waits for more answers than there are leaves. Errors
                of ``train`` are raised here, too.
        """
        busy = {leaf for leaf, _ in self._working.values()}
        for leaf in [leaf for leaf in self._actors if leaf not in busy | self._resting.keys()]:
            self._send(leaf)
        while True:
            for leaf in [leaf for leaf, version in self._resting.items() if version != self._server.version]:
                del self._resting[leaf]
                self._send(leaf)
            if not self._working:
                raise fastagg.RunFailed("the clients of all leaves have taken part, and the step waits for more")
            (ready,), _ = ray.wait(list(self._working))
            leaf, task = self._working.pop(ready)
            ((total, *rest), refused) = _all([ready])[0]
            try:
                if total is None:
                    raise fastagg.ConfigError("every update of this leaf was refused")
                partial = fastagg.Partial(as_tensor(total), *rest)
                outcome: Outcome = self._server.receive_partial(
                    leaf, partial, task=task.id, incarnation=task.incarnation
                )
            except fastagg.FastaggError as error:
                outcome = error
                with contextlib.suppress(fastagg.UnknownClient, fastagg.UnknownVersion):
                    self._server.forget(leaf, task.version)
            if self._counts_clients and isinstance(outcome, fastagg.Receipt):
                # The rule limits how often a client counts in a step, so the leaf pauses until the next version.
                self._resting[leaf] = task.version + outcome.delay
            else:
                self._send(leaf)
            yield leaf, outcome, refused

    def _send(self, leaf: Client) -> None:
        task = self._server.dispatch(leaf)
        if task.version != self._stored[0]:
            self._stored = task.version, ray.put(_shared(task.model))
        self._working[self._actors[leaf].work.remote(leaf, *self._stored)] = leaf, task

    def close(self) -> None:
        """End the actors."""
        _end(self._actors.values())


class _Leaf:
    def __init__(self, whole: Part, settings: Options, clients: Sequence[Client], train: Callable[..., Any]) -> None:
        _take_threads()
        self._whole, self._settings, self._clients, self._train = whole, settings, clients, train

    def work(self, leaf: Client, version: int, model: Any) -> tuple[Any, dict[Client, fastagg.FastaggError]]:
        task = fastagg.Dispatch(leaf, version, None, None, self._whole.layout, _state(model))
        folded, refused = fastagg.Leaf(self._whole, **self._settings), dict[Client, fastagg.FastaggError]()
        for client in self._clients:
            update, samples = self._train(client, task)
            try:
                folded.fold(update, samples, client=client)
            except fastagg.FastaggError as error:
                refused[client] = error
        return (_shared(folded.take()) if folded.count else [None]), refused


def _take_threads() -> None:
    fastagg.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", 1)))  # Ray sets this variable to the actor's CPUs


def _got(call: Foreign) -> Any:
    try:
        return ray.get(call)
    except RayActorError as error:
        return fastagg.RunFailed(f"an actor is gone for good: {error!s:.300}")


def _all(calls: Iterable[Foreign]) -> list[Any]:
    for outcome in (outcomes := [_got(call) for call in list(calls)]):
        if isinstance(outcome, fastagg.FastaggError):
            raise outcome
    return outcomes


def _end(actors: Iterable[Foreign]) -> None:
    for actor in actors:
        ray.kill(actor)


def _shared(update: Any) -> Any:
    """Return an update with NumPy arrays. Ray's store shares NumPy arrays between processes, and copies tensors."""
    if isinstance(update, Mapping):
        return {name: _shared(array) for name, array in update.items()}
    if isinstance(update, list | tuple):
        return [_shared(array) for array in update]
    if not isinstance(update, torch.Tensor):
        return update
    # NumPy has no bf16, so a bf16 tensor stays a tensor. It is copied, because Ray sends a view with its whole storage.
    update = update.detach().cpu().resolve_neg()
    return update.clone() if update.dtype is torch.bfloat16 else update.numpy()


def _state(model: Sequence[Any]) -> ModelState:
    flat, buffers, counters = model
    return ModelState(as_tensor(flat), as_tensor(buffers), [as_tensor(counter) for counter in counters])


def _dispatch(server: fastagg.Server, client: Client) -> tuple[Any, ...]:
    task = server.dispatch(client)
    if server.durability == "arrival":
        server.flush()  # if the actor died before the task is on the disk, the answer would be refused
    return task.version, task.local_steps, task.incarnation, task.id, _shared(task.model)


def _receive(server: fastagg.Server, update: Any, said: tuple[Any, ...], num_samples: float | None) -> fastagg.Receipt:
    client, version, id, incarnation = said
    return server.receive(client, update, version, num_samples, incarnation=incarnation, task=id)
