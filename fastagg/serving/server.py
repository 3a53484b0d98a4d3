"""The asynchronous server: models go out, updates come back, the model steps. One pass over memory per step."""

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
from fastagg.errors import CheckpointError, ConfigError, FastaggError, OtherLife, UpdateTooLarge
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
    """A federated-learning server assembled from a direction, an optimizer and a staleness policy.

    :mod:`fastagg.presets` has the papers' algorithms ready made. All methods may be called from many threads.

    Args:
        params: the model to start from: an nn.Module, a state_dict, a list of arrays or one 1-D array. It is copied.
        direction: how updates become a step; by default each one is a step of its own.
        optimizer: the server optimizer; by default SGD with learning rate 1.
        staleness: what delays change; by default nothing.
        num_clients: if given, client ids are the whole numbers 0..num_clients-1 and others are refused. Else they are
            whole numbers of 64 bits, or text of at most 256 characters.
        clip_norm: scale an update down to this Euclidean norm if it is longer; None for never.
        weighting: ``uniform``, or ``samples``: means are weighted by ``num_samples``.
        buffers: what BatchNorm's statistics become: ``mean`` of the clients in a step, ``latest``, or ``keep``.
        deterministic: for synchronous rules only: a round's result does not depend, to the bit, on the order in which
            its updates arrive. They are held, in the type they came in, until the round is complete, and then
            folded in the order of the clients' ids: memory for a round's updates instead of for one sum.
        validate: ``sync``: an update that is not finite is refused. ``deferred``, for a CUDA device: nobody waits for
            it to say so; such an update counts as zero, and the receipt says so when it is read. On the CPU the answer
            is at hand, and both are ``sync``.
        seed: of every random number the server draws.
        origin: where this model begins, if it is a slice of a larger one: a multiple of 65,536. The same rule on a
            slice then gives the bits of the whole, where it needs no norm of the whole update.
        device: where state lives and steps run; by default the CPU, or the model's own CUDA device.
        lease: seconds after which a task ends that nobody has answered: its answer is refused from then on, and a
            version that only such tasks hold is freed. A client that owes nothing and was sent nothing for as long is
            forgotten (with ``num_clients`` nobody is). None: tasks never end. After a restart leases begin anew.
        max_delay: versions after which a task ends in the same way. (ACED has a setting of its own of this name.)
        max_open_per_client: tasks that one client may owe; ``dispatch`` raises Busy beyond.
        max_clients: clients that may be known at a time; ``dispatch`` of another one raises Busy.
        max_waiting: threads whose answers may wait for others' to be taken; ``receive`` of one more raises Busy at
            once.

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
        self._live: Any = None  # made when somebody asks for the model
        self._warned = False  # that a model came where an update was due

    @property
    def version(self) -> int:
        """``t``, the number of steps applied so far."""
        return int(self._core.ledger.version)

    @property
    def lr(self) -> float:
        """The optimizer's learning rate. Set it to follow a schedule: it holds from the next step on.

        Raises:
            ConfigError: when it is set to what is no learning rate.
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
        """Steps of the optimizer: versions less those that moved on without one."""
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

        Dispatching to a client again before it has answered gives it a second task; at the same version it is the
        same task.

        Raises:
            UnknownClient: the id is outside 0..num_clients-1, or neither a whole number of 64 bits nor a str of at most
                256 characters.
        """
        with self._lock:
            core = self._core
            if core.settles:
                core.policy.settle(core.ledger.identify(client), core.ledger)
            task: Dispatch = core.road.send(client)
            return task

    def hand_on(self, task: Dispatch, client: Client) -> Dispatch:
        """Give a task that went out, and is not answered yet, to one client more: a relay serves it to whoever asks.

        Raises:
            UnknownClient: the id is refused, or the task's own client is not known.
            UnknownVersion: the task's own client does not hold it any more.
        """
        with self._lock:
            core = self._core
            core.ledger.find(task.client, task.version)
            client, steps = core.road.hand_on(client, task.version)
            return task.for_client(client, steps or None)

    @property
    def update_kind(self) -> Kind:
        """What clients send: ``delta``, ``x_i^K - x_s``, or ``gradient``, on the model they were sent."""
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
        """Take ``client``'s update; the model steps if the algorithm says so.

        Each task is answered at most once. An update that is refused changes nothing, to the bit.

        Args:
            client: who sends it.
            update: what :attr:`update_kind` says, in the form of ``params`` or as a flat 1-D array; torch, NumPy or
                DLPack; fp32, fp16 or bf16. Buffers in it are the client's own values, and may be left out.
            version: the version it was trained from; None means the one last dispatched to this client.
            num_samples: the client's number of samples, needed with ``weighting="samples"``.
            control: for FedAC, the change of the client's control variate, ``c_new - c_i``, flat [d].
            kind: ``delta`` or ``gradient``, if the sender says which it is; refused when it is the other one.
            incarnation: the task's own, if the sender says it: then no answer to a version that a restart has lost is
                taken for another version of the same number.

        Raises:
            UnknownClient: this client was never sent a model.
            UnknownVersion: it holds no unanswered task of that version, or the task has expired.
            OtherLife: the task's version was lost in a restart.
            Busy: ``max_waiting`` answers are waiting already.
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
        """:meth:`receive` of an update that comes in chunks: ``with server.receiving(client) as upload:
        upload.write(chunk)``. Nothing is applied before it is whole and checked; ``upload.receipt`` is then there.

        A server of :func:`fastagg.open` writes the chunks to its folder, and the step reads them there: in memory there
        is no more than a chunk. Another one gathers them in memory.

        Args:
            client, version, num_samples, kind, incarnation: as in :meth:`receive`.
            dtype: of the flat update's d numbers, little endian: torch's float32 (None), float16 or bfloat16.

        Raises:
            ShapeMismatch: more or fewer bytes come than the model's. Others: as in :meth:`receive`; a task that is not
            there is refused before the first chunk.
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
        """:meth:`receive` of one answer after the other, to the bit, in one call.

        Args:
            answers: for each ``(client, update, version, num_samples)``, as in :meth:`receive`; the last two may be
                left out.

        Returns:
            For each its receipt, or the error with which it was refused.

        Raises:
            ConfigError: one of them is no such tuple; nothing has changed.
        """
        answers = list(answers)
        outcomes: list[Outcome] = []
        with self._turn:
            while len(outcomes) < len(answers):
                taken = self._core.road.take_many(answers, len(outcomes))
                if taken is None:
                    raise _not_answers(answers)
                outcomes += taken
                if len(outcomes) < len(answers):  # one that needs more than the road, or is refused
                    outcomes.append(self._one(*answers[len(outcomes)]))
            self._follow()
        return outcomes

    def receive_model(
        self, task: Dispatch, trained: Any, num_samples: float | None = None, *, difference: bool = False
    ) -> Receipt:
        """Take a trained model: :meth:`receive` of ``task.delta(trained)``, to the bit.

        Where several updates make a step and only their delays weigh them (FedAvg and its kin, FedBuff, FADAS), a model
        in fp32 is folded in without writing the difference anywhere, and looked at for NaN and infinity on the way:
        less memory, and half of the traffic. The receipt's ``update_norm`` is then NaN: nobody measured it.

        Args:
            task: what the client was sent.
            trained: the model after local training, in the form of ``task.params``.
            num_samples: as in :meth:`receive`.
            difference: ``trained`` is the update already, as ``task.delta`` or ``task.from_difference`` gives it.

        Raises:
            UnknownClient, UnknownVersion, ShapeMismatch, DTypeMismatch, NonFiniteUpdate, ConfigError: as there.
        """
        outcome = self.receive_models([(task, trained, num_samples)], differences=difference)[0]
        if isinstance(outcome, FastaggError):
            raise outcome
        return outcome

    def receive_models(self, answers: Sequence[Answer], *, differences: bool = False) -> list[Outcome]:
        """:meth:`receive_model` of one answer after the other, to the bit, in as few passes over memory as there are
        steps: the more are at hand, the less each costs, down to one read of its model.

        Args:
            answers: for each its arguments, ``(task, trained, num_samples)``.
            differences: of all of them.

        Returns:
            For each its receipt, or the error with which it was refused.
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
                    if outcome is None:  # not finite, or too large: the way it is refused says which
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
            facts = facts_of(partial, self)
            if incarnation is not None:
                self._check_life(client, version, incarnation)
            return self._received(client, version, self.layout.parse(partial.total), 1.0, None, facts)

    def close_round(self) -> float | None:
        """Step now along the mean of the updates that have come since the last step, when no more will.

        Ends a synchronous round of which some clients failed; what they send later is of an old version and refused.
        Their tasks stay open until they answer or are forgotten. A half-full buffer (FedBuff, FADAS) steps too.

        Returns:
            The learning rate of the step; None if there was none: nothing had come, the rule buffers nothing, or it
            does more than a sum at every arrival (FedAC, FedEcho).
        """
        with self._lock:
            if not self.direction.buffered or self._core.state.asks:
                return None
            found = self._core.close_round()
            self._follow()
            return None if found is None else found[3]

    def forget(self, client: Client, version: int | None = None) -> None:
        """Drop the unanswered tasks of a client that will not answer them, and the versions only it held.

        Args:
            client: who.
            version: that task only; None for all of them, and the client is then unknown again.

        Raises:
            UnknownClient: it was never sent a model.
            UnknownVersion: it holds no unanswered task of that version.
        """
        with self._lock:
            self._core.road.forget(client, version)

    def expire(self, before: int | None = None) -> int:
        """End the tasks whose lease is over or whose version is too old. ``dispatch`` does it by itself, a few a call.

        Args:
            before: end all tasks of versions below this one, too.

        Returns:
            How many tasks ended. Their answers are refused from now on.
        """
        with self._lock:
            if before is not None:
                _checks.whole("before", before, least=0)
            return int(self._core.road.expire(before))

    @property
    def incarnation(self) -> int:
        """The number of this life of the server, random, of 63 bits. It changes when a state is loaded: what was made
        after that state is lost, and its version numbers are used again."""
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
        """Judge, then run and commit: one native call. ``facts``: what is known of an update before."""
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
        """As many of the first answers as one pass can take: for each its receipt; None where it is not finite, and
        False for the others then, with nothing changed. None of them, if the first must go another way."""
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
        except UpdateTooLarge:  # one of them: each alone says which
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
        """What FedEcho's distillation cost and did so far; None for the other algorithms."""
        return getattr(self._core.state, "record", None)

    @property
    def control(self) -> Tensor | None:
        """FedAC's control variate C, [d]; None for the other algorithms. Read it, do not write to it."""
        return getattr(self._core.state, "control", None)

    @property
    def flat(self) -> Tensor:
        """The model's trainable parameters as one fp32 vector, [d]. Read it; ``receive`` changes it."""
        with self._lock:
            return self._model().flat

    def snapshot(self) -> Any:
        """The current model in the form it came in, shared and not copied, which does not change: read it only."""
        with self._lock:
            core = self._core
            core.road.sent = True
            held = core.statistics
            return self.layout.views(core.road.flat, held.values, list(held.counters))

    def parameters(self) -> Any:
        """The model in the form it came in, as views that follow it: a dict (usable with ``load_state_dict``) for a
        module or a state_dict, a list of arrays, or the flat tensor. Arrays whose own dtype is not fp32 are copies.
        """
        with self._lock:
            return self._model().views(self._core.statistics)

    def memory(self) -> dict[str, int]:
        """Bytes of server state: ``model``, ``moments``, ``direction`` (buffers, caches; FedEcho's ``logits`` and
        ``distillation`` apart), ``versions`` kept for clients in flight (or what stands for them), ``clients`` (who was
        sent what), ``buffers`` (running statistics), and their ``total``."""
        with self._lock:
            parts = self._core.memory()
        return {**parts, "total": sum(parts.values())}

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
        """Everything a server needs to go on bit for bit: plain data and tensors.

        Args:
            copy: whether tensors are copies. Without, they are the server's own and change with it.
        """
        with self._lock:
            state = {
                "format": checkpoint.FORMAT, "config": self.config(), "layout": self.layout.spec(),
                **self._core.state_dict(),
            }  # fmt: skip
            return checkpoint.cloned(state) if copy else state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from ``state``, of a server with the same model, direction and optimizer.

        Learning rates and other settings stay this server's own.

        Raises:
            CheckpointError: it belongs to another model or algorithm, or is damaged; nothing was changed.
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
        except CheckpointError:
            raise
        except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError, RuntimeError) as error:
            raise CheckpointError(f"the checkpoint is damaged: {type(error).__name__}: {error}") from error
        if not fresh.finite():
            raise CheckpointError("the checkpoint holds NaN or infinity")
        fresh.road.sent = True
        return fresh

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a checkpoint: the file is either the whole old one or the whole new one.

        Raises:
            CheckpointError: it could not be written; a file that was there is as it was.
        """
        with self._lock:
            checkpoint.write(self.state_dict(copy=False), Path(path))


def _not_answers(answers: list[Any]) -> ConfigError:
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
