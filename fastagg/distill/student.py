"""Runs a user's module with parameters from a flat vector, for logits or a loss's gradients. FedEcho uses this file."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn

from fastagg import ops
from fastagg._types import Arrays
from fastagg.distill.settings import Distillation
from fastagg.distill.unlabelled import Inputs, length, take
from fastagg.errors import ConfigError, NonFiniteUpdate, ShapeMismatch
from fastagg.model import Layout


class Student:
    """A copy of the user's module. Its fp32 parameters are views of a flat vector, which :meth:`bind` sets.

    Args:
        settings: the module, and how to run it.
        inputs: the unlabelled samples.
        size, buffer_size: the numbers of elements of the server's parameters and of its running statistics.

    Attributes:
        rows_per_sample: the number of rows of logits of one sample: 1 for a classifier, or the number of tokens.
        classes: C, the number of logits in a row.
        copies: whether some parameters are copies of the vector's elements, because they are not fp32.
    """

    def __init__(
        self, settings: Distillation, inputs: Inputs, size: int, buffer_size: int, device: torch.device
    ) -> None:
        self.settings, self.inputs, self.device = settings, inputs, device
        self.module = copy.deepcopy(settings.model).to(device).eval()
        self.layout = Layout.of(self.module)
        for what, theirs, mine in (
            ("parameters", self.layout.size, size),
            ("buffer elements", self.layout.buffer_size, buffer_size),
        ):
            if theirs != mine:
                raise ConfigError(f"distill.model: it has {theirs} {what}, the server's model has {mine}")
        self._parameters = [p for p in self.module.parameters() if p.requires_grad]
        if any(p.dtype not in (torch.float32, torch.float16, torch.bfloat16) for p in self._parameters):
            raise ConfigError("distill.model: expected parameters in float32, float16 or bfloat16")
        # After each change of the vector, the copies must be made again by `bind`.
        self.copies = any(p.dtype is not torch.float32 for p in self._parameters)
        with torch.no_grad():
            rows, self.classes = self._run(take(inputs, slice(0, 1))).shape
        self.rows_per_sample = int(rows)

    @property
    def rows(self) -> int:
        return length(self.inputs) * self.rows_per_sample

    def bind(self, flat: Tensor, buffers: Tensor) -> None:
        """Use the parameters ``flat`` [d] and the running statistics ``buffers`` from now on. fp32 parameters become
        views of ``flat``. Other parameters, and the statistics, are copied."""
        flat = torch.from_dlpack(flat)  # torch.autograd refuses a tensor that was made in inference_mode
        held = dict(self.module.named_parameters())
        statistics = dict(self.module.named_buffers())
        for entry in self.layout.entries:
            if entry.role == "parameter":
                view = flat[entry.offset : entry.offset + entry.size].view(entry.shape)
                held[entry.name].data = view.to(held[entry.name].dtype)
            elif entry.role == "buffer":
                view = buffers[entry.offset : entry.offset + entry.size].view(entry.shape)
                statistics[entry.name].copy_(view)

    def logits(self, index: Tensor | slice) -> Tensor:
        """Return the logits of the samples in ``index``, [rows, C]. They have gradients unless torch.no_grad is on."""
        inputs = take(self.inputs, index)
        logits = self._run(inputs)
        expected = (length(inputs) * self.rows_per_sample, self.classes)
        if tuple(logits.shape) != expected:
            raise ShapeMismatch(f"distill.model: expected logits of shape {list(expected)}, got {list(logits.shape)}")
        return logits

    @torch.no_grad()
    def infer(self, out: Tensor) -> None:
        """Write the logits of all samples to ``out``, [rows*C] fp32, in batches of ``inference_batch_size``."""
        samples, chunk = length(self.inputs), self.settings.inference_batch_size
        width = self.rows_per_sample * self.classes
        for first in range(0, samples, chunk):
            last = min(samples, first + chunk)
            out[first * width : last * width].copy_(self.logits(slice(first, last)).reshape(-1))
        if not ops.inspect(out).finite:
            raise NonFiniteUpdate("the client's model gives logits that are NaN or infinite on the unlabelled data")

    def gradients(self, loss: Tensor) -> list[Tensor]:
        """Return the gradients of ``loss``: a tensor for each parameter, in the order of the flat vector."""
        gradients = torch.autograd.grad(loss, self._parameters, allow_unused=True)
        return [
            torch.zeros_like(p) if g is None else g.contiguous()
            for g, p in zip(gradients, self._parameters, strict=True)
        ]

    def _run(self, inputs: Inputs) -> Tensor:
        moved: Inputs = (
            inputs.to(self.device)
            if isinstance(inputs, Tensor)
            else {name: tensor.to(self.device) for name, tensor in inputs.items()}
        )
        out = _call(self.settings.forward, self.module, moved)
        logits = getattr(out, "logits", out)
        if not isinstance(logits, Tensor) or logits.dim() < 2 or not logits.is_floating_point():
            got = f"{logits.dtype} {list(logits.shape)}" if isinstance(logits, Tensor) else type(logits).__name__
            raise ConfigError(f"distill.model: expected logits [batch, ..., classes], got {got}")
        if logits.shape[0] != length(inputs):
            raise ConfigError(
                f"distill.model: expected logits [batch, ..., classes] for a batch of {length(inputs)}, "
                f"got {list(logits.shape)}"
            )
        return logits.reshape(-1, logits.shape[-1]).float()


def _call(forward: Callable[[nn.Module, Arrays], object] | None, module: nn.Module, inputs: Inputs) -> object:
    if forward is not None:
        return forward(module, inputs)
    return module(**inputs) if isinstance(inputs, dict) else module(inputs)
