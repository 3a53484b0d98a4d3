"""Every client's latest logits on the unlabelled set, and their mean (paper 004, Algorithm 1, lines 5 and 14)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fastagg import ops
from fastagg.storage import memory
from fastagg.storage.cache import ClientCache


class Teachers:
    """A row of ``rows*classes`` logits per client, and their running sum: O(rows*classes) an arrival, whatever n is.

    Args:
        num_clients: n.
        rows, classes: of the logits.
        format: of the rows, as :class:`fastagg.storage.cache.ClientCache` has them.
        device: where they live.
        seed: of the rounding.
    """

    def __init__(self, num_clients: int, rows: int, classes: int, format: str, device: torch.device, seed: int) -> None:
        self.rows, self.classes = rows, classes
        self.cache = ClientCache(rows * classes, num_clients, format, device, seed)
        self.sum = memory.zeros(rows * classes, device)
        self.weights = torch.zeros(num_clients)  # 1 for the clients heard from
        self.arrivals = 0

    @property
    def heard(self) -> int:
        """Number of clients heard from."""
        return int(self.weights.sum())

    def put(self, client: int, logits: Tensor) -> None:
        """Replace a client's logits, [rows*classes] fp32, finite."""
        known = bool(self.weights[client])
        ops.cached_step_(
            None, logits, cache=self.cache, write=client, read=client if known else -1, client=client,
            arrival=self.arrivals, sum=self.sum, leaving=1.0 if known else 0.0,
        )  # fmt: skip
        self.weights[client] = 1.0
        self.arrivals += 1
        ops.refresh_sum_(self.sum, self.cache, self.weights, self.arrivals, self.cache.slots)

    def mean(self, out: Tensor) -> ops.SoftTargets:
        """What the mean of all clients' logits says; probabilities go to ``out``, [rows, classes]."""
        logits = self.sum.view(self.rows, self.classes)
        return ops.soft_targets(logits, scale=1.0 / self.heard, out=out)

    def snapshot(self, client: int) -> dict[str, Any]:
        """What :meth:`put` would change, to take it back with :meth:`restore`."""
        cache, total = self.cache, self.sum
        return {
            "client": client, "data": cache.data[client].clone(), "scales": cache.scales[client].clone(),
            "sum": total.clone(), "weight": float(self.weights[client]),
            "arrivals": self.arrivals,
        }  # fmt: skip

    def restore(self, kept: dict[str, Any]) -> None:
        """Undo the :meth:`put` that came after the snapshot."""
        client = kept["client"]
        self.cache.data[client].copy_(kept["data"])
        self.cache.scales[client].copy_(kept["scales"])
        self.sum.copy_(kept["sum"])
        self.weights[client], self.arrivals = kept["weight"], kept["arrivals"]

    def nbytes(self) -> int:
        """Bytes of the rows and their sum."""
        return self.cache.nbytes() + self.sum.nbytes

    def state_dict(self) -> dict[str, Any]:
        """Tensors may be shared."""
        slots = self.weights.nonzero().flatten().tolist()
        return {
            "cache": self.cache.state_dict(slots), "sum": self.sum, "weights": self.weights,
            "arrivals": self.arrivals,
        }  # fmt: skip

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Inverse of :meth:`state_dict`; tensors are copied."""
        self.cache.load_state_dict(state["cache"])
        self.sum.copy_(state["sum"])
        self.weights.copy_(state["weights"])
        self.arrivals = int(state["arrivals"])
