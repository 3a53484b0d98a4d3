"""A direction that distils all clients' latest logits into the model after each step (FedEcho). Servers call it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from fastagg import _checks, ops
from fastagg._checks import Count, Size
from fastagg._types import Move, Plain, State
from fastagg.distill import Distillation, Student, Teachers
from fastagg.distill.teachers import LogitsWrite
from fastagg.distill.unlabelled import Inputs, length, load
from fastagg.errors import ConfigError, NonFiniteUpdate
from fastagg.rules import moments
from fastagg.rules.directions.base import Arrival, DirectionState, Findings, Material
from fastagg.rules.directions.buffer import Buffer, BufferState
from fastagg.rules.names import Cache
from fastagg.storage import memory
from fastagg.storage.cell import SwapCell
from fastagg.timing import Stopwatch


@dataclass(frozen=True)
class Echo(Buffer):
    """``D = sum(Delta_i)/M``, then Q distillation steps before any client gets the new version (FedEcho, Alg. 1).

    At each update the server runs the client's model, ``x_s + Delta_i``, once on the unlabelled data, and keeps the
    logits.

    Args:
        size: M, updates per step.
        num_clients: n, the number of clients. Client ids are 0..n-1.
        distill: the unlabelled data, the model's code, and the settings of the distillation.
        cache: format of the logits: ``fp32``, ``bf16``, ``int8`` or ``int4``.
    """

    size: Size = 10
    num_clients: Count = 1
    distill: Distillation | None = field(default=None, repr=False)
    cache: Cache = "fp32"
    needs_base: ClassVar[bool] = True
    ends_early: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.distill, Distillation):
            do = "write distill=fastagg.Distillation(model, unlabelled)"
            raise ConfigError(_checks.wrong("distill", "a fastagg.Distillation", self.distill, do))

    @property
    def clients(self) -> int | None:
        return self.num_clients

    def settings(self) -> Plain:
        assert self.distill is not None
        return {
            "kind": self.kind, "size": self.size, "num_clients": self.num_clients, "cache": self.cache,
            "distill": self.distill.settings(),
        }  # fmt: skip

    def start(self, material: Material) -> DirectionState:
        return EchoState(self, material)


@dataclass
class DistillationRecord:
    """The cost and the results of distillation so far, in this process. Seconds are wall-clock time.

    Attributes:
        flushes: the number of distillations.
        inference_seconds: the time for the clients' logits.
        distillation_seconds: the time for the distillation steps.
        loss: the mean loss over the steps of the last distillation. NaN before the first.
        gradient_norm: the norm of the gradient in the last distillation's last step, before clipping. NaN at first.
    """

    flushes: int = 0
    inference_seconds: float = 0.0
    distillation_seconds: float = 0.0
    loss: float = float("nan")
    gradient_norm: float = float("nan")


class EchoState(BufferState):
    """A buffer, and the clients' logits. The vectors of a client's model and of Adam's moments are not kept."""

    asks = True
    record = SwapCell[DistillationRecord]()

    def __init__(self, setting: Echo, material: Material) -> None:
        assert setting.distill is not None
        super().__init__(setting, material)
        self.setting, self.distill = setting, setting.distill
        size, device, seed = material.size, material.device, material.seed
        self.size, self.device, self.seed = size, device, seed
        inputs = load(self.distill.unlabelled, self.distill.samples, self.distill.shape, seed)
        self.fingerprint = _fingerprint(inputs)
        self.student = Student(self.distill, inputs, size, material.buffer_size, device)
        where = torch.device("cpu") if self.distill.offload else device
        rows, classes = self.student.rows, self.student.classes
        self.teachers = Teachers(setting.num_clients, rows, classes, setting.cache, where, seed)
        self.keep = _rows_that_count(inputs, self.student.rows_per_sample)
        self.record = DistillationRecord()

    def before(self, arrival: Arrival, findings: Findings) -> None:
        facts = arrival.facts
        assert isinstance(facts.client, int) and facts.base is not None
        own, after = arrival.statistics()
        watch = Stopwatch()
        # The logits must be those of the model that the client trained, so the update is not clipped here.
        model = memory.empty(self.size, self.device)
        ops.step_(facts.base, facts.update, optimizer="sgd", lr=1.0, gain=self.setting.sign, out=model)
        self.student.bind(model, own)
        logits = memory.empty(self.teachers.cache.size, self.teachers.cache.device)
        with torch.autocast(self.device.type, enabled=False):
            self.student.infer(logits)
        put = self.teachers.put(facts.client, logits)
        record = replace(self.record, inference_seconds=self.record.inference_seconds + watch.total)
        moves = [*put.moves, (self, "record", record)]
        findings.moves = moves
        if arrival.room == 1:
            findings.finish = partial(self._finish, put, after, facts.version + facts.delay + 1, record, moves)

    def _finish(self, *arguments: Any) -> None:
        # The caller may have entered torch.no_grad, inference_mode or autocast. Distillation must run without these.
        with torch.inference_mode(False), torch.enable_grad(), torch.autocast(self.device.type, enabled=False):
            self._distil(*arguments)

    def _distil(
        self,
        put: LogitsWrite,
        buffers: Tensor,
        version: int,
        record: DistillationRecord,
        moves: list[Move],
        flat: Tensor,
    ) -> None:
        """Make Q distillation steps on the new model in place. No other code has this model yet."""
        watch, setting, student = Stopwatch(), self.distill, self.student
        width = student.rows_per_sample
        out = memory.empty(student.rows * student.classes, self.teachers.cache.device)
        targets = self.teachers.mean(put, out.view(student.rows, student.classes))
        if self.keep is not None:
            targets.labels.masked_fill_(~self.keep.to(targets.labels.device), -100)
        norm, adam = float("nan"), moments.zeros("adam", "fp32", self.size, self.device)
        student.bind(flat, buffers)
        losses = []
        for steps, batch in enumerate(self._batches(version), 1):
            rows = (batch.unsqueeze(1) * width + torch.arange(width, dtype=torch.int64, device="cpu")).reshape(-1)
            chosen, index = _on(self.device, targets, rows)
            loss = ops.distillation_loss(student.logits(batch), chosen, rows=index, alpha=setting.alpha)
            gradients = student.gradients(loss)
            seen = ops.inspect(gradients)
            if not seen.finite:
                raise NonFiniteUpdate("distillation: the loss or its gradient is NaN or infinite")
            limit, norm = setting.clip_norm, seen.norm
            gain = 1.0 if limit is None or norm <= limit else limit / norm
            ops.step_(
                flat, gradients, optimizer="adam", lr=setting.lr, betas=setting.betas, eps=setting.eps,
                correction=steps, gain=-gain, m=adam["m"], v=adam["v"],
            )  # fmt: skip
            if student.copies:
                student.bind(flat, buffers)
            losses.append(loss.detach())
        if not bool(torch.isfinite(flat).all()):
            raise NonFiniteUpdate("distillation: the model became NaN or infinite")
        mean = float(torch.stack(losses).mean())
        seconds = record.distillation_seconds + watch.total
        after = replace(record, flushes=record.flushes + 1, distillation_seconds=seconds, loss=mean, gradient_norm=norm)
        moves.append((self, "record", after))

    def _batches(self, version: int) -> list[Tensor]:
        """Return Q batches of indices, in passes over all samples. Each pass has a new random order."""
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
        """Return the number of bytes of the buffer (``direction``), and of the clients' logits with their sum
        (``logits``). Temporary vectors are not included: a client's model, Adam's moments and gradients.
        """
        return {**super().memory(), "logits": self.teachers.nbytes()}

    def finite(self) -> bool:
        return super().finite() and bool(torch.isfinite(self.teachers.now.sum).all())

    def state_dict(self, *, rows: bool = True) -> State:
        return {"buffer": super().state_dict(), "teachers": self.teachers.state_dict(), "unlabelled": self.fingerprint}

    def load_state_dict(self, state: State) -> None:
        if state["unlabelled"] != self.fingerprint:
            raise ValueError("its logits are of other unlabelled data")
        super().load_state_dict(state["buffer"])
        self.teachers.load_state_dict(state["teachers"])


def _rows_that_count(inputs: Inputs, rows_per_sample: int) -> Tensor | None:
    """Return a bool vector [rows]: whether each row of logits belongs to a real token. None: all rows do."""
    mask = None if isinstance(inputs, Tensor) else inputs.get("attention_mask")
    if mask is None or rows_per_sample == 1 or mask.numel() != len(mask) * rows_per_sample:
        return None
    return mask.reshape(-1).bool()


def _on(device: torch.device, targets: ops.SoftTargets, rows: Tensor) -> tuple[ops.SoftTargets, Tensor | None]:
    """Return targets on ``device``, and the indices of the targets' rows to use. None: all rows, in order."""
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
