"""The kernels in plain float64 torch. They are the specification that the kernels are tested against.

Names, arguments and the in-place convention are those of :mod:`fastagg.ops`. Arithmetic is float64 for all types of
tensors. Results are rounded once, when they are written. State tensors may be float64 themselves.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fastagg.storage.pieces import Pieces, as_pieces
from support.reference.moments import SPANS, decode, encode, random_bits, units_of

_F64 = torch.float64


def sum_squares(update: Tensor | list[Tensor] | Pieces) -> float:
    """Return the sum of squares of all elements. It is infinite or NaN exactly if some element is."""
    return float(as_pieces(update).flat(_F64).square().sum())


def distances(update: Tensor | list[Tensor] | Pieces, x: Tensor, base: Tensor) -> tuple[float, float, float]:
    """Return the squares of ``|x - base|`` and ``|update|``, and their inner product."""
    u, moved = as_pieces(update).flat(_F64), x.to(_F64) - base.to(_F64)
    return float(moved.square().sum()), float(u.square().sum()), float(moved @ u)


def accumulate_(
    acc: Tensor, update: Tensor | list[Tensor] | Pieces, weight: float = 1.0, *, fresh: bool = False
) -> Tensor:
    """Compute ``acc += weight*update``; with ``fresh``, ``acc = weight*update``."""
    total = weight * as_pieces(update).flat(_F64)
    return acc.copy_(total if fresh else acc.to(_F64) + total)


def step_(
    x: Tensor,
    update: Tensor | list[Tensor] | Pieces,
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
    eps_root: float = 0.0,
    weight_decay: float = 0.0,
    decoupled_weight_decay: bool = False,
    period: int = 1,
) -> Tensor:
    """Do direction and optimizer of one server step; see :func:`fastagg.ops.step_`."""
    how: dict[str, Any] = {
        "optimizer": optimizer, "lr": lr, "betas": betas, "eps": eps, "correction": correction, "eps_root": eps_root,
        "weight_decay": weight_decay, "decoupled_weight_decay": decoupled_weight_decay, "period": period,
    }  # fmt: skip
    if units is not None:
        codes = {name: held for name, held in (("m", m), ("v", v), ("vhat", vhat)) if held is not None}
        along = {"gain": gain, "weight": weight, "acc": acc, "scale": scale, "base": base, "out": out}
        return _coded_step(x, update, codes, units, rounding, how, along)
    x64 = x.to(_F64)
    d = as_pieces(update).flat(_F64)
    if base is not None:
        d = weight * ((base.to(_F64) - x64) + gain * d)
    else:
        d = (gain * weight) * d
        if acc is not None:
            d = (acc.to(_F64) + d) * scale
    state = {name: held for name, held in (("m", m), ("v", v), ("vhat", vhat)) if held is not None}
    new = advance(x=x64, d=d, state={name: held.to(_F64) for name, held in state.items()}, **how)
    for name, held in state.items():
        if name in new:
            held.copy_(new[name])
    return (x if out is None else out).copy_(new["x"])


def advance(
    optimizer: str,
    x: Tensor,
    d: Tensor,
    state: Mapping[str, Tensor],
    lr: float,
    betas: tuple[float, float],
    eps: float,
    correction: int | None,
    eps_root: float = 0.0,
    weight_decay: float = 0.0,
    decoupled_weight_decay: bool = False,
    period: int = 1,
) -> dict[str, Tensor]:
    """Return the new model, ``x``, and the new moments: the formulas of csrc/math/optimizers.h.

    They are computed in the type of the vectors, operation by operation. In float32 they have the kernels' bits.
    """
    b1, b2 = betas
    root_scale = 1.0
    if weight_decay and decoupled_weight_decay:
        x = (1.0 - lr * weight_decay) * x
    elif weight_decay:
        d = d - weight_decay * x
    ends = (correction or 0) % period == 0
    if correction is not None and period == 1:
        lr = lr / (1.0 - b1**correction)
        root_scale = 1.0 / math.sqrt(1.0 - b2**correction)
        eps_root = eps_root * (1.0 - b2**correction)
    new: dict[str, Tensor] = {}
    if optimizer == "sgd":
        return {"x": x + lr * d}
    if optimizer == "momentum":
        new["m"] = b1 * state["m"] + d
        return {"x": x + lr * new["m"], **new}
    if optimizer == "nesterov":
        new["m"] = b1 * state["m"] + (1.0 - b2) * d
        return {"x": x + lr * (d + b1 * new["m"]), **new}
    if optimizer == "delayed":
        total, along = state["v"] + d, (1.0 / period) * d
        if not ends:
            return {"x": x + lr * along, "m": state["m"], "v": total}
        new["m"] = b1 * state["m"] + (1.0 / period) * total
        return {"x": x + lr * (along + b1 * new["m"]), "v": torch.zeros_like(total), **new}
    new["m"] = m = b1 * state["m"] + (1.0 - b1) * d
    square = d * d
    if optimizer == "adagrad":
        v = state["v"] + square
    elif optimizer == "yogi":
        v = state["v"] - ((1.0 - b2) * square) * torch.sign(state["v"] - square)
    else:
        v = b2 * state["v"] + (1.0 - b2) * square
    new["v"] = second = v
    if optimizer == "amsgrad":
        new["vhat"] = second = torch.maximum(state["vhat"], v)
    if optimizer == "lookahead":
        m = b1 * m + (1.0 - b1) * d
    root = (
        (second + eps_root).to(_F64).sqrt().to(second.dtype)
    )  # torch's root of a float32 is not always the nearest float32
    return {"x": x + (lr * m) / (root * root_scale + eps), **new}


def _coded_step(
    x: Tensor,
    update: Tensor | list[Tensor] | Pieces,
    codes: dict[str, Tensor],
    units: Tensor,
    rounding: tuple[int, int],
    how: dict[str, Any],
    along: dict[str, Any],
) -> Tensor:
    """Step with the values of the codes, then encode the new ones."""
    size = x.numel()
    whole = codes["m"].numel()
    held: dict[str, Any] = {
        name: decode(code, units[int(name != "m")], name == "m").to(_F64) for name, code in codes.items()
    }
    found = step_(x, update, **how, **along, **{name: values[:size] for name, values in held.items()})
    rest = torch.zeros(whole - size, dtype=_F64, device=x.device)  # the padding of the last block
    step_(rest, rest.to(torch.float32), **how, **{name: values[size:] for name, values in held.items()})
    for row, name in enumerate(("m", "vhat" if "vhat" in held else "v")[: len(units)]):
        units[row].copy_(units_of(held[name].to(torch.float32), SPANS[name]))
    bits = {key: drawn.to(x.device) for key, drawn in random_bits(*rounding, whole).items()}
    for name, code in codes.items():
        signed = name == "m"
        code.copy_(
            encode(held[name].to(torch.float32), units[0 if signed else 1], bits["m" if signed else "v"], signed)
        )
    return found
