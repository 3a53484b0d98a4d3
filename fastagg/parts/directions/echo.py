"""A buffer whose step is followed by distillation from all clients' latest logits (FedEcho)."""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from fastagg import _checks, ops
from fastagg.distill import Distillation, Student, Teachers
from fastagg.distill.unlabelled import Inputs, length, load
from fastagg.errors import ConfigError, NonFiniteUpdate
from fastagg.parts.directions.base import Apply, Arrival, DirectionState
from fastagg.parts.directions.buffer import Buffer, BufferState
from fastagg.storage import memory
from fastagg.storage.cache import FORMATS


@dataclass(frozen=True)
class Echo(Buffer):
    """``D = sum(Delta_i)/M``, then Q distillation steps before the new version is anybody's (paper 004, Algorithm 1).

    At every arrival the client's model, ``x_s + Delta_i``, runs once on the unlabelled data and its logits are kept.

    Args:
        size: M, updates per step.
        num_clients: n; client ids are 0..n-1.
        distill: the unlabelled data, the model's code, and the settings.
        cache: format of the logits: ``fp32``, ``bf16``, ``int8`` or ``int4``.
    """

    num_clients: int = 1
    distill: Distillation | None = field(default=None, repr=False)
    cache: str = "fp32"
    needs_base: ClassVar[bool] = True
    runs_models: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        _checks.whole("buffer_size", self.size, least=1)
        _checks.whole("num_clients", self.num_clients, least=1)
        _checks.one_of("cache", self.cache, tuple(FORMATS))
        if not isinstance(self.distill, Distillation):
            raise ConfigError(f"distill: expected a fastagg.Distillation, got {self.distill!r}")

    @property
    def clients(self) -> int | None:
        return self.num_clients

    def settings(self) -> dict[str, Any]:
        assert self.distill is not None
        return {
            "kind": self.kind, "size": self.size, "num_clients": self.num_clients, "cache": self.cache,
            "distill": self.distill.settings(),
        }  # fmt: skip

    def start(
        self, size: int, device: torch.device, seed: int, buffer_size: int = 0, origin: int = 0
    ) -> DirectionState:
        return EchoState(self, size, device, seed, buffer_size)


@dataclass
class DistillationRecord:
    """What distillation cost and did so far, in this process. Seconds are wall-clock.

    Attributes:
        flushes: how often the model was distilled.
        inference_seconds: for the clients' logits.
        distillation_seconds: for the students' steps.
        loss: mean loss of the last flush's steps.
        gradient_norm: of its last step, before clipping.
    """

    flushes: int = 0
    inference_seconds: float = 0.0
    distillation_seconds: float = 0.0
    loss: float = float("nan")
    gradient_norm: float = float("nan")


