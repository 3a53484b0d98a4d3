"""The moments of a running server's optimizer, in fp32 or in one byte each (csrc/math/moments.h)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fastagg import ops
from fastagg._build import native
from fastagg.ops.checks import MOMENT_BLOCK, OPTIMIZERS, address, moment_blocks
from fastagg.parts.optimizers import Optimizer
from fastagg.storage import memory

_SERVER = 2**32 - 1  # a key that separates the rounding of moments from that of clients' rows


def zeros(optimizer: str, format: str, size: int, device: torch.device | str = "cpu") -> dict[str, Tensor]:
    """The moments of ``optimizer`` for ``size`` parameters before the first step: keywords of
    :func:`fastagg.ops.step_`.

    With ``8bit`` each is uint8, padded to whole blocks of 256. ``units`` [1 or 2, blocks] holds the blocks' scales: one
    row for ``m``, and one for ``v`` and ``vhat`` together.
    """
    device, names = torch.device(device), OPTIMIZERS[optimizer]
    if format == "fp32" or not names:
        return {name: memory.zeros(size, device) for name in names}
    blocks, rows = moment_blocks(size), 2 if "v" in names else 1
    held = {name: memory.empty_bytes(blocks * MOMENT_BLOCK, device).zero_() for name in names}
    return {**held, "units": memory.zeros(rows * blocks, device).view(rows, blocks)}


class OptimizerState:
    """The moments of one optimizer, or the state that a user's own optimizer returned last.

    Args:
        optimizer: the settings.
        size: d.
        device: the device of the moments.
        seed: seed for rounding 8-bit moments.
    """

    def __init__(self, optimizer: Optimizer, size: int, device: torch.device, seed: int = 0) -> None:
        self.optimizer, self.size, self.device, self.seed = optimizer, size, device, seed
        own = optimizer.has_own_step
        self.tensors = {} if own else zeros(optimizer.kernel, optimizer.moment_format, size, device)

    def copy(self) -> OptimizerState:
        """A copy in new memory."""
        fresh = OptimizerState.__new__(OptimizerState)
        fresh.__dict__.update(self.__dict__, tensors={name: tensor.clone() for name, tensor in self.tensors.items()})
        return fresh

    def struct(self) -> Any:
        """The moments as kernels take them (csrc/plan.h)."""
        held = self.tensors
        if self.optimizer.has_own_step:
            return native.Moments()
        m, v, vhat = (address(held.get(name)) for name in ("m", "v", "vhat"))
        if "units" not in held:
            return native.Moments(m=m, v=v, vhat=vhat)
        return native.Moments.coded(
            m=m, v=v, vhat=vhat, units=held["units"].data_ptr(), blocks=moment_blocks(self.size),
            key=native.RandomKey(seed=self.seed, step=0, client=_SERVER),
        )  # fmt: skip

    def bounds(self, norms: Any = ops) -> tuple[float, float]:
        """The largest magnitudes that elements of ``m`` and of ``v`` can have, ``norms`` having ``inspect``."""
        names = {"m": ("m",), "v": ("v", "vhat")}
        if "units" in self.tensors:
            # The largest codes mean less than these multiples of a block's unit (csrc/math/moments.h).
            units = [float(row.max()) if row.numel() else 0.0 for row in self.tensors["units"]]
            return 2.0**17 * units[0], 2.0**33 * units[-1]
        found = [max([norms.inspect(self.tensors[n]).norm for n in group if n in self.tensors], default=0.0)
                 for group in names.values()]  # fmt: skip
        return found[0], found[1]

    def finite(self) -> bool:
        """Whether all numbers are finite."""
        held = [tensor for tensor in self.tensors.values() if tensor.is_floating_point()]
        return all(bool(torch.isfinite(tensor).all()) for tensor in held)

    def load(self, theirs: dict[str, Tensor]) -> None:
        """Copy the moments of another server.

        Raises:
            ValueError: the shape or type differs.
        """
        if self.optimizer.has_own_step:
            self.tensors = {str(name): tensor.to(self.device, copy=True) for name, tensor in theirs.items()}
            return
        found = {}
        for name, like in self.tensors.items():
            given = theirs[name]
            if given.shape != like.shape or given.dtype != like.dtype:
                raise ValueError(
                    f"{name}: expected {like.dtype} {list(like.shape)}, got {given.dtype} {list(given.shape)}"
                )
            fresh = memory.empty_bytes(like.numel() * like.element_size(), like.device)
            found[name] = fresh.view(like.dtype).view(like.shape).copy_(given)
        self.tensors = found
