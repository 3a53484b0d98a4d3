"""A row per client, stored small: what ACE, ACED, CA2FL and FedEcho remember of every client."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import Tensor

from fastagg import _checks, memory
from fastagg._build import native
from fastagg.errors import ConfigError

SCALE_BLOCK = 256  # elements that share one fp32 scale; csrc/math/quantise.h
FORMATS = {"fp32": 32, "bf16": 16, "int8": 8, "int4": 4}  # bits per element, in csrc/math/quantise.h's order


class ClientCache:
    """``slots`` rows of ``size`` elements in one allocation.

    Formats: ``fp32``; ``bf16``; ``int8`` and ``int4`` with one fp32 scale for every 256 elements (1.6% and 3.1% of the
    row). All but fp32 are rounded stochastically and without bias, from a counter-based generator keyed by seed,
    client, arrival and element (paper 002, F.3.3, for 8 bits). Rows are written by :func:`fastagg.ops.cached_step_`
    and read with :meth:`row`.

    Args:
        size: d, elements of a row.
        slots: number of rows.
        format: ``fp32``, ``bf16``, ``int8`` or ``int4``.
        device: where the rows live.
        seed: of the rounding.

    Attributes:
        data: all rows, [slots, bytes of a row] uint8; rows are padded to whole scale blocks.
        scales: [slots, scale blocks] fp32; empty for fp32 and bf16.

    Raises:
        ConfigError: a setting is out of range, or the cache does not fit into memory (checked before allocating).
    """

    def __init__(
        self, size: int, slots: int, format: str = "fp32", device: torch.device | str = "cpu", seed: int = 0
    ) -> None:
        _checks.whole("slots", slots, least=1)
        _checks.one_of("cache", format, tuple(FORMATS))
        self.size, self.slots, self.format, self.seed = size, slots, format, seed
        self.device = torch.device(device)
        self.code = list(FORMATS).index(format)
        blocks = -(-size // SCALE_BLOCK)
        self.row_bytes = blocks * SCALE_BLOCK * FORMATS[format] // 8
        self.row_scales = blocks if format in ("int8", "int4") else 0
        _refuse_if_larger_than_memory(self.nbytes(), slots, size, format, self.device)
        self.data = memory.empty_bytes(slots * self.row_bytes, self.device, recycle=False).view(slots, self.row_bytes)
        scales = memory.empty(slots * self.row_scales, self.device)
        self.scales = scales.view(slots, self.row_scales)
        self.native = native.Rows(
            self.code, self.data.data_ptr(), self.scales.data_ptr(), self.row_bytes, self.row_scales
        )

    def nbytes(self) -> int:
        """Bytes of all rows and scales."""
        return self.slots * (self.row_bytes + 4 * self.row_scales)

    def row(self, slot: int) -> Tensor:
        """Row ``slot`` as it is used everywhere, dequantised: [d] fp32, a copy.

        Only rows that were written mean anything.
        """
        from fastagg import ops

        return ops.read_row(self, slot)

    def state_dict(self, slots: list[int]) -> dict[str, Any]:
        """The rows in ``slots``, which are those in use; where that is all of them, not copied."""
        whole = slots == list(range(self.slots))
        index = torch.tensor(slots, dtype=torch.int64, device=self.device)
        return {
            "format": self.format,
            "slots": list(slots),
            "data": self.data if whole else self.data.index_select(0, index),
            "scales": self.scales if whole else self.scales.index_select(0, index),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Inverse of :meth:`state_dict`.

        Raises:
            ValueError: rows of another format or length.
        """
        if state["format"] != self.format:
            raise ValueError(f"rows are {state['format']}, this cache holds {self.format}")
        shape = (len(state["slots"]), self.row_bytes)
        if tuple(state["data"].shape) != shape:
            raise ValueError(f"expected rows of shape {list(shape)}, got {list(state['data'].shape)}")
        index = torch.tensor(state["slots"], dtype=torch.int64, device=self.device)
        self.data.index_copy_(0, index, state["data"].to(self.device))
        self.scales.index_copy_(0, index, state["scales"].to(self.device))


def _refuse_if_larger_than_memory(needed: int, slots: int, size: int, format: str, device: torch.device) -> None:
    if device.type == "cuda":
        available = torch.cuda.mem_get_info(device)[0]
    else:
        try:
            with open("/proc/meminfo") as info:
                available = next(int(line.split()[1]) * 1024 for line in info if line.startswith("MemAvailable"))
        except (OSError, StopIteration):
            try:
                available = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
            except (ValueError, OSError):
                return
    if needed > available:
        raise ConfigError(
            f"a {format} cache of {slots} rows of {size} parameters needs {needed / 1e9:.2f} GB, and {device} has "
            f"{available / 1e9:.2f} GB free; use a smaller format or fewer clients"
        )


class RunningSum:
    """A sum over clients that is updated at every arrival and does not drift (csrc/math/running_sum.h).

    ``total = high + low*ulp(high)/256``: each change is added exactly and only the low byte rounds.

    Args:
        size: d.
        device: where it lives.

    Attributes:
        high: [d] fp32, the sum rounded to fp32.
        low: [d] int8, what rounding cut off.
    """

    def __init__(self, size: int, device: torch.device | str = "cpu") -> None:
        self.high = memory.zeros(size, device)
        self.low = memory.empty_bytes(size, device).zero_().view(torch.int8)

    def nbytes(self) -> int:
        """Bytes of both parts."""
        return self.high.numel() * 5

    def total(self) -> Tensor:
        """The sum in float64, [d]."""
        return self.high.to(torch.float64) + self.low.to(torch.float64) * self._unit()

    def settle(self, total: Tensor, part: slice = slice(None)) -> None:
        """Set the sum, or a part of it, to float64 ``total``."""
        self.high[part] = total.to(torch.float32)
        rest = (total - self.high[part].to(torch.float64)) / self._unit()[part]
        self.low[part] = rest.round().clamp(-127, 127).to(torch.int8)

    def zero_(self) -> None:
        """Set the sum to exactly zero."""
        self.high.zero_()
        self.low.zero_()

    def _unit(self) -> Tensor:
        exponent = (self.high.view(torch.int32) >> 23 & 255).clamp_min(32).to(torch.float64)
        return torch.exp2(exponent - 127 - 31)

    def state_dict(self) -> dict[str, Tensor]:
        """Tensors are shared, not copied."""
        return {"high": self.high, "low": self.low}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Inverse of :meth:`state_dict`; tensors are copied."""
        self.high.copy_(state["high"])
        self.low.copy_(state["low"])
