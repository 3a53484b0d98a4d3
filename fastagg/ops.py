"""One function per kernel, on torch tensors: the checks, then the call.

State vectors are 1-D, contiguous, fp32, on one device. An update is one tensor or a sequence of consecutive pieces
of any shape, in fp32, fp16 or bf16 (torch, NumPy or DLPack), read where it lies. Functions whose names end in ``_``
write to their first argument and to the moments they are given. Nothing is written when an argument is refused.

Devices without a kernel run :mod:`fastagg.reference` instead (right, not fast).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fastagg import reference
from fastagg._build import native
from fastagg.errors import ConfigError, DTypeMismatch, ShapeMismatch
from fastagg.pieces import Pieces, as_pieces

# In the order of csrc/math/optimizer.h, OptimizerKind; and the moments each one owns.
OPTIMIZERS: dict[str, tuple[str, ...]] = {
    "sgd": (),
    "momentum": ("m",),
    "adam": ("m", "v"),
    "amsgrad": ("m", "v", "vhat"),
    "yogi": ("m", "v"),
    "adagrad": ("m", "v"),
}
_CODE = {name: code for code, name in enumerate(OPTIMIZERS)}
_SINGLE, _FLUSH, _BLEND = range(3)  # csrc/cpu/step.h, DirectionKind

Update = Tensor | np.ndarray | Sequence[Any] | Pieces


class Inspection(NamedTuple):
    """What one read of an update tells."""

    finite: bool
    norm: float  # Euclidean; not finite when the update is not


def inspect(update: Update) -> Inspection:
    """Whether every element is finite, and the Euclidean norm, in one read (4 bytes per fp32 element).

    The norm is summed in float64 in a fixed order: the same bits on any number of threads.
    """
    pieces = as_pieces(update)
    total = native.sum_squares(pieces.native) if pieces.device.type == "cpu" else reference.sum_squares(pieces)
    return Inspection(math.isfinite(total), math.sqrt(total) if total >= 0 else total)


def gather(update: Update, out: Tensor) -> Tensor:
    """``out = update``: the pieces put together and widened to fp32 (1-D, d elements)."""
    pieces = as_pieces(update)
    _vector("out", out, pieces.size, pieces.device)
    if pieces.device.type != "cpu":
        return reference.gather(pieces, out)
    native.gather(pieces.native, out.data_ptr())
    return out


def accumulate_(acc: Tensor, update: Update, weight: float = 1.0, *, fresh: bool = False) -> Tensor:
    """``acc += weight*update`` (12 bytes per parameter); with ``fresh``, ``acc = weight*update`` (8 bytes).

    FedBuff's and FADAS's buffer (paper 000, Algorithm 1, line 4).
    """
    pieces = as_pieces(update)
    _vector("acc", acc, pieces.size, pieces.device)
    if pieces.device.type != "cpu":
        return reference.accumulate_(acc, pieces, weight, fresh=fresh)
    native.accumulate(pieces.native, 0 if fresh else acc.data_ptr(), weight, acc.data_ptr())
    return acc


def step_(
    x: Tensor,
    update: Update,
    *,
    optimizer: str,
    lr: float,
    m: Tensor | None = None,
    v: Tensor | None = None,
    vhat: Tensor | None = None,
    betas: tuple[float, float] = (0.9, 0.99),
    eps: float = 1e-8,
    correction: int | None = None,
    gain: float = 1.0,
    weight: float = 1.0,
    acc: Tensor | None = None,
    scale: float = 1.0,
    base: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """One whole server step, direction and optimizer, in one pass over memory.

    The direction ``D`` is, by what is given:

    - nothing: ``D = gain*weight*update``
    - ``acc``: ``D = (acc + gain*weight*update)*scale``, a buffer flushed with its last update
    - ``base``: ``D = weight*((base - x) + gain*update)``, the client's model minus the server's (FedAsync)

    Args:
        x: the model, [d].
        update: the arriving update, d elements in all.
        optimizer: a key of :data:`OPTIMIZERS`; the moments it owns must be given, the others must not.
        lr: server learning rate of this step.
        m, v, vhat: moments, [d], updated in place.
        betas, eps: decay rates (``betas[0]`` is momentum's) and the term outside the square root.
        correction: Adam's bias correction at this round (1 for the first), or None for none.
        gain: factor on the update alone (clipping).
        weight: factor on the client's contribution (staleness, samples).
        acc, scale: the buffer's sum so far, [d] (only read), and the factor that makes it a mean.
        base: the version the client started from, [d].
        out: where the new model goes, [d]; None writes it to ``x``. It must not overlap ``x`` partly.

    Returns:
        ``out``, or ``x``.

    Raises:
        ShapeMismatch, DTypeMismatch, ConfigError: an argument is refused; nothing was written.
    """
    pieces = as_pieces(update)
    target = x if out is None else out
    moments = OPTIMIZERS.get(optimizer)
    if moments is None:
        raise ConfigError(f"unknown optimizer {optimizer!r}; known: {', '.join(OPTIMIZERS)}")
    size, device = pieces.size, pieces.device
    given = {"x": x, "m": m, "v": v, "vhat": vhat, "acc": acc, "base": base, "out": target}
    for name, vector in given.items():
        if vector is not None:
            _vector(name, vector, size, device)
        if name in ("m", "v", "vhat") and (vector is not None) != (name in moments):
            raise ConfigError(f"{optimizer} {'needs' if vector is None else 'has no'} {name}")
    if acc is not None and base is not None:
        raise ConfigError("acc and base are two different directions; give one of them")
    if target is not x and abs(target.data_ptr() - x.data_ptr()) < size * 4 and target.data_ptr() != x.data_ptr():
        raise ConfigError("out overlaps x without being x")
    if device.type != "cpu" and not _cuda_ready(device):
        return reference.step_(
            x, pieces, optimizer=optimizer, lr=lr, m=m, v=v, vhat=vhat, betas=betas, eps=eps,
            correction=correction, gain=gain, weight=weight, acc=acc, scale=scale, base=base, out=out,
        )  # fmt: skip
    root_scale = 1.0
    if correction is not None:
        lr = lr / (1.0 - betas[0] ** correction)
        root_scale = 1.0 / math.sqrt(1.0 - betas[1] ** correction)
    hyper = native.Hyper(lr, betas[0], betas[1], eps, root_scale)
    if device.type == "cuda":
        return _cuda_step(x, pieces, optimizer, hyper, m, v, vhat, gain, weight, acc, scale, base, target)
    kind = _BLEND if base is not None else _FLUSH if acc is not None else _SINGLE
    native.step(
        pieces.native, kind, _address(acc), _address(base), gain, weight, scale, _CODE[optimizer], hyper,
        _address(m), _address(v), _address(vhat), x.data_ptr(), target.data_ptr(),
    )  # fmt: skip
    return target


def sgd_(x: Tensor, direction: Update, *, lr: float) -> Tensor:
    """``x += lr*direction`` (12 bytes per parameter)."""
    return step_(x, direction, optimizer="sgd", lr=lr)


def momentum_(x: Tensor, direction: Update, m: Tensor, *, lr: float, beta: float = 0.9) -> Tensor:
    """``m = beta*m + direction; x += lr*m`` (FedAvgM; 20 bytes per parameter)."""
    return step_(x, direction, optimizer="momentum", m=m, lr=lr, betas=(beta, 0.0))


def adam_(
    x: Tensor,
    direction: Update,
    m: Tensor,
    v: Tensor,
    *,
    lr: float,
    betas: tuple[float, float] = (0.9, 0.99),
    eps: float = 1e-8,
    correction: int | None = None,
) -> Tensor:
    """FedAdam's server step, ``x += lr*m/(sqrt(v) + eps)`` (28 bytes per parameter)."""
    return step_(x, direction, optimizer="adam", m=m, v=v, lr=lr, betas=betas, eps=eps, correction=correction)


def amsgrad_(
    x: Tensor,
    direction: Update,
    m: Tensor,
    v: Tensor,
    vhat: Tensor,
    *,
    lr: float,
    betas: tuple[float, float] = (0.9, 0.99),
    eps: float = 1e-8,
    correction: int | None = None,
) -> Tensor:
    """FADAS's server step, paper 000 Eq. 3 and Algorithm 1 line 16 (36 bytes per parameter).

    ``m = b1*m + (1-b1)*D``; ``v = b2*v + (1-b2)*D*D``; ``vhat = max(vhat, v)``;
    ``x += lr*m/(sqrt(vhat) + eps)``.
    """
    return step_(
        x, direction, optimizer="amsgrad", m=m, v=v, vhat=vhat, lr=lr, betas=betas, eps=eps,
        correction=correction,
    )  # fmt: skip


def yogi_(
    x: Tensor,
    direction: Update,
    m: Tensor,
    v: Tensor,
    *,
    lr: float,
    betas: tuple[float, float] = (0.9, 0.99),
    eps: float = 1e-8,
    correction: int | None = None,
) -> Tensor:
    """FedYogi's server step, ``v -= (1-b2)*D*D*sign(v - D*D)`` (28 bytes per parameter)."""
    return step_(x, direction, optimizer="yogi", m=m, v=v, lr=lr, betas=betas, eps=eps, correction=correction)


def adagrad_(
    x: Tensor, direction: Update, m: Tensor, v: Tensor, *, lr: float, beta: float = 0.9, eps: float = 1e-8
) -> Tensor:
    """FedAdagrad's server step, ``v += D*D`` (28 bytes per parameter)."""
    return step_(x, direction, optimizer="adagrad", m=m, v=v, lr=lr, betas=(beta, 0.0), eps=eps)


def _address(vector: Tensor | None) -> int:
    return 0 if vector is None else vector.data_ptr()


def _vector(name: str, vector: Tensor, size: int, device: torch.device) -> None:
    if vector.dtype is not torch.float32:
        raise DTypeMismatch(f"{name}: expected torch.float32, got {vector.dtype}")
    if vector.device != device:
        raise DTypeMismatch(f"{name} is on {vector.device}, the update on {device}")
    if vector.dim() != 1 or vector.numel() != size:
        raise ShapeMismatch(f"{name}: expected shape [{size}], got {list(vector.shape)}")
    if not vector.is_contiguous():
        raise ShapeMismatch(f"{name}: expected a contiguous vector, got stride {vector.stride(0)}")


def _cuda_ready(device: torch.device) -> bool:
    return device.type == "cuda" and bool(native.cuda_architectures)


def _cuda_step(
    x: Tensor, pieces: Pieces, optimizer: str, hyper: Any, m: Tensor | None, v: Tensor | None,
    vhat: Tensor | None, gain: float, weight: float, acc: Tensor | None, scale: float, base: Tensor | None,
    target: Tensor,
) -> Tensor:  # fmt: skip
    """The optimizer kernel on a direction that torch forms first; fusing the two is the next step on CUDA."""
    d = pieces.flat(torch.float32)
    if base is not None:
        d = d.mul_(gain).add_(base - x).mul_(weight)
    elif acc is not None:
        d = d.mul_(gain * weight).add_(acc).mul_(scale)
    elif gain * weight != 1.0:
        d = d.mul_(gain * weight)
    stream = torch.cuda.current_stream(x.device).cuda_stream
    native.cuda_step(
        d.numel(), d.data_ptr(), _CODE[optimizer], hyper, _address(m), _address(v), _address(vhat),
        x.data_ptr(), target.data_ptr(), x.device.index, stream,
    )  # fmt: skip
    return target
