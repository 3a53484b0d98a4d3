"""The asynchronous server: it sends models, receives updates and steps. A step is one pass over memory."""

from __future__ import annotations

import dataclasses
import os
import threading
import warnings
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fastagg import _checks, _keywords, ops, registry
from fastagg._build import native
from fastagg.errors import CacheError, CheckpointError, ConfigError, FastaggError, OtherLife, UpdateTooLarge
from fastagg.layout import Layout, Parsed, Piece, Taken
from fastagg.layout.nearness import nearer_to_model
from fastagg.parts.directions import Direction, DistillationRecord, Single
from fastagg.parts.names import Buffers, Kind, Validate, Weighting, words
from fastagg.parts.optimizers import SGD, Optimizer
from fastagg.parts.staleness import Constant, Staleness
from fastagg.serving import admission, checkpoint, together
from fastagg.serving.core import Core
from fastagg.serving.dispatch import Client, Dispatch, Receipt
from fastagg.serving.judging import Judging
from fastagg.serving.leaves import Partial, facts_of
from fastagg.serving.statistics import MODES, Statistics
from fastagg.serving.turns import Elsewhere
from fastagg.serving.uploads import HeldUpload, Upload
from fastagg.storage import devices

Answer = tuple[Dispatch, Any, float | None]  # a trained model: receive_model's arguments
Sent = Sequence[Any]  # an update: receive's arguments, (client, update, version, num_samples)
Outcome = Receipt | FastaggError


