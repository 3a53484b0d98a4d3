"""Keeps every client's latest logits for the unlabelled data, and their mean (FedEcho, Algorithm 1, lines 5 and 14)."""

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
    """The sum of the clients' latest logits, and counts that change together with the sum."""

    sum: Tensor  # fp64, [rows*classes]
    heard: int = 0  # the number of clients that have logits
    arrivals: int = 0  # the number of updates whose logits have been stored
    spare: int = 0  # the cache's slot for the next logits
    used: int = 1  # the number of slots in use: one for each client with logits, and the spare slot


class LogitsWrite(NamedTuple):
    """A client's new logits. They are stored in the spare slot, and count after the changes in ``moves`` are made."""

    after: LogitsTotal  # the total with the new logits
    moves: list[Move]  # changes of attributes and of array elements


class Teachers:
    """Keeps ``rows*classes`` logits of each client, and their sum over the clients. A change costs O(rows*classes).

    A client's new logits are written to a spare slot of the cache. The client's old slot, if there is one, then becomes
    the spare slot. Until the moves of a :class:`LogitsWrite` are made, no result changes. The sum is in fp64, so that
    its rounding errors stay small after millions of changes.

    Args:
        num_clients: the number of clients.
        rows, classes: the shape of one client's logits.
        format: the format of the stored logits, as in :class:`fastagg.ClientCache`.
        device: the device of the logits and the sum.
        seed: the seed of the rounding.
    """

    now = SwapCell[LogitsTotal]()

    def __init__(self, num_clients: int, rows: int, classes: int, format: str, device: torch.device, seed: int) -> None:
        self.rows, self.classes = rows, classes
        self.cache = ClientCache(rows * classes, num_clients + 1, format, device, seed)
        self.slots = np.full(num_clients, -1, dtype=np.int64)  # by client: its slot, or -1 before its first logits
        self.now = LogitsTotal(torch.zeros(rows * classes, dtype=torch.float64, device=device))

    def put(self, client: int, logits: Tensor) -> LogitsWrite:
        """Store a client's logits, [rows*classes], fp32, finite, in the spare slot. They replace the client's old
        logits when the moves of the result are made."""
        now, old = self.now, int(self.slots[client])
        stored = memory.zeros(self.cache.size, self.cache.device)
        ops.cached_step_(
            None, logits, cache=self.cache, write=now.spare, client=client, arrival=now.arrivals, sum=stored
        )  # `stored` was zero, so it is now exactly the row that the cache holds, rounded to the format
        total = now.sum + stored
        if old >= 0:
            total -= ops.read_row(self.cache, old)
        spare = old if old >= 0 else now.used
        after = LogitsTotal(total, now.heard + (old < 0), now.arrivals + 1, spare, now.used + (old < 0))
        return LogitsWrite(after, [(self, "now", after), (self.slots, client, now.spare)])

    def mean(self, put: LogitsWrite, out: Tensor) -> ops.SoftTargets:
        """Return the student's targets from the mean of all clients' logits, including the logits of ``put``. The
        probabilities are written to ``out``, [rows, classes]."""
        logits = put.after.sum.to(torch.float32).view(self.rows, self.classes)
        return ops.soft_targets(logits, scale=1.0 / put.after.heard, out=out)

    def nbytes(self) -> int:
        return self.cache.nbytes() + self.now.sum.nbytes

    def state_dict(self) -> State:
        """Return the state. Its tensors may share this object's memory."""
        clients = np.flatnonzero(self.slots >= 0).tolist()
        return {
            "cache": {**self.cache.state_dict(self.slots[clients].tolist()), "slots": None},
            "clients": clients,
            "sum": self.now.sum, "arrivals": self.now.arrivals,
        }  # fmt: skip

    def load_state_dict(self, state: State) -> None:
        """Load a state that :meth:`state_dict` returned into a new object. Tensors are copied."""
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
