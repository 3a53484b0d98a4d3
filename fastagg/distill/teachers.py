"""Every client's latest logits for the unlabelled data, and their mean (FedEcho, Algorithm 1, lines 5 and 14)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fastagg import ops
from fastagg._types import Move, State
from fastagg.storage import memory
from fastagg.storage.cache import ClientCache
from fastagg.storage.cell import SwapCell


class LogitsTotal(NamedTuple):
    """The sum of all clients' logits, and the numbers that belong to the sum."""

    sum: Tensor
    heard: int = 0  # the number of clients that have sent logits
    arrivals: int = 0
    spare: int = 0  # the slot to write next
    used: int = 1  # the number of slots that were written at least once, or are spare


class LogitsWrite(NamedTuple):
    """A client's new logits, which are in a slot that nobody reads yet."""

    after: LogitsTotal
    moves: list[Move]  # the changes that make the new logits the client's


class Teachers:
    """A row of ``rows*classes`` logits per client, and their running sum. An arrival costs O(rows*classes) for any n.

    A client's new row goes to the spare slot, and the client's old slot becomes the spare one. Nothing changes until
    the moves are made. The sum is in fp64, so even after a million changes it equals the sum of all rows.

    Args:
        num_clients: n.
        rows, classes: the shape of the logits.
        format: the format of the rows, as in :class:`fastagg.ClientCache`.
        device: the rows' device.
        seed: the seed of the rounding.
    """

    now = SwapCell[LogitsTotal]()

    def __init__(self, num_clients: int, rows: int, classes: int, format: str, device: torch.device, seed: int) -> None:
        self.rows, self.classes = rows, classes
        self.cache = ClientCache(rows * classes, num_clients + 1, format, device, seed)
        self.slots = np.full(num_clients, -1, dtype=np.int64)  # by client: its slot, or -1 before its first logits
        self.now = LogitsTotal(torch.zeros(rows * classes, dtype=torch.float64, device=device))

    def put(self, client: int, logits: Tensor) -> LogitsWrite:
        """Store a client's logits, [rows*classes] fp32, finite. When the moves are made, they replace the client's
        old logits."""
        now, old = self.now, int(self.slots[client])
        stored = memory.zeros(self.cache.size, self.cache.device)
        ops.cached_step_(
            None, logits, cache=self.cache, write=now.spare, client=client, arrival=now.arrivals, sum=stored
        )  # adding the row to a sum of zero gives exactly what the row stores
        total = now.sum + stored
        if old >= 0:
            total -= ops.read_row(self.cache, old)
        spare = old if old >= 0 else now.used
        after = LogitsTotal(total, now.heard + (old < 0), now.arrivals + 1, spare, now.used + (old < 0))
        return LogitsWrite(after, [(self, "now", after), (self.slots, client, now.spare)])

    def mean(self, put: LogitsWrite, out: Tensor) -> ops.SoftTargets:
        """Return the targets from the mean of all clients' logits, including those in ``put``. Probabilities go to
        ``out``, [rows, classes]."""
        logits = put.after.sum.to(torch.float32).view(self.rows, self.classes)
        return ops.soft_targets(logits, scale=1.0 / put.after.heard, out=out)

    def nbytes(self) -> int:
        return self.cache.nbytes() + self.now.sum.nbytes

    def state_dict(self) -> State:
        """Return the state. Tensors may be shared."""
        clients = np.flatnonzero(self.slots >= 0).tolist()
        return {
            "cache": {**self.cache.state_dict(self.slots[clients].tolist()), "slots": None},
            "clients": clients,
            "sum": self.now.sum, "arrivals": self.now.arrivals,
        }  # fmt: skip

    def load_state_dict(self, state: State) -> None:
        """Inverse of :meth:`state_dict`, for a new object. Tensors are copied."""
        clients = [int(client) for client in state["clients"]]
        rows = {**state["cache"], "slots": list(range(len(clients)))}
        if len(rows["data"]) != len(clients) or len(set(clients)) != len(clients):
            raise ValueError("logits of nobody, or of a client twice")
        own = self.now.sum
        if state["sum"].shape != own.shape:
            raise ValueError(f"the logits' sum: expected {list(own.shape)}, got {list(state['sum'].shape)}")
        self.cache.load_state_dict(rows)
        total = state["sum"].to(own.device, torch.float64, copy=True)
        for slot, client in enumerate(clients):
            self.slots[client] = slot
        self.now = LogitsTotal(total, len(clients), int(state["arrivals"]), len(clients), len(clients) + 1)
