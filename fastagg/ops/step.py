"""Server steps: a direction and an optimizer in one pass."""

from __future__ import annotations

import torch
from torch import Tensor

from fastagg import reference
from fastagg._build import native
from fastagg.errors import ConfigError
from fastagg.ops.checks import OptimizerCall, Update, address, optimizer_call, vector
from fastagg.pieces import Pieces, as_pieces

_SINGLE, _FLUSH, _BLEND = range(3)  # csrc/cpu/step.h, DirectionKind


def accumulate_difference_(acc: Tensor, update: Update, base: Tensor, weight: float = 1.0) -> Tensor:
    """``acc += weight*(update - base)`` in one pass (16 bytes per parameter): the same bits as
    :func:`fastagg.ops.accumulate_` of the difference, which is never written.

    Args:
        acc: [d].
        update: trained models, d elements.
        base: what they were trained from, [d].
        weight: factor on the difference.
    """
    return step_(acc, update, optimizer="sgd", lr=1.0, gain=-1.0, acc=base, scale=-weight)


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
    units: Tensor | None = None,
    rounding: tuple[int, int] = (0, 0),
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
        m, v, vhat: moments, [d], updated in place; with ``units`` in 8 bits, uint8, d rounded up
            to whole blocks of 256.
        units: of moments in 8 bits, [1, blocks] fp32 for ``m``, and a second row for ``v`` and ``vhat``. Zeros, like
            the moments, before the first step (:func:`fastagg.moments.zeros`). Not on CUDA devices.
        rounding: seed and number of this step: they key the rounding of moments in 8 bits.
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
    size, device = pieces.size, pieces.device
    call = optimizer_call(
        size, device, x, target, optimizer=optimizer, lr=lr, m=m, v=v, vhat=vhat, betas=betas, eps=eps,
        correction=correction, units=units, rounding=rounding,
    )  # fmt: skip
    if acc is not None:
        vector("acc", acc, size, device)
    if base is not None:
        vector("base", base, size, device)
    if acc is not None and base is not None:
        raise ConfigError("acc and base are two different directions; give one of them")
    if device.type == "cpu":
        kind = _BLEND if base is not None else _FLUSH if acc is not None else _SINGLE
        native.step(
            pieces.native, kind, address(acc), address(base), gain, weight, scale, call.code, call.hyper,
            call.m, call.v, call.vhat, call.x, call.out, call.units, call.blocks, call.random,
        )  # fmt: skip
    elif device.type == "cuda" and native.cuda_architectures:
        _cuda_step(pieces, call, gain, weight, acc, scale, base, x)
    else:
        reference.step_(
            x, pieces, optimizer=optimizer, lr=lr, m=m, v=v, vhat=vhat, betas=betas, eps=eps,
            correction=correction, units=units, rounding=rounding, gain=gain, weight=weight, acc=acc, scale=scale,
            base=base, out=out,
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


def _cuda_step(
    pieces: Pieces,
    call: OptimizerCall,
    gain: float,
    weight: float,
    acc: Tensor | None,
    scale: float,
    base: Tensor | None,
    x: Tensor,
) -> None:
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
        d.numel(), d.data_ptr(), call.code, call.hyper, call.m, call.v, call.vhat, call.x, call.out,
        x.device.index, stream,
    )  # fmt: skip