class Server:
    """A federated-learning server: a direction, an optimizer and a staleness policy.

    :mod:`fastagg.presets` has the papers' algorithms. All methods may be called from many threads.

    Args:
        params: the model to start from: an nn.Module, a state_dict, a list of arrays or one 1-D array. It is copied.
        direction: how updates become a step. By default every update is a step.
        optimizer: the server optimizer. The default is SGD with learning rate 1.
        staleness: how delays change a step. By default they change nothing.
        num_clients: if given, client ids are the integers 0..num_clients-1, and other ids are refused. Otherwise an id
            is a 64-bit integer or text of at most 256 characters.
        clip_norm: an update with a larger Euclidean norm is scaled down to this norm. None: never.
        weighting: ``uniform``, or ``samples`` for means weighted by ``num_samples``.
        buffers: the new BatchNorm statistics: the ``mean`` of the clients in a step, the ``latest`` client's, or
            ``keep`` for no change.
        deterministic: for synchronous rules only. If True, the bits of a round's result do not depend on the order in
            which updates arrive. The server keeps a round's updates, in their own type, until the round is complete.
            Then it adds them in the order of the clients' ids. This takes memory for all updates of a round.
        validate: ``sync``: ``receive`` waits for the check and refuses an update that is not finite. ``deferred``, for
            a CUDA device: ``receive`` does not wait for the device. An update that is not finite then counts as zero,
            and its receipt reports this. On the CPU ``deferred`` is the same as ``sync``.
        seed: the seed of all random numbers of the server.
        origin: for a slice of a larger model, the index of its first element: a multiple of 65,536. A rule on a slice
            then gives the same bits as on the whole model, if the rule needs no norm of the whole update.
        device: where the state is and steps run. The default is the CPU, or the CUDA device of the model.
        lease: seconds after which an unanswered task ends. From then on its answer is refused, and versions that only
            ended tasks hold are freed. A client without open tasks that was sent nothing for this time is forgotten
            (not with ``num_clients``). None: tasks never end. After a restart all leases start again.
        max_delay: versions after which a task ends in the same way. (ACED has another setting of this name.)
        max_open_per_client: the most open tasks of one client. ``dispatch`` raises Busy beyond it.
        max_clients: the most clients that are known at a time. ``dispatch`` to another one raises Busy.
        max_waiting: the most threads that may wait in ``receive`` for other threads. One more raises Busy at once.

    Raises:
        ConfigError, ShapeMismatch, DTypeMismatch, NonFiniteUpdate: a setting or the model is refused.
    """

    @_keywords.checked
    def __init__(
        self,
        params: Any,
        direction: Direction | None = None,
        optimizer: Optimizer | None = None,
        staleness: Staleness | None = None,
        *,
        num_clients: int | None = None,
        clip_norm: float | None = None,
        weighting: Weighting = "uniform",
        buffers: Buffers = "mean",
        deterministic: bool = False,
        validate: Validate = "sync",
        seed: int = 0,
        origin: int = 0,
        device: torch.device | str | None = None,
        lease: float | None = None,
        max_delay: int | None = None,
        max_open_per_client: int | None = None,
        max_clients: int | None = None,
        max_waiting: int | None = None,
    ) -> None:
        self.direction = _part("direction", direction, Direction, Single())
        self.optimizer = _part("optimizer", optimizer, Optimizer, SGD())
        self.staleness = _part("staleness", staleness, Staleness, Constant())
        if num_clients is not None:
            _checks.whole("num_clients", num_clients, least=1, most=2**31 - 1)
        if self.direction.clients is not None:
            if num_clients not in (None, self.direction.clients):
                raise ConfigError(f"num_clients: the direction has {self.direction.clients}, got {num_clients}")
            num_clients = self.direction.clients
        if clip_norm is not None:
            _checks.number("clip_norm", clip_norm, above=0)
        _checks.one_of("weighting", weighting, words(Weighting))
        _checks.one_of("buffers", buffers, MODES)
        _checks.one_of("validate", validate, words(Validate))
        _checks.whole("seed", seed, least=0, most=2**64 - 1)
        self._norms: Any = None  # of whole vectors, where this is a slice of one that other processes have the rest of
        if isinstance(params, Piece):
            params, origin, self._norms = params
        if _checks.whole("origin", origin, least=0) % ops.GROUP:
            raise ConfigError(f"origin: expected a multiple of {ops.GROUP}, got {origin}")
        self.num_clients, self.clip_norm, self.weighting = num_clients, clip_norm, weighting
        self.seed, self.origin = seed, origin
        self.deterministic, self.validate = bool(deterministic), validate
        if lease is not None:
            _checks.number("lease", lease, above=0)
        limits = {
            "max_delay": max_delay, "max_open_per_client": max_open_per_client, "max_clients": max_clients,
            "max_waiting": max_waiting,
        }  # fmt: skip
        for name, limit in limits.items():
            if limit is not None:
                _checks.whole(name, limit, least=0 if name == "max_delay" else 1)
        self.lease, self.max_delay, self.max_open_per_client = lease, max_delay, max_open_per_client
        self.max_clients, self.max_waiting = max_clients, max_waiting
        together.check(self)

        self._lock: Any = threading.RLock()
        self._turn: Any = self._lock if max_waiting is None else native.serving.Turn(self._lock, max_waiting)
        _here.add(self)
        self.device = devices.choose(device, params)
        if isinstance(params, Taken):
            self.layout = params.layout
            self._core = self._loaded(params.state, Statistics(buffers, *self.layout.blank(self.device)))
        else:
            self.layout = Layout.of(params)
            model = self.layout.take(params, self.device)
            self._core = Core(self, model.flat, Statistics(buffers, model.buffers, model.counters))
        self._judging = Judging(self)
        self._live: Any = None  # made at the first request for the model
        self._warned = False  # whether it warned that a model came instead of an update

    @property
    def version(self) -> int:
        """``t``, the number of steps applied so far."""
        return int(self._core.ledger.version)

    @property
    def lr(self) -> float:
        """The optimizer's learning rate. Set it to follow a schedule: the new rate applies from the next step on.

        Raises:
            ConfigError: the new value is not a valid learning rate.
        """
        return self.optimizer.lr

    @lr.setter
    def lr(self, rate: float) -> None:
        with self._lock:
            optimizer = dataclasses.replace(self.optimizer, lr=rate)
            self._core.road.set_rate(rate)
            self.optimizer = optimizer

    @property
    def steps(self) -> int:
        """Number of optimizer steps: versions, minus those that were made without a step."""
        return int(self._core.ledger.steps)

    def __repr__(self) -> str:
        parts = f"{self.direction!r}, {self.optimizer!r}, {self.staleness!r}"
        return f"<fastagg.Server of {self.layout.size:,} parameters at version {self.version}: {parts}>"

    def __deepcopy__(self, memo: dict[int, Any]) -> Server:
        return type(self)(
            Taken(self.layout, self.state_dict()), self.direction, self.optimizer, self.staleness,
            num_clients=self.num_clients, clip_norm=self.clip_norm, weighting=self.weighting,
            buffers=self._core.statistics.mode, deterministic=self.deterministic, validate=self.validate,
            seed=self.seed, origin=self.origin, device=self.device, lease=self.lease, max_delay=self.max_delay,
            max_open_per_client=self.max_open_per_client, max_clients=self.max_clients, max_waiting=self.max_waiting,
        )  # fmt: skip

    def __reduce__(self) -> Any:
        raise TypeError("a server is not pickled: use server.save(path) and fastagg.load(path), or server.state_dict()")

    # -- clients -------------------------------------------------------------------------------------------------

    def dispatch(self, client: Client) -> Dispatch:
        """Send the current model to ``client`` (an int or a str).

        If the client has not answered yet, it gets a second task. At the same version it gets the same task again.

        Raises:
            UnknownClient: the id is outside 0..num_clients-1, or it is neither a 64-bit integer nor a str of at most
                256 characters.
        """
        with self._lock:
            core = self._core
            if core.settles:
                core.policy.settle(core.ledger.identify(client), core.ledger)
            task: Dispatch = core.road.send(client)
            return task

    def hand_on(self, task: Dispatch, client: Client) -> Dispatch:
        """Give an open task to one more client. A relay uses this to serve one task to many clients.

        Raises:
            UnknownClient: the id is refused, or the task's own client is unknown.
            UnknownVersion: the task's own client no longer holds it.
        """
        with self._lock:
            core = self._core
            core.ledger.find(task.client, task.version)
            client, steps = core.road.hand_on(client, task.version)
            return task.for_client(client, steps or None)

    @property
    def update_kind(self) -> Kind:
        """What clients send: ``delta``, which is ``x_i^K - x_s``, or ``gradient``, at the model that they were sent."""
        return self.direction.kind

    def receive(
        self,
        client: Client,
        update: Any,
        version: int | None = None,
        num_samples: float | None = None,
        *,
        kind: Kind | None = None,
        control: Any = None,
        incarnation: int | None = None,
    ) -> Receipt:
        """Take ``client``'s update. The model steps if the algorithm says so.

        A task can be answered once. A refused update changes nothing.

        Args:
            client: the sender.
            update: a delta or a gradient (see :attr:`update_kind`), in the form of ``params`` or as a flat 1-D array;
                from torch, NumPy or DLPack; in fp32, fp16 or bf16. Buffers in it hold the client's values, not
                differences, and may be left out.
            version: the version it was trained from. None: the one last dispatched to this client.
            num_samples: the client's number of samples, needed with ``weighting="samples"``.
            control: for FedAC, the change of the client's control variate, ``c_new - c_i``, flat [d].
            kind: ``delta`` or ``gradient``, if the sender states it. The wrong kind is refused.
            incarnation: the task's ``incarnation``, if the sender knows it. The server then refuses an answer to a
                version that a restart has lost, even if its number is in use again.

        Raises:
            UnknownClient: this client was never sent a model.
            UnknownVersion: the client has no open task of that version, or the task has expired.
            OtherLife: the task's version was lost in a restart.
            Busy: ``max_waiting`` answers already wait.
            ShapeMismatch, DTypeMismatch, NonFiniteUpdate, UpdateTooLarge: the update is refused.
            ConfigError: ``num_samples`` is missing or not positive, or ``kind`` is not this server's.
        """
        if kind is None and control is None:
            with self._turn:
                if incarnation is not None:
                    self._check_life(client, version, incarnation)
                receipt = self._core.road.take(client, update, version, num_samples)
                if receipt is not None:
                    if self._live is not None:
                        self._follow()
                    taken: Receipt = receipt
                    return taken
        parsed = self._parse(update, kind)
        share = admission.share(num_samples, self.weighting)
        with self._turn:
            if incarnation is not None:
                self._check_life(client, version, incarnation)
            return self._received(client, version, parsed, share, control)

    def receiving(
        self,
        client: Client,
        version: int | None = None,
        num_samples: float | None = None,
        *,
        kind: Kind | None = None,
        dtype: torch.dtype | None = None,
        incarnation: int | None = None,
    ) -> Upload:
        """:meth:`receive` an update in chunks: ``with server.receiving(client) as upload: upload.write(chunk)``.

        The update is applied when it is complete and checked. ``upload.receipt`` is available then.

        A server of :func:`fastagg.open` writes the chunks to its folder, and the step reads them there. So memory never
        holds more than one chunk. Any other server collects the chunks in memory.

        Args:
            client, version, num_samples, kind, incarnation: as in :meth:`receive`.
            dtype: the type of the flat update's d numbers: torch's float32 (None), float16 or bfloat16. Bytes are
                little endian.

        Raises:
            ShapeMismatch: the number of bytes is not the model's. Other errors are those of :meth:`receive`. A missing
                task is refused before the first chunk.
        """
        self._refuse_other_kind(kind)
        admission.share(num_samples, self.weighting)
        with self._lock:
            if incarnation is not None:
                self._check_life(client, version, incarnation)
            start, _ = self._core.ledger.find(client, version)
        return HeldUpload(
            self.layout.size,
            dtype,
            lambda update: self.receive(client, update, start, num_samples, incarnation=incarnation),
        )

    def receive_many(self, answers: Sequence[Sent]) -> list[Outcome]:
        """:meth:`receive` several answers, one after the other, in one call. The results have the same bits.

        Args:
            answers: a tuple ``(client, update, version, num_samples)`` for each, as in :meth:`receive`. The last two
                may be left out.

        Returns:
            For each answer its receipt, or the error that refused it.

        Raises:
            ConfigError: an answer is not such a tuple. Nothing has changed.
        """
        answers = list(answers)
        outcomes: list[Outcome] = []
        with self._turn:
            while len(outcomes) < len(answers):
                taken = self._core.road.take_many(answers, len(outcomes))
                if taken is None:
                    raise not_answers(answers)
                outcomes += taken
                if len(outcomes) < len(answers):  # this one needs more than `road`, or is refused
                    outcomes.append(self._one(*answers[len(outcomes)]))
            self._follow()
        return outcomes

    def receive_model(
        self, task: Dispatch, trained: Any, num_samples: float | None = None, *, difference: bool = False
    ) -> Receipt:
        """Take a trained model. The result equals :meth:`receive` of ``task.delta(trained)``, bit for bit.

        FedAvg and similar rules, FedBuff and FADAS add a model in fp32 without writing the difference to memory. The
        same pass checks for NaN and infinity. This needs less memory and half of the traffic. The pass does not measure
        norms, so the receipt's ``update_norm`` is NaN.

        Args:
            task: what the client was sent.
            trained: the model after local training, in the form of ``task.params``.
            num_samples: as in :meth:`receive`.
            difference: True if ``trained`` is already the update (of ``task.delta`` or ``task.from_difference``).

        Raises:
            UnknownClient, UnknownVersion, ShapeMismatch, DTypeMismatch, NonFiniteUpdate, ConfigError: as in
                :meth:`receive`.
        """
        outcome = self.receive_models([(task, trained, num_samples)], differences=difference)[0]
        if isinstance(outcome, FastaggError):
            raise outcome
        return outcome

    def receive_models(self, answers: Sequence[Answer], *, differences: bool = False) -> list[Outcome]:
        """:meth:`receive_model` several answers, one after the other. The results have the same bits.

        There is one pass over memory for each step. So with more answers each one costs less, down to one read of its
        model.

        Args:
            answers: a tuple ``(task, trained, num_samples)`` for each.
            differences: ``difference`` of :meth:`receive_model`, for all answers.

        Returns:
            For each answer its receipt, or the error that refused it.
        """
        found: list[Outcome | None] = [None] * len(answers)
        with self._turn:
            left = list(range(len(answers)))
            while left:
                taken = self._fold([answers[i] for i in left], differences) if self._judging.folds else []
                if not taken:
                    found[left[0]] = self._receive_difference(*answers[left[0]], differences)
                    taken = [True]
                again = []
                for i, outcome in zip(left, taken, strict=False):
                    if outcome is None:  # not finite or too large; this call finds out which
                        found[i] = self._receive_difference(*answers[i], differences)
                    elif outcome is False:
                        again.append(i)
                    elif outcome is not True:
                        found[i] = outcome
                left = again + left[len(taken) :]
        return [outcome for outcome in found if outcome is not None]

    def receive_partial(
        self, client: Client, partial: Partial, version: int | None = None, *, incarnation: int | None = None
    ) -> Receipt:
        """Take the sum of several clients' updates, which a :class:`fastagg.Leaf` folded from one version.

        For rules that add updates up. It counts for as many updates as it is made of; each of them has the delay of the
        leaf's version. The order in which leaves fold, and in which they come, defines the bits of the sum.

        Args:
            client: the leaf; it is dispatched to as a client is.
            partial: :meth:`fastagg.Leaf.take`'s, with the sum in any form of the model.
            version, incarnation: as in :meth:`receive`.

        Raises:
            ConfigError: the rule needs every single update, or the buffer has no room for so many: let leaves take
                when they have at most as many as are missing.
            UnknownClient, UnknownVersion, ShapeMismatch, NonFiniteUpdate and others: as in :meth:`receive`.
        """
        with self._turn:
            facts = facts_of(partial.updates, partial.weight, self)
            if incarnation is not None:
                self._check_life(client, version, incarnation)
            return self._received(client, version, self.layout.parse(partial.total), 1.0, None, facts)

    def close_round(self) -> float | None:
        """Step now along the mean of the updates that have arrived since the last step.

        Use it to end a synchronous round in which some clients failed. Later answers of these clients are refused,
        because their version is old. Their tasks stay open until they answer or are forgotten. The call also steps
        with a half-full buffer (FedBuff, FADAS).

        Returns:
            The learning rate of the step. None if there was no step: no update had arrived, the rule has no buffer, or
            it does more than add at every arrival (FedAC, FedEcho).
        """
        with self._lock:
            if not self.direction.buffered or self._core.state.asks:
                return None
            found = self._core.close_round()
            self._follow()
            return None if found is None else found[3]

    def forget(self, client: Client, version: int | None = None) -> None:
        """End the open tasks of a client that will not answer, and free versions that only this client held.

        Args:
            client: the client's id.
            version: end only the task of this version. None: end all tasks; the client is then unknown.

        Raises:
            UnknownClient: the client was never sent a model.
            UnknownVersion: the client has no open task of that version.
        """
        with self._lock:
            self._core.road.forget(client, version)

    def expire(self, before: int | None = None) -> int:
        """End all tasks whose lease is over or whose version is too old. Each ``dispatch`` also ends a few of them.

        Args:
            before: also end all tasks of versions below this one.

        Returns:
            The number of ended tasks. Their answers are refused from now on.
        """
        with self._lock:
            if before is not None:
                _checks.whole("before", before, least=0)
            return int(self._core.road.expire(before))

    @property
    def incarnation(self) -> int:
        """A random 63-bit number of this life of the server. A new life begins when a state is loaded. Versions made
        after that state was saved are then lost, and their numbers are used again."""
        return int(self._core.road.lives[-1][1])

    def _in_child(self) -> None:
        """This process is not the server's: a fork of it."""
        self._lock = self._turn = Elsewhere()

    # -- the way of an update ------------------------------------------------------------------------------------

    def _check_life(self, client: Client, version: int | None, incarnation: int) -> None:
        core = self._core
        start, _ = core.ledger.find(client, version)
        if core.road.life_of(start) != incarnation:
            raise OtherLife(
                f"client {client!r}: its version {start} is of another life of this server: a restart has lost it, and "
                "the number was given again"
            )

    def _parse(self, update: Any, kind: Any) -> Parsed:
        if type(update) is Tensor and kind is None:
            return self.layout.parse(update)
        self._refuse_other_kind(kind or getattr(update, "kind", None))
        parsed = self.layout.parse(update)
        if not self._warned and isinstance(update, (Mapping, list, tuple, torch.nn.Module)):
            self._warn_of_a_model(parsed)
        return parsed

    def _warn_of_a_model(self, parsed: Parsed) -> None:
        if nearer_to_model(parsed.parameters, self._core.road.flat):
            self._warned = True
            warnings.warn(
                f"receive takes {self.update_kind}s, and this update is nearly the model itself: for a trained model "
                "use receive_model(task, trained), or task.delta(trained)",
                UserWarning,
                stacklevel=4,
            )

    def _received(
        self, client: Client, version: Any, parsed: Parsed, share: float, control: Any, facts: Any = None
    ) -> Receipt:
        """Judge, then run and commit in one native call. ``facts``: what is known of the update already."""
        more, pieces = facts, parsed.parameters
        if self._judging.asks(parsed, control):
            more = self._judging.judge(client, version, parsed, share, control, facts)
            if "receipt" in more:
                return more["receipt"]()
            share, pieces = more.get("share", share), more.get("pieces", pieces)
        receipt: Receipt | None = self._core.road.receive(client, version, pieces.native, share, more)
        if receipt is None:
            raise admission.non_finite(self.layout, parsed)
        self._follow()
        return receipt

    def _one(self, *answer: Any) -> Outcome:
        try:
            return Server.receive(self, *answer)
        except FastaggError as error:
            return error

    def _receive_difference(self, task: Dispatch, trained: Any, num_samples: float | None, is_one: bool) -> Outcome:
        try:
            self._refuse_other_kind("delta")
            given = trained if is_one else task.delta(trained)
            return Server.receive(self, task.client, given, task.version, num_samples, incarnation=task.incarnation)
        except FastaggError as error:
            return error

    def _fold(self, answers: Sequence[Answer], differences: bool) -> list[Any]:
        """Take as many of the first answers as one pass can.

        For each one the result is its receipt. If an answer is not finite, nothing changes: that answer is None and the
        others are False. The list is empty if the first answer cannot be taken this way."""
        rows, parses = [], []
        for task, trained, num_samples in answers[: self._core.room()]:
            try:
                if task.incarnation is not None:
                    self._check_life(task.client, task.version, task.incarnation)
                share = admission.share(num_samples, self.weighting)
                parsed = self.layout.parse(trained, "update" if differences else "trained model")
                admission.refuse_non_finite_buffers(parsed)
            except FastaggError:
                break
            base = 0 if differences else task.flat.data_ptr()
            rows.append((task.client, task.version, parsed.parameters.native, share, base))
            parses.append(parsed)
        if not rows:
            return []
        try:
            found: list[Any] = self._core.road.fold(rows, self._core.statistics_of(parses))
        except UpdateTooLarge:  # at least one is; taking each alone tells which
            return []
        self._follow()
        return found

    def _follow(self) -> None:
        if self._live is not None:
            self._live.follow(self._core.road.flat, self._core.statistics)

    def _refuse_other_kind(self, kind: Any) -> None:
        if isinstance(kind, str) and kind != self.update_kind:
            raise ConfigError(f"this server takes updates of kind {self.update_kind!r}, got one of kind {kind!r}")

    # -- the model -----------------------------------------------------------------------------------------------

    def _model(self) -> Any:
        from fastagg.serving.live import LiveModel

        if self._live is None:
            self._live = LiveModel(self.layout, self._core.road.flat, self._core.statistics)
        self._follow()
        return self._live

    @property
    def distillation(self) -> DistillationRecord | None:
        """The cost and results of FedEcho's distillation so far. None for other algorithms."""
        return getattr(self._core.state, "record", None)

    @property
    def control(self) -> Tensor | None:
        """FedAC's control variate C, [d]; None for other algorithms. Do not write to it."""
        return getattr(self._core.state, "control", None)

    @property
    def flat(self) -> Tensor:
        """The model's trainable parameters as one fp32 vector [d]. ``receive`` changes it. Do not write to it."""
        with self._lock:
            return self._model().flat

    def snapshot(self) -> Any:
        """The current model in the form of ``params``. It is not copied and never changes. Do not write to it."""
        with self._lock:
            core = self._core
            core.road.sent = True
            held = core.statistics
            return self.layout.views(core.road.flat, held.values, list(held.counters))

    def parameters(self) -> Any:
        """The model in the form of ``params``, as views that always show the current model.

        The result is a dict (for ``load_state_dict``) for a module or a state_dict, a list of arrays, or the flat
        tensor. Arrays whose dtype is not fp32 are copies.
        """
        with self._lock:
            return self._model().views(self._core.statistics)

    def memory(self) -> dict[str, int]:
        """Bytes of the server's state, by part.

        The parts are ``model``, ``moments``, ``direction`` (buffers and caches; FedEcho's ``logits`` and
        ``distillation`` are separate), ``versions`` (kept for open tasks, or their sketches), ``clients`` (the ledger
        of tasks), ``buffers`` (running statistics), and ``total``."""
        with self._lock:
            parts = self._core.memory()
        return {**parts, "total": sum(parts.values())}

    def tiers(self) -> dict[str, int]:
        """What happened to the rows of ``cache=fastagg.Tiered(...)`` since they were opened; empty without them.

        Of answers whose clients had a row: ``ahead`` (the row was in memory), ``late`` (it was on its way) and ``cold``
        (nobody had asked for it, or memory had no room). ``lost`` rows were damaged and given up. ``read`` and
        ``written`` are bytes; ``frames`` is how many rows fit into memory; ``on_disk`` are the file's bytes. On a CUDA
        device ``there`` rows of ``ahead`` were on the device already, which has room for ``device_frames``."""
        with self._lock:
            return self._core.state.tiers()

    # -- checkpoints ---------------------------------------------------------------------------------------------

    def config(self) -> dict[str, Any]:
        """All settings as plain data."""
        settings = {
            **{key: registry.describe(getattr(self, key)) for key in ("direction", "optimizer", "staleness")},
            "num_clients": self.num_clients, "clip_norm": self.clip_norm, "weighting": self.weighting,
            "buffers": self._core.statistics.mode, "deterministic": self.deterministic, "validate": self.validate,
            "seed": self.seed, "origin": self.origin, "lease": self.lease, "max_delay": self.max_delay,
            "max_open_per_client": self.max_open_per_client, "max_clients": self.max_clients,
            "max_waiting": self.max_waiting,
        }  # fmt: skip
        return checkpoint.plain(settings)

    def state_dict(self, *, copy: bool = True) -> dict[str, Any]:
        """The whole state as plain data and tensors. A server that loads it continues with the same bits.

        Args:
            copy: True for copies of tensors. False for the server's own tensors, which change with it.
        """
        with self._lock:
            state = {
                "format": checkpoint.FORMAT, "config": self.config(), "layout": self.layout.spec(),
                **self._core.state_dict(),
            }  # fmt: skip
            return checkpoint.cloned(state) if copy else state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from ``state``, saved by a server with the same model, direction and optimizer.

        Learning rates and other settings of this server stay the same.

        Raises:
            CheckpointError: the state belongs to another model or algorithm, or is damaged. Nothing has changed.
        """
        with self._lock:
            checkpoint.check(state, self.config(), self.layout, set(self._core.moments.tensors))
            checkpoint.check_claims(state, state["config"], self.layout)
            self._core = self._loaded(state, self._core.statistics)
            self._follow()

    def _loaded(self, state: dict[str, Any], like: Statistics) -> Core:
        if state.get("round") and not self.deterministic:
            raise CheckpointError("the checkpoint holds updates of a deterministic round; this server has none")
        try:
            fresh = Core.loaded(self, state, like)
        except (CheckpointError, CacheError):
            raise
        except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError, RuntimeError) as error:
            raise CheckpointError(f"the checkpoint is damaged: {type(error).__name__}: {error}") from error
        if not fresh.finite():
            raise CheckpointError("the checkpoint holds NaN or infinity")
        fresh.road.sent = True
        return fresh

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a checkpoint. If it fails, the old file stays complete.

        Raises:
            CheckpointError: the file could not be written. An existing file has not changed.
        """
        with self._lock:
            state = self.state_dict(copy=False)
            checkpoint.write(state, Path(path))
            self._core.state.saved(state["direction"])


def not_answers(answers: list[Any]) -> ConfigError:
    """Return the error for what is no list of answers (:meth:`Server.receive_many`)."""
    bad = next((one for one in answers if not isinstance(one, (tuple, list)) or not 2 <= len(one) <= 4), answers)
    return ConfigError(f"receive_many: expected (client, update, version, num_samples), got {bad!r:.100}")


_here: weakref.WeakSet[Server] = weakref.WeakSet()  # servers of this process


def _forked() -> None:
    for server in list(_here):
        server._in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


def _part(name: str, given: Any, kind: type, default: Any) -> Any:
    if given is not None and not isinstance(given, kind):
        raise ConfigError(f"{name}: expected a {kind.__name__} (see the parts in fastagg), got {given!r}")
    return default if given is None else given
