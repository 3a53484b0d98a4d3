"""The server, :class:`Server`. It sends models, receives updates and makes steps. This module checks and converts the
arguments. The compiled engine (csrc/engine) keeps the state and makes the steps."""

from __future__ import annotations

import dataclasses
import logging
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, Unpack

import torch
from torch import Tensor

from fastagg import _checks, _keywords, registry
from fastagg._build import native
from fastagg._types import Native, State
from fastagg.errors import ConfigError, FastaggError, NonFiniteUpdate, TooSoon
from fastagg.model import Layout, ModelState, ParsedUpdate, Part, SavedModel
from fastagg.rules.directions import Direction, DistillationRecord, Single
from fastagg.rules.names import Buffers, ByName, Kind, ModelDtype, Weighting
from fastagg.rules.optimizers import SGD, Optimizer
from fastagg.rules.privacy import NoiseKey
from fastagg.rules.staleness import Constant, Staleness
from fastagg.server import admission, checkpoint, engine, together
from fastagg.server.admission import Admission
from fastagg.server.answers import Answer
from fastagg.server.dispatch import Client, Dispatch, Download, Pace, Partial, Receipt, Samples, check_task
from fastagg.server.engine import ServerParts
from fastagg.server.settings import ServerSettings, complete, declare
from fastagg.server.statistics import Statistics
from fastagg.server.uploads import HeldUpload, Refusals, Refusing, Upload
from fastagg.storage import devices
from fastagg.storage.pieces import Pieces

Outcome = Receipt | FastaggError
Durability = Literal["none", "step", "arrival"]
_STALLED = 60.0  # seconds of refused clients (TooSoon) after which a warning says that a step waits for other clients
_FORMATS = {name: place for place, name in enumerate(native.encoding.formats)}  # format -> its code in the engine


class ServerLog(Protocol):
    """The interface of :class:`fastagg.durable.log.Log` that a server uses."""

    folder: Path
    durability: Durability
    journal: Native

    def flush(self) -> None: ...
    def checkpoint(self) -> Path: ...
    def whole_state(self) -> State: ...
    def upload(
        self, size: int, dtype: torch.dtype | None, encoded: int | None, task: tuple[Client, int],
        finish: Callable[..., Receipt], refusing: Refusing,
    ) -> Upload: ...  # fmt: skip
    def close(self) -> None: ...


class RefusalWatch(Protocol):
    """The interface of the object that a server tells about refused calls (:class:`.watching.ServerWatch`)."""

    def refused(self, error: FastaggError) -> None: ...


