"""Decisions from an update's norms, computed on its device: the verdict."""

from __future__ import annotations

import torch
from torch import Tensor

from fastagg._build import native
from fastagg.errors import ConfigError
from fastagg.ops.checks import Update, address, update_of, vector
from fastagg.ops.place import CPU, NUMBERS, on_device, place, where
from fastagg.storage import memory
from fastagg.storage.pieces import as_pieces


def judge(
    update: Update,
    *,
    x: Tensor | None = None,
    base: Tensor | None = None,
    inner: bool = False,
    clip_norm: float | None = None,
    lam: float | None = None,
    eps: float = 1.0,
    gamma_max: float | None = None,
) -> Tensor:
    """Compute an update's norms on the device, and the gain and weight that follow (CUDA only).

    The call does not wait for the device. Sums are in float64 in a fixed order and have the CPU's bits.

    Args:
        update: d elements, on a CUDA device.
        x, base: the model and the version that the update was trained from, [d], if their distance is needed.
        inner: whether to compute ``(x - base).update`` too.
        clip_norm: the largest norm; ``gain = min(1, clip_norm/|update|)``.
        lam, eps, gamma_max: AsyncFedED (its Eqs. 6 and 7): ``weight = lam/(gamma + eps)`` with
            ``gamma = |x - base|/(gain*|update|)``. An update of norm zero, or beyond ``gamma_max``, is rejected.

    Returns:
        [6] fp64 on the device: ``|update|^2, |x - base|^2, (x - base).update, gain, weight, keep``. ``keep`` is 0
        if the update is rejected or an element is not finite.

    Raises:
        ConfigError: the update is not on a CUDA device.
        ShapeMismatch, DTypeMismatch: ``x`` or ``base`` is refused.
    """
    pieces = as_pieces(update)
    on = place(pieces.device)
    if on is CPU:
        raise ConfigError(f"judge: for updates on a CUDA device, got one on {pieces.device}")
    for name, given in (("x", x), ("base", base)):
        if given is not None:
            vector(name, given, pieces.size, pieces.device)
    if (x is None) != (base is None):
        raise ConfigError("judge: x and base belong together")
    if lam is not None and x is None:
        raise ConfigError("judge: x and base belong together, and lam needs them")
    rules = native.cuda.Rules(clip_norm=clip_norm or 0.0, lam=lam or 0.0, eps=eps, gamma_max=gamma_max or 0.0)
    numbers = NUMBERS + native.cuda.judge_scratch(pieces.size)
    found = memory.empty(numbers, pieces.device, torch.float64)
    verdict, scratch = found[:NUMBERS], found[NUMBERS:]
    scratch[native.cuda.judge_counters(pieces.size) :].zero_()
    against = native.cuda.Against(x=address(x), base=address(base), inner=inner)
    there = on_device(pieces)
    native.cuda.judge(
        update_of(there), against, rules, scratch=scratch.data_ptr(), verdict=verdict.data_ptr(), where=where(on)
    )
    return verdict
