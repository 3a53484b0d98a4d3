"""One step of every optimizer, in plain torch: the formulas of csrc/math/optimizers.h."""

import math
from collections.abc import Mapping

import torch
from torch import Tensor


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
    """Return the new model, ``x``, and the new moments, computed in the type of the vectors, operation by operation.

    In float32 they have the kernels' bits.
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
    # torch's root of a float32 is not always the nearest float32
    root = (second + eps_root).to(torch.float64).sqrt().to(second.dtype)
    return {"x": x + (lr * m) / (root * root_scale + eps), **new}