class Server:
    """A federated-learning server: a direction, an optimizer and a staleness policy.

    :mod:`fastagg.presets` has the papers' algorithms. All methods may be called from many threads. During a call, a
    rule of your own, a finalizer or a signal handler may make another call in the same thread. If that call would
    change the server, it raises :class:`fastagg.Reentered`.

    :func:`fastagg.open` makes a server that keeps a log and its state in a folder. A direction, an optimizer or a
    policy may also be plain data, for example from a file: ``staleness={"name": "Polynomial", "a": 0.5}``.

    Args:
        params: the model to start from: an nn.Module, a state_dict, a list of arrays, one 1-D array, or one of
            :func:`fastagg.parts`. The server copies it.
        direction: the rule that makes a step's direction from updates. By default every update makes a step.
        optimizer: the server optimizer. The default is SGD with learning rate 1.
        staleness: the policy by which an update's delay changes a step. By default delays have no effect.
        settings: the keywords below. Each is also a read-only attribute of the server.

    Keyword Args:
        num_clients: if given, client ids are the integers 0..num_clients-1, and other ids are refused. Otherwise an id
            is a 64-bit integer or text of at most 256 characters.
        clip_norm: an update with a larger Euclidean norm is scaled down to this norm. None: updates are not scaled.
        weighting: the weight of an update in a mean. ``uniform``: 1. ``samples``: the update's ``num_samples``.
            ``tokens``: tokens*tokens/steps, where ``num_samples`` is the pair ``(tokens, steps)`` (Decoupled DiLoCo,
            arXiv 2604.21428).
        max_samples: the largest weight that an update may have. Larger weights count as this one. It has no effect with
            ``weighting="uniform"``. None: there is no limit.
        buffers: how BatchNorm statistics change: ``mean``, ``weighted``, ``latest``, ``keep``, or a mapping by name.
            ``mean``: the mean of the clients in a step. ``weighted``: a mean with the weights of ``weighting``.
            ``latest``: the latest client's. ``keep``: no change. A mapping gives a mode for each pattern of names:
            ``mean``, ``weighted``, ``max``, ``first`` (the first client's) or ``keep``. Buffers that no pattern matches
            are averaged. For a state_dict or a list the mapping also says which arrays are buffers:
            ``{"*.cluster_size": "mean"}``. With ``Robust``, the robust rule combines buffers, except with ``keep``.
        tied: groups of arrays that are one parameter, which is stored and stepped once:
            ``[("embed.weight", "head.weight")]``. Arrays are named, or, in a list, numbered from 0. None: a module's
            own tied parameters, or arrays that share their memory.
        deterministic: whether the result of a round has the same bits in whatever order the round's updates arrive.
            Only for synchronous rules. If True, the server keeps all updates of a round in memory, in their own types,
            until the round is complete. Then it adds the updates in the order of the clients' ids.
        answers_per_step: how many answers of a client count in a step. Beyond this number, ``receive`` and ``dispatch``
            raise TooSoon until the step. ``rule``: 1 for rules that are defined over clients (rounds, robust rules,
            ``at_least``), and any number for other rules. None: any number.
        seed: the seed of the server's random numbers, except the noise of ``privacy``, which has a random key.
        model_dtype: the type of the model and of every version that is kept or sent. ``bf16`` takes 2 bytes a
            parameter. Steps are still computed in fp32, and moments keep their format. The new model is rounded without
            bias, so small steps count on average. Only on the CPU, and only for rules that compare no update with a
            version. None: fp32, 4 bytes a parameter.
        device: the device of the state and of all steps. The default is the CPU, or the CUDA device of the model.
        lease: seconds after which an unanswered task ends. From then on its answer is refused, and versions that
            only ended tasks hold are freed. A client without open tasks that was sent nothing for this time is
            forgotten (not with ``num_clients``). None: tasks never end. After a restart all leases start again.
        max_open_per_client: a client's most open tasks. ``dispatch`` of a further task raises Busy. None: no limit.
        max_clients: the most clients that the server knows. ``dispatch`` to another one raises Busy. None: no limit.
        max_waiting: the most threads that may wait in ``receive``. A further call raises Busy. None: no limit.
        fastest_steps: H, the local steps of the fastest client. A task says how many local steps to take:
            ``max(1, floor(H*v/v_max))`` for a client that takes v steps a second (``dispatch(client, speed=v)``), where
            v_max is the largest reported speed, but at most ten times the median. A client without a speed takes H.
            These are Async Local-SGD's dynamic local updates (arXiv 2401.09135). Checkpoints do not contain speeds.
            None: tasks do not depend on speeds.
        max_delay: a task ends, as with ``lease``, when more versions than this have been made since the task's version.
            None: no limit. ACED has another setting of this name.

    Raises:
        ConfigError, ShapeMismatch, DTypeMismatch, NonFiniteUpdate: a setting or the model is refused.

    Example:
        >>> server = fastagg.Server(torch.zeros(2), fastagg.Buffer(2), fastagg.Yogi(lr=0.01), fastagg.Polynomial(a=0.5))
        >>> server.version, server.optimizer.lr, server.staleness
        (0, 0.01, Polynomial(a=0.5))
    """

    @_keywords.checked
    def __init__(
        self,
        params: Any,
        direction: Direction | None = None,
        optimizer: Optimizer | None = None,
        staleness: Staleness | None = None,
        **settings: Unpack[ServerSettings],
    ) -> None:
        direction = _part("direction", direction, Direction, Single())
        optimizer = _part("optimizer", optimizer, Optimizer, SGD())
        staleness = _part("staleness", staleness, Staleness, Constant())
        values = complete(settings)
        if direction.clients is not None and values["num_clients"] not in (None, direction.clients):
            raise ConfigError(
                f"num_clients: the direction has {direction.clients}, got {values['num_clients']}; leave it out"
            )
        together.check(direction, optimizer, staleness, values)
        is_part = isinstance(params, Part) and not params.is_whole
        if is_part and not (params.by_part and getattr(direction, "privacy", None) is None):
            together.check_part(direction, staleness, values)
        device = devices.choose(values["device"], params.arrays if isinstance(params, Part) else params)
        if values["model_dtype"] is not None:
            together.check_bf16(direction, optimizer, staleness, device)
        taken = params if isinstance(params, SavedModel) else None
        how = None if isinstance(values["buffers"], str) else values["buffers"]
        layout = Layout.of(params, buffers=how, tied=values["tied"]) if taken is None else taken.layout
        together.check_statistics(direction, layout, values)
        key = NoiseKey((taken and taken.key) or os.urandom(32))
        self._parts = ServerParts(direction, optimizer, staleness, values, layout, device, key)
        if taken is not None:
            blank = Statistics.of(values["buffers"], direction, layout, *layout.blank(device))
            self._running = engine.loaded(self._parts, taken.state, blank)
        else:
            model = layout.take(params, device, self._parts.dtype)
            statistics = Statistics.of(values["buffers"], direction, layout, model.buffers, model.counters)
            self._running = engine.start(self._parts, model.flat, statistics)
        self._log: ServerLog | None = None
        self._watch: RefusalWatch | None = None
        self._engine = self._running.engine
        self._stood = -1, 0.0  # the version at the last TooSoon, and the time of the version's first TooSoon
        self._dispatch, self._receive = self._engine.dispatch, self._engine.receive
        self._receive_many = self._engine.receive_many
        self._admission = Admission(self._parts, self._running)
        self._pace = None if values["fastest_steps"] is None else Pace(values["fastest_steps"], values["lease"])

    @property
    def direction(self) -> Direction:
        """The rule that makes a step from updates."""
        return self._parts.direction

    @property
    def optimizer(self) -> Optimizer:
        """The server's optimizer, with its current learning rate."""
        return self._running.optimizer

    @property
    def staleness(self) -> Staleness:
        """The policy by which delays change a step."""
        return self._parts.staleness

    @property
    def device(self) -> torch.device:
        """The device of the state and of all steps."""
        return self._parts.device

    @property
    def layout(self) -> Layout:
        """The mapping between the model and its flat vector."""
        return self._parts.layout

    @property
    def num_clients(self) -> int | None:
        """n, the number of clients, if client ids are 0..n-1. None: ids may be any numbers and texts."""
        return self._parts.num_clients

    @property
    def version(self) -> int:
        """``t``, the number of the current version. A new server has version 0."""
        return int(self._engine.version)

    @property
    def lr(self) -> float:
        """The optimizer's learning rate. A program may set this attribute. A new rate applies from the next step on.

        Raises:
            ConfigError: the new value is not a valid learning rate.
        """
        return self.optimizer.lr

    @lr.setter
    def lr(self, rate: float) -> None:
        optimizer = dataclasses.replace(self.optimizer, lr=rate)  # checks the rate before anything changes
        self._engine.lr = rate
        self._running.extension.optimizer = optimizer

    @property
    def steps(self) -> int:
        """The number of optimizer steps so far: ``version``, minus the versions that were made without a step."""
        return int(self._engine.steps)

    def __repr__(self) -> str:
        parts = f"{self.direction!r}, {self.optimizer!r}, {self.staleness!r}"
        return f"<fastagg.Server of {self.layout.size:,} parameters at version {self.version}: {parts}>"

    if TYPE_CHECKING:  # for type checkers only: at run time, `declare` adds these attributes
        clip_norm: float | None
        buffers: Buffers | dict[str, ByName]
        tied: Sequence[Sequence[str | int]] | None
        deterministic: bool
        seed: int
        model_dtype: ModelDtype | None
        lease: float | None
        max_delay: int | None
        max_open_per_client: int | None
        max_clients: int | None
        max_waiting: int | None
        max_samples: float | None
        fastest_steps: int | None
        weighting: Weighting

    else:  # hidden from type checkers, so that they still find a misspelt attribute

        def __getattr__(self, name: str) -> Any:
            raise _checks.no_attribute(self, name)

    def __deepcopy__(self, memo: dict[int, Any]) -> Server:
        """Return a copy of the server. The copy has no folder."""
        taken = SavedModel(self._parts.layout, self.state_dict(), self._parts.key)
        settings: Any = {**self._parts.settings, "device": self.device}
        return Server(taken, self.direction, self.optimizer, self.staleness, **settings)

    def __reduce__(self) -> Any:
        raise TypeError("a server is not pickled: use server.save(path) and fastagg.load(path), or server.state_dict()")

    # -- tasks ---------------------------------------------------------------------------------------------------

    def dispatch(self, client: Client, speed: float | None = None, *, format: Download | None = None) -> Dispatch:
        """Send the current model to ``client`` (an int or a str).

        If the client has an open task of the current version, the client gets this task again. Otherwise it gets a new
        task. In both cases the client's open tasks of older versions stay open.

        Args:
            speed: the client's measured local steps per second, > 0. Only with the setting ``fastest_steps``. None: the
                client's last reported speed.
            format: the format of :attr:`Dispatch.encoded`: ``bf16`` or ``int8``, with 2 or 1.016 bytes a parameter. The
                model is rounded without bias. The random numbers follow from the version and the ``seed``, so all
                clients of a version get the same rounded model. Deltas are differences from the rounded model. None:
                the model is not rounded, and ``encoded`` is None.

        Raises:
            ConfigError: the speed is not a positive number. The format is unknown, the server is on a CUDA device, or
                its rule compares updates with the version that was sent (FedAsync, AsyncFedED, FedAC).
            UpdateTooLarge: a look-ahead (:class:`fastagg.Nesterov`) or a rounded model could leave the range of the
                model's type.
            UnknownClient: the id is outside 0..num_clients-1, or it is neither a 64-bit integer nor a str of at most
                256 characters.

        Example:
            >>> server = fastagg.FedBuff(torch.nn.Linear(3, 2))
            >>> task = server.dispatch("ann")
            >>> task.version, sorted(task.params)
            (0, ['bias', 'weight'])
            >>> server.dispatch("bob", format="bf16").encoded
            <fastagg.Encoded bf16: 8 elements in 576 bytes>
        """
        try:
            if self._pace is None and speed is not None:
                raise ConfigError("speed: this server tells no local steps by it; make it with fastest_steps=")
            speed = None if speed is None else _checks.number("speed", speed, above=0)
            sent = None if format is None else _FORMATS[_checks.fits("format", format, Download)]
            if self._pace is None:
                task: Dispatch = self._dispatch(client, sent, None)
                return task
            client = self._engine.check_client(client)
            said = self._pace.said(client, speed)
            task = self._dispatch(client, sent, self._pace.steps(client, said))
            if speed is not None:
                self._pace.speeds[client] = said  # `Pace.said` has added this key, so this line allocates no memory
            return task
        except FastaggError as error:
            self._refused(error)
            raise

    def hand_on(self, task: Dispatch, client: Client) -> Dispatch:
        """Give the model of an open task to another client, as a new task. A relay uses this to serve many clients.

        Raises:
            UnknownClient: the id is refused.
            AlreadyCounted, UnknownVersion, StaleIncarnation: the task was answered, has ended, or is not this server's.
            Busy, TooSoon: as in :meth:`dispatch`.
        """
        with self._refusing():
            steps = 0
            if self._pace is not None:
                client = self._engine.check_client(client)
                steps = self._pace.steps(client, self._pace.said(client, None))
            handed: Dispatch = self._engine.hand_on(check_task(task), client, steps)
            return handed

    def forget(self, client: Client, version: int | None = None) -> None:
        """End open tasks of a client that will not answer, and free versions that only these tasks held.

        Args:
            client: the client's id.
            version: end only the task of this version. None: end all tasks. The server then forgets the client.

        Raises:
            UnknownClient: the client was never sent a model.
            UnknownVersion: the client has no open task of that version.
        """
        with self._refusing():
            self._engine.forget(client, version)
            if self._pace is not None and version is None:
                self._pace.speeds.pop(client, None)

    def expire(self, before: int | None = None) -> int:
        """End all tasks that ``lease`` or ``max_delay`` ends by now. Each ``dispatch`` also ends a few such tasks.

        Args:
            before: a version. All tasks of versions below it end, too. None: no further tasks end.

        Returns:
            The number of ended tasks. Their answers are refused from now on.

        Example:
            >>> server = fastagg.FedAsync(torch.zeros(2), lease=3600.0)
            >>> tasks = [server.dispatch(client) for client in range(3)]
            >>> server.expire(before=1)  # tasks of versions below 1
            3
        """
        with self._refusing():
            if before is not None:
                _checks.whole("before", before, least=0, most=engine.MOST)
            return int(self._engine.expire(before))

    @property
    def incarnation(self) -> int:
        """A random 63-bit number that identifies this incarnation of the server. Loading a state, or opening a folder,
        begins a new incarnation. Versions that were made after the state was saved are then lost, and new versions get
        the same numbers."""
        return int(self._engine.incarnations[-1][1])

    @property
    def offset(self) -> int | None:
        """The ``offset`` of the last answer that counted with an offset, or None. Checkpoints and the log store the
        offset, so a consumer of a queue that restarts can continue behind it.

        Offsets only grow. An answer whose offset is not above this one is refused (:class:`fastagg.AlreadyCounted`).
        So for a queue that delivers out of order, pass ``task=`` and no offset. Offsets may leave gaps. So a refused
        answer needs no further call: the next answer that counts moves the offset past the refused answer's.

        Example:
            >>> server = fastagg.FedBuff(torch.zeros(2), buffer_size=1)
            >>> task = server.dispatch("ann")
            >>> receipt = server.receive("ann", torch.ones(2), task=task.id, offset=7)
            >>> server.offset
            7
            >>> try:
            ...     server.receive("ann", torch.ones(2), task=task.id)
            ... except fastagg.AlreadyCounted as error:
            ...     error.version
            1
        """
        offset = int(self._engine.offset)
        return None if offset < 0 else offset

    def privacy_spent(self, delta: float) -> float:
        """Return epsilon, an upper bound on the privacy that the steps so far have spent for a client. The extra
        ``fastagg[privacy]`` installs the accountant (dp-accounting, ``get_epsilon_gaussian``).

        The guarantee is (epsilon, ``delta``)-differential privacy. An observer who knows all versions, and the data of
        all other clients, can hardly tell a client's updates from zeros in their place. Epsilon depends only on the
        number of steps and on the limits that ``dispatch`` enforces, not on anybody's data. Steps that a crash has lost
        are not included.

        Args:
            delta: the probability with which the guarantee may fail, in (0, 1).

        Raises:
            ConfigError: the server has no ``privacy``.
            MissingDependency: dp-accounting is not installed.
        """
        if (privacy := getattr(self.direction, "privacy", None)) is None:
            raise ConfigError("privacy_spent: this server has no privacy=fastagg.Gaussian(...)")
        return float(privacy.epsilon(self.steps, delta))

    # -- answers -------------------------------------------------------------------------------------------------

    @property
    def update_kind(self) -> Kind:
        """The kind of the clients' updates. ``delta``: the trained model minus the task's model, ``x_i^K - x_s``.
        ``gradient``: a gradient at the task's model."""
        return self.direction.kind

    def receive(
        self,
        client: Client,
        update: Any,
        version: int | None = None,
        num_samples: Samples | None = None,
        *,
        kind: Kind | None = None,
        control: Any = None,
        extra: Mapping[str, Any] | None = None,
        incarnation: int | None = None,
        task: int | None = None,
        offset: int | None = None,
        still: bool = False,
    ) -> Receipt:
        """Take ``client``'s update, and make a step if the algorithm has enough updates for one.

        A task can be answered once. A refused update changes nothing. If another thread writes to the update's memory
        during the call, only the numbers of this update can change. See also ``still``.

        A server of :func:`fastagg.open` may first wait until the update is on the disk, as its ``durability`` says.

        Args:
            client: the sender.
            update: a delta or a gradient (see :attr:`update_kind`), in the form of ``params`` or as a flat 1-D array.
                The arrays are torch's, NumPy's or DLPack's, in fp32, fp16 or bf16. Buffers are the client's values, not
                differences, and may be left out. An :class:`fastagg.Encoded` is an update, too.
            version: the version that the update was trained from. None: the version last dispatched to this client.
            num_samples: the client's number of samples, needed with ``weighting="samples"``. With ``"tokens"`` it is a
                pair ``(tokens, steps)``, or the weight itself. With these weightings an answer with 0 has no effect on
                the model. In a round such an answer still counts as one of the round's updates. If all answers of a
                round have 0, the model does not change.
            control: for FedAC, the change of the client's control variate, ``c_new - c_i``, flat [d].
            extra: the vectors, by name, that a rule of your own takes besides the update (:class:`fastagg.Direction`).
            kind: ``delta`` or ``gradient``, if the sender states it. The wrong kind is refused.
            incarnation: the task's ``incarnation``, if the sender knows it. The server then refuses an answer to a
                version that a restart has lost, even if a new version has the same number. None: this is not checked.
            task: the task's ``id``. The answer then counts for this task only. A second answer to the task is refused,
                even if the client was sent the same version again in between. None: the task is found by ``version``.
            offset: the answer's place in the queue or log that it is read from, 0 or above. The server stores the
                offset in one record with the update, and :attr:`offset` returns the last offset. None: no offset.
            still: whether no thread writes to the update's memory during the call. If True, the update is read twice,
                and is neither copied nor added to a second sum. With one to four million parameters this can save a
                third of the time. The model stays finite even if a thread does write. False: the update is read once.

        Raises:
            UnknownClient: this client was never sent a model.
            UnknownVersion: the client has no open task of that version, or the task has expired.
            AlreadyCounted: the task has an answer already, or ``offset`` is not above :attr:`offset`.
            StaleIncarnation: the task's version was lost in a restart, or the task's id is not of this server.
            OtherClient: the task belongs to another client.
            Busy: ``max_waiting`` threads already wait.
            ShapeMismatch, DTypeMismatch, NonFiniteUpdate, UpdateTooLarge: the update is refused.
            ConfigError: ``num_samples`` is missing or negative, or ``kind`` is not this server's.
            NotDurable: the disk cannot be written. Either nothing has changed, or the update is in the model and its
                record waits for the disk. In the second case, once a later answer is on the disk, this update is, too.

        Example:
            >>> server = fastagg.FedBuff(torch.zeros(2), buffer_size=1)
            >>> task = server.dispatch("ann")
            >>> server.receive("ann", torch.tensor([1.0, float("nan")]))
            Traceback (most recent call last):
                ...
            fastagg.NonFiniteUpdate: update: NaN or infinity in the flat vector
            >>> server.receive("ann", torch.ones(2), task.version).version  # the refusal has changed nothing
            1
        """
        try:
            if kind is None and control is None and extra is None:
                receipt = self._receive(client, update, version, num_samples, task, offset, incarnation, still)
                if receipt is not None:
                    taken: Receipt = receipt
                    return taken
        except FastaggError as error:
            raise self._named(error, update) from None
        return self._take(Answer(
            client, update, version, num_samples, task, offset, incarnation, kind, control=control, extra=extra,
            still=still,
        ))  # fmt: skip

    def _take(self, answer: Answer) -> Receipt:
        (outcome,) = self._take_all([answer])
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def _take_all(self, answers: Sequence[Answer]) -> list[Outcome]:
        """Take answers in order. On a GPU, convert and take one at a time, so that its memory holds one update."""
        outcomes: list[Outcome] = []  # native code appends each outcome, so an interrupt loses none
        together = len(answers) if self._parts.on_host else 1
        try:
            for begin in range(0, len(answers), together or 1):
                self._receive_many(answers[begin : begin + together], self._admission.read, outcomes)
            for place, answer in enumerate(answers):
                if isinstance(error := outcomes[place], FastaggError):
                    outcomes[place] = self._named(error, answer.update)
            return outcomes
        except BaseException as error:
            while outcomes and outcomes[-1] is None:
                outcomes.pop()
            if isinstance(error, MemoryError) and outcomes and len(outcomes) == len(answers):
                return outcomes  # no outcome is missing: memory was missing only for the error with the outcomes
            error.outcomes = outcomes  # type: ignore[attr-defined]
            raise

    def receiving(
        self,
        client: Client,
        version: int | None = None,
        num_samples: Samples | None = None,
        *,
        kind: Kind | None = None,
        dtype: torch.dtype | None = None,
        encoded: int | None = None,
        incarnation: int | None = None,
        task: int | None = None,
        offset: int | None = None,
    ) -> Upload:
        """Receive an update in chunks: ``with server.receiving(client) as upload: upload.write(chunk)``.

        The update is applied when it is complete and checked. ``upload.receipt`` is available then.

        A server of :func:`fastagg.open` writes the chunks of an update of over 256 KiB to its folder, and reads them
        when all have arrived. Until then one chunk is in memory. Other updates are collected in memory.

        Args:
            client, version, num_samples, kind, incarnation, task, offset: as in :meth:`receive`.
            dtype: the type of the flat update's d numbers: torch's float32, float16 or bfloat16. Bytes are little
                endian. None: float32.
            encoded: the number of bytes of an encoded update (:meth:`fastagg.Encoded.to_bytes`), if the chunks are
                parts of one. None: the chunks are parts of a flat update.

        Raises:
            ShapeMismatch: the number of bytes is wrong.
            EncodingError: the bytes are no encoded update.
            Busy: another upload for the same task is complete, or is being written to.
            FastaggError: as in :meth:`receive`. If there is no such task, this call itself raises the error.

        Example:
            >>> server = fastagg.FedBuff(torch.zeros(4), buffer_size=1)
            >>> task = server.dispatch("ann")
            >>> with server.receiving("ann") as upload:
            ...     for chunk in (bytes(10), bytes(6)):
            ...         written = upload.write(chunk)
            >>> upload.receipt.applied
            True
        """

        def finish(update: Any, blob: Native = None) -> Receipt:
            try:
                pieces = isinstance(update, Pieces)
                parsed = ParsedUpdate(update, None, None) if pieces else self._admission.parse(update, None)
                numbers = self._admission.of(parsed)
                numbers.blob, numbers.is_private = blob, blob is not None
                samples = admission.samples(num_samples, self._parts.settings["weighting"])
                receipt: Receipt = self._receive(client, numbers, version, samples, task, offset, incarnation, True)
                return receipt
            except NonFiniteUpdate as error:
                raise admission.named(error, self.layout, update) from None

        with self._refusing():
            # The task is looked up now, because the client may be sent another task before the last chunk.
            start, task = self._engine.find(client, version, task, offset, incarnation)
            self._admission.refuse_other_kind(kind)
            admission.share(num_samples, self._parts.settings["weighting"])
            if self._log is None:
                return HeldUpload(self.layout.size, dtype, finish, self._refusing, encoded)
            return self._log.upload(self.layout.size, dtype, encoded, (client, start), finish, self._refusing)

    def receive_many(self, answers: Sequence[Answer | Sequence[Any]]) -> list[Outcome]:
        """Receive several answers in one call, one after the other. The results have the same bits as single calls.

        On the CPU, all updates of one step are added in one pass over memory, which takes less time than single calls.

        Args:
            answers: a list. Each item is a :class:`fastagg.Answer`, or a tuple of its first fields, ``(client, update,
                ...)``. ``fastagg.Answer.to(task, trained)`` makes an answer from a trained model.

        Returns:
            For each answer its receipt, or the error that refused it. Any other exception, such as KeyboardInterrupt,
            is raised. The exception's attribute ``outcomes`` lists the outcomes of the earlier answers. If memory runs
            out after an earlier answer has counted, the outcome of the next answer is a MemoryError.

        Raises:
            ConfigError: an answer is neither an Answer nor a tuple. Nothing has changed.

        Example:
            >>> server = fastagg.FedBuff(torch.zeros(2), buffer_size=2)
            >>> tasks = [server.dispatch(client) for client in range(3)]
            >>> outcomes = server.receive_many([(client, torch.ones(2)) for client in (0, 1, 7)])
            >>> [getattr(outcome, "applied", type(outcome).__name__) for outcome in outcomes]
            [False, True, 'UnknownClient']
        """
        answers = list(answers) if hasattr(answers, "__iter__") else [answers]
        with self._refusing():
            for answer in answers:
                if not isinstance(answer, (tuple, list)) or not 2 <= len(answer) <= len(Answer._fields):
                    do = "give a list of fastagg.Answer(client, update, ...) or fastagg.Answer.to(task, trained)"
                    raise ConfigError(_checks.wrong("receive_many", "a list of answers", answer, do))
        return self._take_all([answer if type(answer) is Answer else Answer(*answer) for answer in answers])

    def check(self, answer: Answer) -> None:
        """Check an answer that will be received later. The values of its parameters are checked only by ``receive``.

        Raises:
            ShapeMismatch, DTypeMismatch, NonFiniteUpdate, ConfigError: as in :meth:`receive`. Nothing has changed.
        """
        self._admission.check(answer)

    def receive_model(
        self, task: Dispatch, trained: Any, num_samples: Samples | None = None, *, difference: bool = False,
        offset: int | None = None,
    ) -> Receipt:  # fmt: skip
        """Take a trained model. The model becomes that of :meth:`receive` with ``task.delta(trained)``, bit for bit.

        On the CPU, FedAvg and similar rules, FedBuff and FADAS add a model in fp32 without writing the difference to
        memory. The same pass checks for NaN and infinity. This takes less memory and half of the memory traffic. The
        pass measures no norm, so the receipt's ``update_norm`` is then NaN. ``clip_norm`` and ``privacy`` prevent this.

        Args:
            task: the client's task. Each task has an id, by which the answer counts once.
            trained: the model after local training, in the form of ``task.params``.
            num_samples, offset: as in :meth:`receive`.
            difference: whether ``trained`` is the update itself (the result of ``task.delta`` or
                ``task.from_difference``). False: ``trained`` is the model.

        Raises:
            UnknownClient, UnknownVersion, AlreadyCounted, ShapeMismatch, DTypeMismatch, NonFiniteUpdate, ConfigError:
                as in :meth:`receive`.

        Example:
            >>> server = fastagg.FedAvg(torch.zeros(2), clients_per_round=1)
            >>> task = server.dispatch("ann")
            >>> server.receive_model(task, task.params + 1.0, num_samples=10).applied
            True
        """
        kind = self.update_kind if difference else "model"
        return self._take(Answer.to(task, trained, num_samples, kind=kind, offset=offset))

    def receive_partial(
        self, client: Client, partial: Partial, version: int | None = None, *, incarnation: int | None = None,
        task: int | None = None, offset: int | None = None,
    ) -> Receipt:  # fmt: skip
        """Take a sum of updates from one version, which a :class:`fastagg.Leaf` has added for its clients.

        Only rules that add updates up take sums. Each update of the sum counts, with the delay of the leaf's version. A
        sum with more updates than the buffer has room for is not refused. Either the buffer takes the whole sum, or a
        step is made before (:class:`fastagg.Buffer`, ``overflow=``). If no more answers come, a buffer that is not full
        waits for ``at_least=`` and ``grace=``, or for :meth:`close_round`. The sum's bits depend on the order in which
        leaves add updates, and on the order in which their sums arrive.

        Args:
            client: the leaf's id. The server dispatches to a leaf as to a client.
            partial: the result of :meth:`fastagg.Leaf.take`. Its sum may have any form of the model.
            version, incarnation, task, offset: as in :meth:`receive`.

        Raises:
            ConfigError: the rule needs each single update, or the sum has more than 1,048,576 updates and more than the
                buffer has room for.
            UnknownClient, UnknownVersion, ShapeMismatch, NonFiniteUpdate and others: as in :meth:`receive`.
        """
        return self._take(Answer(client, partial, version, None, task, offset, incarnation, "partial"))

    def close_round(self, *, if_due: bool = False) -> float | None:
        """Make a step now from the updates that have arrived since the last step, by the server's rule.

        Use this to end a synchronous round in which some clients failed. Later answers of these clients are refused,
        because the version of their tasks is old. The tasks stay open until the clients answer or are forgotten. With
        an asynchronous rule (FedBuff, FADAS), the call makes a step from a buffer that is not full.

        Args:
            if_due: whether to step only if ``at_least`` updates have come and ``grace`` seconds have passed since
                (:class:`fastagg.Buffer`). ``dispatch`` and ``receive`` also make a due step. A program that calls
                neither of them while it waits for a new version should call this about once a second.

        Returns:
            The learning rate of the step. None if there was no step: no update had arrived, the step was not due, the
                rule has no buffer, or the rule runs Python code for every update (FedAC, FedEcho).

        Example:
            >>> server = fastagg.FedAvg(torch.zeros(2), clients_per_round=None)
            >>> tasks = [server.dispatch(client) for client in "abc"]
            >>> receipt = server.receive("a", torch.ones(2), num_samples=10)
            >>> server.close_round(), server.version  # b and c did not answer in time
            (1.0, 1)
        """
        with self._refusing():
            rate: float | None = self._engine.close_round(if_due)
            return rate

    def _named(self, error: FastaggError, update: object) -> FastaggError:
        """Report an error to the watch, and return it. A NonFiniteUpdate is returned with the name of the bad array."""
        self._refused(error)
        return admission.named(error, self.layout, update) if isinstance(error, NonFiniteUpdate) else error

    def _refusing(self) -> Refusals:
        return Refusals(self._refused)

    def _refused(self, error: FastaggError) -> None:
        if isinstance(error, TooSoon):
            self._say_what_is_missing()
        if self._watch is not None:
            self._watch.refused(error)

    def _say_what_is_missing(self) -> None:
        """If clients of one version have been refused with TooSoon for a minute, log once that the step waits."""
        version, since = self._stood
        if version != self.version:
            self._stood = self.version, time.monotonic()
        elif time.monotonic() > since + _STALLED:
            self._stood = version, math.inf
            room = getattr(self._running.extension.state.native, "room", None)
            more = "other clients" if room is None else f"{room} more"
            logging.getLogger("fastagg").warning(
                "fastagg: the step after version %d has waited a minute for %s: each client counts once in a step",
                version, more,
            )  # fmt: skip

    # -- the model -----------------------------------------------------------------------------------------------

    @property
    def distillation(self) -> DistillationRecord | None:
        """FedEcho's record of its distillations so far: their cost and results. None for other algorithms."""
        return getattr(self._running.extension.state, "record", None)

    @property
    def control(self) -> Tensor | None:
        """FedAC's control variate C, [d]. Do not write to it. None for other algorithms."""
        return self._running.extension.control

    @property
    def flat(self) -> Tensor:
        """The current version's trainable parameters as one vector [d], in fp32 or ``model_dtype``. Do not write to it.

        The vector is not copied and never changes: later steps write to other memory. Read the attribute again for the
        next version."""
        flat: Tensor = self._engine.flat
        return flat

    def parameters(self) -> Any:
        """Return the current version of the model, in the form of ``params``. Do not write to the arrays.

        The result is a dict (for ``load_state_dict``) for a module or a state_dict, a list of arrays, or the flat
        array. The arrays are torch's, or, if the model came in NumPy's arrays, NumPy's and read-only. All arrays are of
        the same version, even if another thread makes a step. Arrays with the dtype of :attr:`flat` are views of it,
        and never change. Other arrays are copies.

        Example:
            >>> server = fastagg.FedBuff(torch.nn.Linear(3, 2))
            >>> model = torch.nn.Linear(3, 2)
            >>> model.load_state_dict(server.parameters())
            <All keys matched successfully>
        """
        layout = self._parts.layout
        return layout.as_given(layout.views(*self.current()))

    def current(self) -> ModelState:
        """Return the current version as vectors: ``flat``, [d], ``buffers``, fp32, and a list of ``counters``.

        The vectors are of one version, even if another thread makes a step. They never change. Do not write to them."""
        flat, held = self._engine.current()
        return ModelState(flat, held.values, held.counters)

    def memory(self) -> dict[str, int]:
        """Return how many bytes each part of the server's state takes.

        The parts are ``model``, ``moments``, ``direction`` (buffers and caches of updates), ``logits`` (FedEcho only),
        ``versions`` (older versions that the rule keeps for open tasks, or that you still use through a
        :class:`fastagg.Dispatch`, :attr:`flat` or :meth:`parameters`), ``clients`` (the table of tasks), ``buffers``
        (running statistics), ``journal`` (records that wait for the disk), and ``total``.

        Example:
            >>> server = fastagg.ASGD(torch.zeros(1000), lr=0.1)
            >>> best = server.parameters()
            >>> task = server.dispatch("ann")
            >>> receipt = server.receive("ann", torch.ones(1000))
            >>> server.memory()["versions"]  # of best and task
            4000
            >>> del best, task
            >>> server.memory()["versions"]
            0
        """
        with self._engine.reading:
            parts = engine.nbytes(self._running)
        if self._log is not None:
            parts["journal"] = int(self._log.journal.pending)
        return {**parts, "total": sum(parts.values())}

    # -- checkpoints ---------------------------------------------------------------------------------------------

    def config(self) -> dict[str, Any]:
        """Return the direction, the optimizer, the policy and all settings as plain data."""
        return engine.config(self._parts, self._running)

    def state_dict(self, *, copy: bool = True) -> dict[str, Any]:
        """Return the whole state as plain data and tensors. A server that loads the state continues with the same bits.

        Args:
            copy: whether to copy tensors. If False, the result has the server's own tensors, which later steps change.
        """
        with self._engine.reading:
            state = engine.whole(self._parts, self._running)
            return checkpoint.cloned(state) if copy else state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from ``state``, saved by a server with the same model, direction and optimizer.

        Learning rates and other settings of this server stay the same.

        Raises:
            CheckpointError: the state belongs to another model or algorithm, or is damaged. Nothing has changed.
            ConfigError: the server has a folder, which defines its state.
        """
        if self._log is not None:
            do = "a server of a folder goes on from what is there; load the state into another one"
            raise ConfigError(f"{self._log.folder}: {do}")
        with self._engine.locked:
            self._running.adopt(engine.checked(self._parts, self._running, state))

    def _draw_with(self, key: NoiseKey) -> None:
        """From now on, draw the noise of a private rule with ``key``."""
        self._parts = self._parts._replace(key=key)
        self._running.extension.state.native.set_key(key)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a checkpoint to the file ``path``. If the write fails, an existing file stays as it was.

        During the write, a server of :func:`fastagg.open` takes other calls. With other servers, these calls wait.

        Raises:
            CheckpointError: the file could not be written. An existing file has not changed.

        Example:
            >>> server = fastagg.FedBuff(torch.zeros(2))
            >>> server.save("server.pt")
            >>> fastagg.load("server.pt").version
            0
        """
        path = _checks.path("path", path)
        if self._log is not None:
            checkpoint.write(self._log.whole_state(), path)
        else:
            with self._engine.reading:
                checkpoint.write(engine.whole(self._parts, self._running), path)

    # -- a folder ------------------------------------------------------------------------------------------------

    def _attach(self, log: ServerLog, watch: RefusalWatch) -> None:
        """From now on, write all changes of the server to ``log``, and report refused calls to ``watch``."""
        self._log, self._watch, self._admission.logs = log, watch, True
        self._engine.attach(log.journal)

    def _in_log(self, method: str) -> ServerLog:
        if self._log is None:
            raise ConfigError(f"{method}: this server has no folder; fastagg.open(path, make) makes one that has")
        return self._log

    @property
    def folder(self) -> Path:
        """The folder of a server of :func:`fastagg.open`."""
        return self._in_log("folder").folder

    @property
    def durability(self) -> str:
        """Which answers wait for the disk in ``receive``, for a server of :func:`fastagg.open`. ``arrival``: all.
        ``step``: those that make a step. ``none``: no answer."""
        return self._in_log("durability").durability

    def flush(self) -> None:
        """Wait until all changes so far are on the disk. A server without a folder has nothing to wait for.

        Raises:
            NotDurable: the disk cannot be written.
        """
        if self._log is not None:
            self._log.flush()

    def checkpoint(self) -> Path:
        """Write a checkpoint of a server of :func:`fastagg.open` to its folder, and wait until it is written. Other
        threads may call the server in the meantime. The server also writes checkpoints by itself.

        Returns:
            The checkpoint's folder.

        Raises:
            CheckpointError: the checkpoint could not be written. Earlier checkpoints stay.
            NotDurable: the log could not be written.
            ConfigError: the server has no folder: use :meth:`save`.
            Reentered: the caller is a rule of your own, or a signal handler that interrupted a step.
        """
        return self._in_log("checkpoint").checkpoint()

    def close(self) -> None:
        """Write all waiting records and unlock the folder. Afterwards the server can only be read. You may call this
        several times, and in a signal handler. A server without a folder does not change.

        Raises:
            NotDurable: the waiting records could not be written.
            Reentered: the call comes from within a step of the same thread.
        """
        if self._log is not None:
            self._log.close()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _part(name: str, part: Any, kind: type, default: Any) -> Any:
    """Return the server's part ``name``: ``direction``, ``optimizer`` or ``staleness``. ``part``: an object of class
    ``kind``, or plain data such as ``{"name": "Polynomial", "a": 0.5}``. None: return ``default``."""
    known = registry.parts(name)
    if isinstance(part, Mapping) and part.get("name") in known:
        return registry.part(name, part)
    if part is not None and not isinstance(part, kind):
        part = part.get("name", part) if isinstance(part, Mapping) else part
        like = part if isinstance(part, str) else getattr(part, "__name__", type(part).__name__)
        near = _checks.nearest(like, known) or type(default).__name__
        do = f"write {name}=fastagg.{near}(...), or another one of {', '.join(known)}"
        raise ConfigError(_checks.wrong(name, f"a fastagg.{kind.__name__}", part, do))
    return default if part is None else part


declare(Server)
