"""Shared by the kernel tests: sizes, vectors, and the kernels' specification in float32.

`spec_step` does the operations of csrc/math/optimizers.h in the same order in IEEE float32, so a kernel must equal it
bit for bit. `tests/support/model.py` has the rules' formulas, in float64, which servers are compared with.
"""

import numpy as np
import torch

from fastagg.ops import OPTIMIZERS
from support.reference.step import advance

# Sizes around those at which loops change: empty, vectors, prefetch strides, blocks (1,024), groups (65,536).
SIZES = (0, 1, 3, 15, 16, 17, 41, 63, 64, 65, 401, 1023, 1024, 1025, 2048, 4097, 65535, 65536, 65537, 200003)
BETAS = (0.9, 0.99)
# What may stand beside the rates of any optimizer.
DECAYS: tuple[dict[str, float], ...] = (
    {},
    {"weight_decay": 0.3},
    {"weight_decay": 0.3, "decoupled_weight_decay": True},
    {"eps_root": 1e-4, "weight_decay": 0.01},
)


def vector(size: int, seed: int, scale: float = 1.0, offset: int = 0) -> torch.Tensor:
    """A Gaussian fp32 vector that starts `offset` elements into its allocation (misaligned unless a multiple of 16)."""
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(size + offset, generator=generator) * scale)[offset:]


def extreme(size: int, seed: int) -> torch.Tensor:
    """Magnitudes log-uniform from the smallest denormal to 1e3, a tenth of them exactly zero."""
    rng = np.random.default_rng(seed)
    values = rng.choice([-1.0, 1.0], size) * 10.0 ** rng.uniform(-44.8, 3, size)
    values[rng.random(size) < 0.1] = 0.0
    return torch.from_numpy(values.astype(np.float32))


def moments(optimizer: str, size: int, seed: int, offset: int = 0) -> dict[str, torch.Tensor]:
    """Moments as in the middle of a run: v and vhat are not negative, and vhat >= v."""
    state = {"m": vector(size, seed, 1e-2, offset), "v": vector(size, seed + 1, 1e-2, offset).square()}
    state["vhat"] = torch.maximum(state["v"], vector(size, seed + 2, 1e-2, offset).square())
    return {name: state[name].contiguous() for name in OPTIMIZERS[optimizer]}


def bits(tensor: torch.Tensor) -> list[int]:
    """Bit patterns, so that -0.0 differs from 0.0 and NaN equals itself."""
    return tensor.contiguous().view(torch.int32).tolist()


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a.contiguous().view(torch.int32), b.contiguous().view(torch.int32))


def spec_step(
    x: torch.Tensor,
    update: torch.Tensor,
    optimizer: str,
    *,
    lr: float,
    betas: tuple[float, float] = BETAS,
    eps: float = 1e-8,
    correction: int | None = None,
    gain: float = 1.0,
    weight: float = 1.0,
    acc: torch.Tensor | None = None,
    scale: float = 1.0,
    base: torch.Tensor | None = None,
    eps_root: float = 0.0,
    weight_decay: float = 0.0,
    decoupled_weight_decay: bool = False,
    period: int = 1,
    **state: torch.Tensor,
) -> dict[str, torch.Tensor]:
    """Return new x and moments, computed operation by operation in float32."""
    f = np.float32
    x0, d = x.numpy(), update.numpy()
    if base is not None:
        d = f(weight) * ((base.numpy() - x0) + f(gain) * d)
    elif acc is not None:
        d = (acc.numpy() + f(f(gain) * f(weight)) * d) * f(scale)
    else:
        d = f(f(gain) * f(weight)) * d
    how = (lr, betas, eps, correction, eps_root, weight_decay, decoupled_weight_decay, period)
    return {**state, **advance(optimizer, x, torch.from_numpy(d), state, *how)}