class EchoState:
    """A buffer, the clients' logits, and Adam's moments; the teacher's model is one vector, used and forgotten."""

    def __init__(self, setting: Echo, size: int, device: torch.device, seed: int, buffer_size: int) -> None:
        assert setting.distill is not None
        self.setting, self.distill = setting, setting.distill
        self.size, self.device, self.seed = size, device, seed
        self.buffer = BufferState(setting.size, setting.sign, size, device)
        inputs = load(self.distill.unlabelled, self.distill.samples, self.distill.shape, seed)
        self.fingerprint = _fingerprint(inputs)
        self.student = Student(self.distill, inputs, size, buffer_size, device)
        where = torch.device("cpu") if self.distill.offload else device
        rows, classes = self.student.rows, self.student.classes
        self.teachers = Teachers(setting.num_clients, rows, classes, setting.cache, where, seed)
        self.keep = _rows_that_count(inputs, self.student.rows_per_sample)
        self.moments: list[Tensor] | None = None  # Adam's, where they live on
        self.steps = 0  # of Adam since its moments were zero
        self.record = DistillationRecord()

    def arrive(self, arrival: Arrival, apply: Apply) -> float | None:
        assert isinstance(arrival.client, int) and arrival.base is not None and arrival.buffers is not None
        own, after = arrival.buffers()
        started = time.perf_counter()
        # What it was trained to, not what clipping leaves of it: its logits are the client's.
        model = memory.empty(self.size, self.device)
        sign = self.setting.sign
        ops.step_(arrival.base, arrival.update, optimizer="sgd", lr=1.0, gain=sign, out=model)
        self.student.bind(model, own)
        logits = memory.empty(self.teachers.cache.size, self.teachers.cache.device)
        self.student.infer(logits)  # nothing has changed so far, should it raise
        self.record.inference_seconds += time.perf_counter() - started
        flush = len(self.buffer.versions) + 1 == self.setting.size
        before = self.teachers.snapshot(arrival.client) if flush else None
        self.teachers.put(arrival.client, logits)
        if before is None:
            return self.buffer.arrive(arrival, apply)
        kept, steps = None if self.moments is None else [moment.clone() for moment in self.moments], self.steps
        try:
            return self.buffer.arrive(arrival, partial(apply, then=partial(self._distil, after, arrival.now + 1)))
        except BaseException:
            self.teachers.restore(before)
            self.moments, self.steps = kept, steps
            raise

    def _distil(self, buffers: Tensor, version: int, flat: Tensor) -> None:
        """Q steps on the new model, in place: nobody has seen it yet."""
        started, setting, student = time.perf_counter(), self.distill, self.student
        width = student.rows_per_sample
        out = memory.empty(student.rows * student.classes, self.teachers.cache.device)
        targets = self.teachers.mean(out.view(student.rows, student.classes))
        if self.keep is not None:
            targets.labels.masked_fill_(~self.keep.to(targets.labels.device), -100)
        m, v = self._moments()
        student.bind(flat, buffers)
        losses = []
        for batch in self._batches(version):
            rows = (batch.unsqueeze(1) * width + torch.arange(width)).reshape(-1)
            chosen, index = _on(self.device, targets, rows)
            loss = ops.distillation_loss(student.logits(batch), chosen, rows=index, alpha=setting.alpha)
            gradients = student.gradients(loss)
            seen = ops.inspect(gradients)
            if not seen.finite:
                raise NonFiniteUpdate("distillation: the loss or its gradient is NaN or infinite")
            self.steps += 1
            limit = setting.clip_norm
            gain = 1.0 if limit is None or seen.norm <= limit else limit / seen.norm
            ops.step_(
                flat, gradients, optimizer="adam", lr=setting.lr, m=m, v=v, betas=setting.betas, eps=setting.eps,
                correction=self.steps, gain=-gain,
            )  # fmt: skip
            if student.copies:
                student.bind(flat, buffers)
            losses.append(loss.detach())
            self.record.gradient_norm = seen.norm
        self.record.loss = float(torch.stack(losses).mean())
        self.record.flushes += 1
        self.record.distillation_seconds += time.perf_counter() - started

    def _moments(self) -> list[Tensor]:
        if self.moments is not None:
            return self.moments
        self.steps = 0
        moments = [memory.zeros(self.size, self.device), memory.zeros(self.size, self.device)]
        if self.distill.keep_moments:
            self.moments = moments
        return moments

    def _batches(self, version: int) -> list[Tensor]:
        """Q batches; every sample once, in another order each time, before any comes again."""
        samples, size = length(self.student.inputs), self.distill.batch_size
        size = min(size, samples)
        count = self.distill.steps or -(-samples // size)
        rng = np.random.default_rng([self.seed, version, 0xEC40])
        batches: list[Tensor] = []
        while len(batches) < count:
            order = torch.from_numpy(rng.permutation(samples))
            batches += [order[first : first + size] for first in range(0, samples, size)]
        return batches[:count]

    def memory(self) -> dict[str, int]:
        """``direction``: the buffer; ``logits``: the clients' and their sum; ``distillation``: Adam's moments, if kept.

        While it distils, the server holds in passing one model copy for a teacher, or Adam's two and the gradients.
        """
        moments = 0 if self.moments is None else 8 * self.size
        return {**self.buffer.memory(), "logits": self.teachers.nbytes(), "distillation": moments}

    def state_dict(self) -> dict[str, Any]:
        return {
            "buffer": self.buffer.state_dict(), "teachers": self.teachers.state_dict(), "steps": self.steps,
            "moments": self.moments, "unlabelled": self.fingerprint,
        }  # fmt: skip

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state["unlabelled"] != self.fingerprint:
            raise ValueError("its logits are of other unlabelled data")
        self.buffer.load_state_dict(state["buffer"])
        self.teachers.load_state_dict(state["teachers"])
        if state["moments"] is not None:
            self.moments = [memory.empty(self.size, self.device).copy_(moment) for moment in state["moments"]]
        self.steps = int(state["steps"])


def _rows_that_count(inputs: Inputs, rows_per_sample: int) -> Tensor | None:
    """Which rows of logits are of real tokens, [rows] bool; None where all are."""
    mask = None if isinstance(inputs, Tensor) else inputs.get("attention_mask")
    if mask is None or rows_per_sample == 1 or mask.numel() != len(mask) * rows_per_sample:
        return None
    return mask.reshape(-1).bool()


def _on(device: torch.device, targets: ops.SoftTargets, rows: Tensor) -> tuple[ops.SoftTargets, Tensor | None]:
    """The teachers' rows where the student is: read in place if that is where they are, else only these are moved."""
    if targets.probs.device == device:
        return targets, rows.to(device)
    return ops.SoftTargets(*(part[rows].to(device) for part in targets)), None


def _fingerprint(inputs: Inputs) -> str:
    digest = hashlib.sha256()
    parts = {"": inputs} if isinstance(inputs, Tensor) else inputs
    for name in sorted(parts):
        tensor = parts[name].detach().cpu().contiguous()
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b"")
    return digest.hexdigest()
