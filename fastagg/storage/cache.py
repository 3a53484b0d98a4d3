"""A cache with rows of numbers for clients, in a small format. In its rows, ACE and ACED keep gradients, CA2FL keeps
updates, and FedEcho keeps logits."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import torch

from fastagg import _checks
from fastagg._build import native
from fastagg._types import State
from fastagg.errors import ConfigError
from fastagg.storage import memory

SCALE_BLOCK = native.scale_block  # the number of elements that share an fp32 scale (csrc/math/rows.h)
FORMATS = {name: bits for name, (bits, _) in native.row_formats.items()}  # format -> bits per element


class ClientCache:
    """A cache of ``slots`` rows of ``size`` elements, in one allocation.

    The formats are ``fp32``, ``bf16``, ``int8`` and ``int4``. An ``int8`` or ``int4`` row has an fp32 scale for every
    256 elements, which adds 1.6% (int8) or 3.1% (int4) to the row's bytes. Elements of all formats but fp32 are rounded
    stochastically and without bias (the ACE paper, F.3.3, for 8 bits). The rounding's random numbers follow from the
    seed, and from the numbers of the client, the arrival and the element. :func:`fastagg.ops.cached_step_` writes rows,
    and :func:`fastagg.ops.read_row` reads them.

    Args:
        size: d, the number of elements of a row.
        slots: the number of rows.
        format: ``fp32``, ``bf16``, ``int8`` or ``int4``.
        device: the rows' device.
        seed: the seed of the rounding.

    Attributes:
        data: all rows, [slots, bytes of a row] uint8. Rows are padded to whole scale blocks.
        scales: all scales, [slots, scale blocks] fp32. Empty for fp32 and bf16.

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
        blocks = -(-size // SCALE_BLOCK)
        self.row_bytes = blocks * SCALE_BLOCK * FORMATS[format] // 8
        self.row_scales = blocks if native.row_formats[format][1] else 0
        _refuse_if_larger_than_memory(self.nbytes(), slots, size, format, self.device)
        self.data = memory.empty_bytes(slots * self.row_bytes, self.device, recycle=False).view(slots, self.row_bytes)
        scales = memory.empty(slots * self.row_scales, self.device)
        if self.data.is_cuda:  # kernels also load unwritten rows (with weight 0), which a memory checker would report
            self.data.zero_(), scales.zero_()
        self.scales = scales.view(slots, self.row_scales)
        self.native = native.Rows(
            format=format, size=size, slots=slots, data=self.data.data_ptr(), scales=self.scales.data_ptr()
        )

    def nbytes(self) -> int:
        """Return the bytes of all rows and scales."""
        return self.slots * (self.row_bytes + 4 * self.row_scales)

    if not TYPE_CHECKING:  # hidden from type checkers, so that they still find a misspelt attribute

        def __getattr__(self, name: str) -> object:
            raise _checks.no_attribute(self, name)

    def state_dict(self, slots: list[int], *, data: bool = True) -> State:
        """Return the state: the format, and the rows of ``slots``, the slots in use. If all slots are in use, the rows
        are not copied. ``data``: whether to include the rows themselves."""
        if not data:
            return {"format": self.format, "slots": list(slots), "data": None, "scales": None}
        whole = slots == list(range(self.slots))
        index = torch.tensor(slots, dtype=torch.int64, device=self.device)
        return {
            "format": self.format,
            "slots": list(slots),
            "data": self.data if whole else self.data.index_select(0, index),
            "scales": self.scales if whole else self.scales.index_select(0, index),
        }

    def load_state_dict(self, state: State) -> None:
        """Load a result of :meth:`state_dict` with rows. Rows of other slots do not change.

        Raises:
            ValueError: the rows have another format or length, or are not finite.
        """
        if state["format"] != self.format:
            raise ValueError(f"cached updates are {state['format']}, this cache holds {self.format}")
        shape = (len(state["slots"]), self.row_bytes)
        if tuple(state["data"].shape) != shape:
            raise ValueError(f"expected cached updates of shape {list(shape)}, got {list(state['data'].shape)}")
        numbers = [state["scales"]]
        if not self.row_scales:  # fp32 or bf16. The rows' padding is left out, because it was never written.
            dtype = torch.float32 if self.format == "fp32" else torch.bfloat16
            numbers.append(state["data"].view(dtype)[:, : self.size])
        if not all(bool(torch.isfinite(part).all()) for part in numbers):
            raise ValueError("cached updates hold NaN or infinity")
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
            f"a {format} cache of {slots} updates of {size} parameters needs {needed / 1e9:.2f} GB, and {device} has "
            f"{available / 1e9:.2f} GB free; use a smaller format or fewer clients"
        )
