"""The asynchronous server: models go out, updates come back, the model steps. One pass over memory per step."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fastagg import _checks, ops
from fastagg.errors import (
    CheckpointError,
    ConfigError,
    FastaggError,
)
from fastagg.layout import Layout, ModelState, Parsed, Taken
from fastagg.parts import moments
from fastagg.parts.directions import (
    Arrival,
    Buffer,
    Cohort,
    Direction,
    DirectionState,
    DistillationRecord,
    Mixing,
    Single,
)
from fastagg.parts.directions.buffer import BufferState
from fastagg.parts.optimizers import SGD, Optimizer
from fastagg.parts.staleness import Constant, Facts, Staleness, StalenessState
from fastagg.serving import admission, checkpoint, deferred
from fastagg.serving.dispatch import Client, Dispatch, Receipt
from fastagg.serving.live import LiveModel
from fastagg.serving.model_buffers import MODES, ModelBuffers
from fastagg.serving.rounds import Round
from fastagg.serving.tasks import Tasks
from fastagg.storage import devices, memory, staging
from fastagg.storage.pieces import Pieces

Answer = tuple[Dispatch, Any, float | None]  # a trained model: receive_model's arguments
Outcome = Receipt | FastaggError


class Server:
    """A federated-learning server assembled from a direction, an optimizer and a staleness policy.

    :mod:`fastagg.presets` has the papers' algorithms ready made. All methods may be called from many threads.

    Args:
        params: the model to start from: an nn.Module, a state_dict, a list of arrays or one 1-D array. It is copied.
        direction: how updates become a step; by default each one is a step of its own.
        optimizer: the server optimizer; by default SGD with learning rate 1.
        staleness: what delays change; by default nothing.
        num_clients: if given, client ids are the whole numbers 0..num_clients-1 and others are refused.
        clip_norm: scale an update down to this Euclidean norm if it is longer; None for never.
        weighting: ``uniform``, or ``samples``: means are weighted by ``num_samples``.
        buffers: what BatchNorm's statistics become: ``mean`` of the clients in a step, ``latest``, or ``keep``.
        deterministic: for synchronous rules only: a round's result does not depend, to the bit, on the order in which
            its updates arrive. They are held, in the type they came in, until the round is complete, and then
            folded in the order of the clients' ids: memory for a round's updates instead of for one sum.
        validate: ``sync``: an update that is not finite is refused. ``deferred``, for a CUDA device: nobody waits for
            it to say so; such an update counts as zero, and the receipt says so when it is read
            (:class:`DeferredReceipt`). On the CPU the answer is at hand, and both are ``sync``.
        seed: of every random number the server draws.
        origin: where this model begins, if it is a slice of a larger one: a multiple of 65,536. The same rule on a
            slice then gives the bits of the whole, where it needs no norm of the whole update.
        device: where state lives and steps run; by default the CPU, or the model's own CUDA device.

    Attributes:
        version: ``t``, the number of steps applied so far.

    Raises:
        ConfigError, ShapeMismatch, DTypeMismatch, NonFiniteUpdate: a setting or the model is refused.
    """

    def __init__(
        self,
        params: Any,
        direction: Direction | None = None,
        optimizer: Optimizer | None = None,
        staleness: Staleness | None = None,
        *,
        num_clients: int | None = None,
        clip_norm: float | None = None,
        weighting: str = "uniform",
        buffers: str = "mean",
        deterministic: bool = False,
        validate: str = "sync",
        seed: int = 0,
        origin: int = 0,
        device: torch.device | str | None = None,
    ) -> None:
        self.direction = _part("direction", direction, Direction, Single())
        self.optimizer = _part("optimizer", optimizer, Optimizer, SGD())
        self.staleness = _part("staleness", staleness, Staleness, Constant())
        if num_clients is not None:
            _checks.whole("num_clients", num_clients, least=1)
        if self.direction.clients is not None:
            if num_clients not in (None, self.direction.clients):
                raise ConfigError(f"num_clients: the direction has {self.direction.clients}, got {num_clients}")
            num_clients = self.direction.clients
        if clip_norm is not None:
            _checks.number("clip_norm", clip_norm, above=0)
        _checks.one_of("weighting", weighting, ("uniform", "samples"))
        _checks.one_of("buffers", buffers, MODES)
        _checks.whole("seed", seed, least=0, most=2**64 - 1)
        self.direction.check(self.staleness, clip_norm, weighting)
        self.staleness.check(type(self.direction) is Single and type(self.optimizer) is SGD)
        if _checks.whole("origin", origin, least=0) % ops.GROUP:
            raise ConfigError(f"origin: expected a multiple of {ops.GROUP}, got {origin}")
        self.num_clients, self.clip_norm, self.weighting = num_clients, clip_norm, weighting
        self.seed, self.origin = seed, origin
        if deterministic and type(self.direction) is not Cohort:
            raise ConfigError(
                "deterministic: for synchronous rules; where updates are applied as they come, their order is part of "
                f"the algorithm, got direction {type(self.direction).__name__}"
            )
        self.deterministic = bool(deterministic)
        self._round = Round()  # empty unless deterministic

        _checks.one_of("validate", validate, deferred.MODES)
        if validate == "deferred":
            deferred.refuse(self.direction, self.staleness, self.deterministic)
        self.validate = validate

        self._lock = threading.RLock()
        self.device = devices.choose(device, params)
        self._defers = validate == "deferred" and ops.on_cuda(self.device)
        if isinstance(params, Taken):  # from a checkpoint
            self.layout, model = params.layout, params.layout.take(params.arrays, self.device)
        else:
            self.layout = Layout.of(params)
            model = self.layout.take(params, self.device)
        self._buffers = ModelBuffers(buffers, model.buffers, model.counters)
        self._moments = moments.zeros(
            self.optimizer.kernel, self.optimizer.moment_format, self.layout.size, self.device
        )  # fmt: skip
        self._state = self._start_direction()
        self._policy = self.staleness.start(self.layout.size, seed)
        self._measures = self.direction.measures or self.staleness.measures
        self._tasks = Tasks(num_clients, self.direction.needs_base or self._measures)
        self.version = 0
        self.steps = 0  # of the optimizer: versions less those that moved on without one
        self._flat = model.flat
        self._live = LiveModel(self.layout, model.flat)
        self._sent = False  # whether somebody may hold this version, so that it must not change

    # -- clients -------------------------------------------------------------------------------------------------

    def dispatch(self, client: Client) -> Dispatch:
        """Send the current model to ``client`` (an int or a str).

        Dispatching to a client again before it has answered gives it a second task; at the same version it is the
        same task.

        Raises:
            UnknownClient: the id is outside 0..num_clients-1, or neither an int nor a str.
        """
        client = self._tasks.identify(client)
        with self._lock:
            self._tasks.send(client, self.version, self._flat)
            self._sent = True
            local_steps = self._policy.dispatched(client, self.version)
            model = ModelState(self._flat, self._buffers.values, list(self._buffers.counters))
            return Dispatch(client, self.version, local_steps, self.control, self.layout, model)

    def hand_on(self, task: Dispatch, client: Client) -> Dispatch:
        """Give a task that went out, and is not answered yet, to one client more: a relay serves it to whoever asks.

        Raises:
            UnknownClient: the id is refused, or the task's own client is not known.
            UnknownVersion: the task's own client does not hold it any more.
        """
        client = self._tasks.identify(client)
        with self._lock:
            self._tasks.find(task.client, task.version)
            self._tasks.send(client, task.version, task.flat)
            return replace(task, client=client, local_steps=self._policy.dispatched(client, task.version))

    @property
    def update_kind(self) -> str:
        """What clients send: ``delta``, ``x_i^K - x_s``, or ``gradient``, on the model they were sent."""
        return self.direction.kind

    def receive(
        self,
        client: Client,
        update: Any,
        version: int | None = None,
        num_samples: float | None = None,
        *,
        kind: str | None = None,
        control: Any = None,
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

        Raises:
            UnknownClient: this client was never sent a model.
            UnknownVersion: it holds no unanswered task of that version.
            ShapeMismatch, DTypeMismatch, NonFiniteUpdate: the update is refused.
            ConfigError: ``num_samples`` is missing or not positive, or ``kind`` is not this server's.
        """
        client = self._tasks.identify(client)
        self._refuse_other_kind(kind or getattr(update, "kind", None))
        parsed = self.layout.parse(update)
        share = admission.share(num_samples, self.weighting)
        change = None if control is None else self._control(control)
        pieces = staging.upload(parsed.parameters, self.device)
        if self._defers:
            return self._receive_deferred(client, parsed, pieces, version, share)
        norm, moved, cosine = (0.0, None, 0.0) if self._measures else (self._inspect(parsed, pieces), None, 0.0)
        with self._lock:
            start = self._tasks.find(client, version)
            delay = self.version - start
            base = self._tasks.base(start)
            if self._measures and base is not None:
                norm, moved, cosine = self._measure(parsed, pieces, base)
            gain = 1.0 if self.clip_norm is None or norm <= self.clip_norm else self.clip_norm / norm
            facts = Facts(client, start, delay, pieces, gain, norm, moved)
            weight = self._policy.weigh(facts)
            step_size: float | None = None
            if weight is not None:
                held = base if self.direction.needs_base else None
                statistics = partial(self._statistics, parsed) if self.direction.runs_models else None
                arrival = Arrival(
                    client, pieces, start, self.version, gain, weight, share, held, cosine, change, statistics
                )  # fmt: skip
                step_size = self._wait(arrival, parsed) if self.deterministic else self._take(arrival, parsed)
            applied = self._follow(step_size, facts.version + delay)
            if step_size is not None:
                self._policy.stepped(facts, step_size * self.direction.sign)
            self._answer(client, start)
            return Receipt(client, applied, self.version, delay, step_size, norm, weight or 0.0)

    def _receive_deferred(
        self, client: Client, parsed: Parsed, pieces: Pieces, version: int | None, share: float
    ) -> Receipt:
        """:meth:`receive` where the device decides, and nobody waits for it."""
        with self._lock:
            start = self._tasks.find(client, version)
            before, delay = self.version, self.version - start
            base = self._tasks.base(start)
            x, measured = (self._flat, base) if self._measures else (None, None)
            verdict = ops.judge(pieces, x=x, base=measured, clip_norm=self.clip_norm, **self._policy.rules())
            if parsed.buffers is not None:
                statistics = ops.judge(staging.upload(parsed.buffers, self.device))
                verdict[5:].mul_(statistics[5:])
            facts = Facts(client, start, delay, pieces, 1.0, math.nan, None)
            weight = 1.0 if self._measures else self._policy.weigh(facts) or 0.0
            held = base if self.direction.needs_base else None
            arrival = Arrival(
                client, pieces, start, before, 1.0, weight, share, held, 0.0, None, None, verdict
            )  # fmt: skip
            step_size = self._state.arrive(arrival, self._apply)
            self._buffers.arrive(parsed, verdict)
            self._follow(step_size, before)
            self._policy.judged(client, start, verdict)
            self._answer(client, start)
            scales = isinstance(self.direction, (Single, Mixing))
            return deferred.DeferredReceipt(client, self.version, delay, step_size, weight, scales, verdict)

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
        outcomes: list[Outcome] = []
        with self._lock:
            while len(outcomes) < len(answers):
                waiting = answers[len(outcomes) :]
                if batch := self._foldable(waiting, differences):
                    outcomes += self._fold_models(batch, waiting, differences)
                else:
                    outcomes.append(self._receive_difference(*waiting[0], differences))
        return outcomes

    def _receive_difference(self, task: Dispatch, trained: Any, num_samples: float | None, is_one: bool) -> Outcome:
        try:
            self._refuse_other_kind("delta")
            return self.receive(task.client, trained if is_one else task.delta(trained), task.version, num_samples)
        except FastaggError as error:
            return error

    def _foldable(self, answers: Sequence[Answer], differences: bool) -> list[tuple[Arrival, Parsed]]:
        """As many of the first answers as one pass can fold in: none, if the first must be received as a difference,
        for the rule's sake or because something is wrong with it, which will then be found out.
        """
        state, found = self._state, dict[Client, tuple[Arrival, Parsed]]()
        if self.update_kind != "delta" or type(state) is not BufferState or state.capacity == 1:
            return []
        if self.deterministic or self._defers or self.clip_norm is not None or type(self._policy) is not StalenessState:
            return []
        if not self.layout.all_fp32 or self.device.type != "cpu":
            return []
        for task, trained, num_samples in answers[: state.room]:
            client = task.client
            if client in found:  # whether it owes this one, too, is known when the first is in
                break
            try:
                start = self._tasks.find(client, task.version)
                share = admission.share(num_samples, self.weighting)
                parsed = self.layout.parse(trained, "update" if differences else "trained model")
                admission.refuse_non_finite_buffers(parsed)
                pieces, delay = parsed.parameters, self.version - start
                weight = self._policy.weigh(Facts(client, start, delay, pieces, 1.0, math.nan, None))
                if weight is None:
                    break
                base = None if differences else task.flat
                arrival = Arrival(client, pieces, start, self.version, 1.0, weight, share, base, 0.0)
                state.check(arrival)
            except FastaggError:
                break
            found[client] = arrival, parsed
        return list(found.values())

    def _fold_models(
        self, batch: list[tuple[Arrival, Parsed]], answers: Sequence[Answer], differences: bool
    ) -> list[Outcome]:
        """Fold a batch in; ``answers`` are its own, for those that turn out not to be finite."""
        before = self.version
        assert isinstance(self._state, BufferState)
        finite, step_size = self._state.arrive_models([arrival for arrival, _ in batch], self._apply)
        taken = [pair for pair, good in zip(batch, finite, strict=True) if good]
        for _, parsed in taken:
            self._buffers.arrive(parsed)
        applied = self._follow(step_size, before)
        outcomes: list[Outcome] = []
        for (arrival, _), good, answer in zip(batch, finite, answers, strict=False):
            if not good:
                outcomes.append(self._receive_difference(*answer, differences))
                continue
            self._answer(arrival.client, arrival.version)
            steps = step_size is not None and arrival is taken[-1][0]
            outcomes.append(
                Receipt(
                    arrival.client, applied and steps, self.version if steps else before, before - arrival.version,
                    step_size if steps else None, math.nan, arrival.weight,
                )
            )  # fmt: skip
        return outcomes

    def close_round(self) -> float | None:
        """Step now along the mean of the updates that have come since the last step, when no more will.

        Ends a synchronous round of which some clients failed; what they send later is of an old version and refused.
        Their tasks stay open until they answer or are forgotten. A half-full buffer (FedBuff, FADAS) steps too.

        Returns:
            The learning rate of the step; None if there was none: nothing had come, or the rule buffers nothing.
        """
        if type(self.direction) not in (Buffer, Cohort):
            return None
        with self._lock:
            before = self.version
            if self._round.entries:
                self._fold()
            assert isinstance(self._state, BufferState)
            step_size = self._state.flush(self._apply)
            self._follow(step_size, before)
            return step_size

    def _take(self, arrival: Arrival, parsed: Parsed) -> float | None:
        step_size = self._state.arrive(arrival, self._apply)
        self._buffers.arrive(parsed)
        return step_size

    def _wait(self, arrival: Arrival, parsed: Parsed) -> float | None:
        """Keep an update until the round is complete."""
        assert isinstance(self._state, BufferState)
        self._state.check(arrival)
        if len(self._round.entries) + 1 != self.direction.size:
            self._round.keep(arrival, parsed)
            return None
        return self._fold((arrival, parsed))

    def _fold(self, *last: tuple[Arrival, Parsed]) -> float | None:
        """Take the round's updates in the order of the clients' ids."""
        step_size = None
        try:
            for arrival, parsed in self._round.in_order(*last):
                step_size = self._take(arrival, parsed)
        except BaseException:  # no room for the next version: the round is as it was
            self._state = self._start_direction()
            self._buffers.discard()
            raise
        self._round = Round()
        return step_size

    def _follow(self, step_size: float | None, before: int) -> bool:
        """What follows a step: the buffers' mean, the live views. Returns whether the model changed."""
        # A rate of zero, from a policy that drops stale updates, moves the version but not the model.
        applied = step_size is not None and (step_size != 0.0 or self.optimizer.lr == 0.0)
        if applied:
            self._buffers.step()
        elif self.version > before:  # the version moved on without a step
            self._buffers.discard()
        if step_size is not None:
            self._live.follow(self._flat, self._buffers)
        return applied

    def _refuse_other_kind(self, kind: Any) -> None:
        if isinstance(kind, str) and kind != self.update_kind:
            raise ConfigError(f"this server takes updates of kind {self.update_kind!r}, got one of kind {kind!r}")

    def forget(self, client: Client, version: int | None = None) -> None:
        """Drop the unanswered tasks of a client that will not answer them, and the versions only it held.

        Args:
            client: who.
            version: that task only; None for all of them, and the client is then unknown again.

        Raises:
            UnknownClient: it was never sent a model.
            UnknownVersion: it holds no unanswered task of that version.
        """
        client = self._tasks.identify(client)
        with self._lock:
            if version is not None:
                self._answer(client, self._tasks.find(client, version))
                return
            for held in list(self._tasks.owed(client)):
                self._answer(client, held)
            self._tasks.forget(client)

    def _answer(self, client: Client, version: int) -> None:
        self._tasks.close(client, version)
        self._policy.answered(client, version)

    # -- the step ------------------------------------------------------------------------------------------------

    def _measure(self, parsed: Parsed, pieces: Pieces, base: Tensor) -> tuple[float, float, float]:
        """Norm of the update, distance the model moved since, and the cosine between the two, in one read."""
        seen = ops.distances(pieces, self._flat, base, inner=self.direction.measures)
        admission.refuse_non_finite(self.layout, parsed, seen.finite)
        product = seen.moved * seen.norm
        return seen.norm, seen.moved, seen.inner / product if product > 0.0 else 0.0

    def _inspect(self, parsed: Parsed, pieces: Pieces) -> float:
        seen = ops.inspect(pieces)
        admission.refuse_non_finite(self.layout, parsed, seen.finite)
        return seen.norm

    def _control(self, control: Any) -> Pieces:
        if not self.direction.takes_control:
            raise ConfigError("control: only FedAC takes one")
        return admission.control(self.layout, control).to(self.device)

    def _apply(
        self,
        kernel: Callable[..., Any] | None,
        update: Pieces,
        versions: Sequence[int],
        then: Callable[[Tensor], None] | None = None,
        into: Tensor | None = None,
        **direction: Any,
    ) -> float:
        """Run the optimizer on a direction in one fused pass; the next version replaces this one.

        A version that nobody was sent is overwritten. One that somebody may hold stays as it is, and the step writes
        the next one beside it: no copy, and no more memory than the versions that are really held. So does a step
        with something to do ``then``, which may fail.
        """
        if kernel is None:
            self.version += 1
            return 0.0
        lr = self.staleness.rate(self.optimizer.lr, [self.version - start for start in versions])
        out: Tensor | None = None
        if self._sent or then:
            spent = into is not None and self.device.type == "cpu"  # where kernels may write over what they read
            out = into if spent else memory.empty(self.layout.size, self.device)
        held = {name: moment.clone() for name, moment in self._moments.items()} if then else self._moments
        arguments: dict[str, Any] = {**self.optimizer.arguments(self.steps + 1), **held, **direction}
        arguments["origin"] = self.origin
        if "units" in held:
            arguments["rounding"] = (self.seed, self.steps)
        flat = kernel(self._flat, update, lr=lr, out=out, **arguments)
        if then is not None:
            then(flat)
        self._flat, self._moments = flat, held
        self._sent = False
        self.steps += 1
        self.version += 1
        return lr

    def _start_direction(self) -> DirectionState:
        layout = self.layout
        return self.direction.start(layout.size, self.device, self.seed, layout.buffer_size, self.origin)

    def _statistics(self, parsed: Parsed) -> tuple[Tensor, Tensor]:
        own = self._buffers.values if parsed.buffers is None else parsed.buffers.flat(torch.float32)
        return own.to(self.device), self._buffers.after(parsed)

    @property
    def distillation(self) -> DistillationRecord | None:
        """What FedEcho's distillation cost and did so far; None for the other algorithms."""
        return getattr(self._state, "record", None)

    @property
    def control(self) -> Tensor | None:
        """FedAC's control variate C, [d]; None for the other algorithms. Read it, do not write to it."""
        return getattr(self._state, "control", None)

    # -- the model -----------------------------------------------------------------------------------------------

    @property
    def flat(self) -> Tensor:
        """The model's trainable parameters as one fp32 vector, [d]. Read it; ``receive`` changes it."""
        return self._live.flat

    def snapshot(self) -> Any:
        """The current model in the form it came in, shared and not copied, which does not change: read it only."""
        with self._lock:
            self._sent = True
            return self.layout.views(self._flat, self._buffers.values, list(self._buffers.counters))

    def parameters(self) -> Any:
        """The model in the form it came in, as views that follow it: a dict (usable with ``load_state_dict``) for a
        module or a state_dict, a list of arrays, or the flat tensor. Arrays whose own dtype is not fp32 are copies.
        """
        with self._lock:
            return self._live.views(self._buffers)

    def memory(self) -> dict[str, int]:
        """Bytes of server state: ``model``, ``moments``, ``direction`` (buffers, caches; FedEcho's ``logits`` and
        ``distillation`` apart), ``versions`` kept for clients in flight (or what stands for them), ``buffers`` (running
        statistics), and their ``total``."""
        with self._lock:
            held = self._state.memory()
            held["direction"] += self._round.nbytes()
            parts = {
                "model": self._flat.numel() * 4,
                "moments": sum(moment.nbytes for moment in self._moments.values()),
                **held,
                "versions": self._tasks.versions.nbytes() + self._policy.nbytes(),
                "buffers": self._buffers.nbytes(),
            }
        return {**parts, "total": sum(parts.values())}

    # -- checkpoints ---------------------------------------------------------------------------------------------

    def config(self) -> dict[str, Any]:
        """All settings as plain data."""
        parts: dict[str, tuple[Any, dict[str, Any]]] = {
            "direction": (self.direction, self.direction.settings()),
            "optimizer": (self.optimizer, asdict(self.optimizer)),
            "staleness": (self.staleness, asdict(self.staleness)),
        }
        settings = {
            **{key: {"name": type(part).__name__, **fields} for key, (part, fields) in parts.items()},
            "num_clients": self.num_clients, "clip_norm": self.clip_norm, "weighting": self.weighting,
            "buffers": self._buffers.mode, "deterministic": self.deterministic, "validate": self.validate,
            "seed": self.seed, "origin": self.origin,
        }  # fmt: skip
        return checkpoint.plain(settings)

    def state_dict(self, *, copy: bool = True) -> dict[str, Any]:
        """Everything a server needs to go on bit for bit: plain data and tensors.

        Args:
            copy: whether tensors are copies. Without, they are the server's own and change with it.
        """
        with self._lock:
            state = {
                "format": checkpoint.FORMAT,
                "config": self.config(),
                "layout": self.layout.spec(),
                "version": self.version,
                "steps": self.steps,
                "staleness": self._policy.state_dict(),
                "flat": self._flat,
                "moments": dict(self._moments),
                "buffers": self._buffers.state_dict(),
                "direction": self._state.state_dict(),
                "round": self._round.state_dict(),
                **self._tasks.state_dict(),
            }
            return checkpoint.cloned(state) if copy else state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from ``state``, of a server with the same model, direction and optimizer.

        Learning rates and other settings stay this server's own.

        Raises:
            CheckpointError: it belongs to another model or algorithm, or is damaged; nothing was changed.
        """
        checkpoint.check(state, self.config(), self.layout, set(self._moments))
        if state.get("round") and not self.deterministic:
            raise CheckpointError("the checkpoint holds updates of a deterministic round; this server has none")
        with self._lock:
            fresh = self._start_direction()
            policy = self.staleness.start(self.layout.size, self.seed)
            buffers = ModelBuffers(self._buffers.mode, self._buffers.values, self._buffers.counters)
            tasks = Tasks(self.num_clients, self._tasks.keeps_models)
            try:
                flat = self._owned(state["flat"])
                held_moments = moments.taken(self._moments, state["moments"])
                fresh.load_state_dict(state["direction"])
                policy.load_state_dict(state["staleness"])
                buffers.load_state_dict(state["buffers"])
                tasks.load_state_dict(state, self._owned)
                version, steps = int(state["version"]), int(state["steps"])
                round_ = Round()
                round_.load_state_dict(state.get("round", []), version, self.layout, self.device)
            except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError, RuntimeError) as error:
                raise CheckpointError(f"the checkpoint is damaged: {type(error).__name__}: {error}") from error
            self._flat, self._moments, self._state, self._buffers = flat, held_moments, fresh, buffers
            self._tasks, self._policy, self._round = tasks, policy, round_
            self.version, self.steps, self._sent = version, steps, True
            self._live.follow(self._flat, self._buffers)

    def _owned(self, vector: Tensor) -> Tensor:
        if vector.shape != (self.layout.size,):
            raise ValueError(f"expected a vector of {self.layout.size} elements, got {list(vector.shape)}")
        return memory.empty(self.layout.size, self.device).copy_(vector)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a checkpoint: the file is either the whole old one or the whole new one.

        Raises:
            CheckpointError: it could not be written; a file that was there is as it was.
        """
        with self._lock:
            checkpoint.write(self.state_dict(copy=False), Path(path))


def _part(name: str, given: Any, kind: type, default: Any) -> Any:
    if given is not None and not isinstance(given, kind):
        raise ConfigError(f"{name}: expected a {kind.__name__} (see the parts in fastagg), got {given!r}")
    return default if given is None else given
