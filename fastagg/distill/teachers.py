"""Every client's latest logits on the unlabelled set, and their mean (FedEcho, Algorithm 1, lines 5 and 14)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fastagg import ops
from fastagg._types import Move, State
from fastagg.storage import memory
from fastagg.storage.cache import ClientCache


class Put(NamedTuple):
    """A client's new logits, written to a slot that is not in use yet."""

    sum: Tensor  # over all clients, including the new logits
    heard: int
    # (object, attribute or index, value): assigning these makes the new logits the client's
    moves: list[Move]


class Teachers:
    """A row of ``rows*classes`` logits per client, and their running sum. An arrival costs O(rows*classes) for any n.

    A client's new row goes to a spare slot, and its old slot becomes the spare one. Nothing has changed until the moves
    are made. The sum is in fp64. So after a million changes it still equals the sum of all rows.

    Args:
        num_clients: n.
        rows, classes: the shape of the logits.
        format: the format of the rows, as in :class:`fastagg.ClientCache`.
        device: the rows' device.
        seed: the seed of the rounding.
    """

    def __init__(self, num_clients: int, rows: int, classes: int, format: str, device: torch.device, seed: int) -> None:
        self.rows, self.classes = rows, classes
        self.cache = ClientCache(rows * classes, num_clients + 1, format, device, seed)
        self.sum = torch.zeros(rows * classes, dtype=torch.float64, device=device)
        self.slots = [-1] * num_clients  # by client; -1: not heard from
        self.spare = 0
        self.used = 1  # slots that were written at least once, or are spare
        self.heard = 0  # the number of clients heard from
        self.arrivals = 0

    def put(self, client: int, logits: Tensor) -> Put:
        """Store a client's logits, [rows*classes] fp32, finite. They replace the old ones when the moves are made."""
        old = self.slots[client]
        stored = memory.zeros(self.cache.size, self.cache.device)
        ops.cached_step_(
            None, logits, cache=self.cache, write=self.spare, client=client, arrival=self.arrivals, sum=stored
        )  # a sum of zero takes what the row stores, exactly
        total = self.sum + stored
        if old >= 0:
            total -= ops.read_row(self.cache, old)
        heard = self.heard + (old < 0)
        moves: list[Move] = [
            (self, "sum", total), (self, "heard", heard), (self, "arrivals", self.arrivals + 1),
            (self.slots, client, self.spare), (self, "spare", old if old >= 0 else self.used),
            (self, "used", self.used + (old < 0)),
        ]  # fmt: skip
        return Put(total, heard, moves)

    def mean(self, put: Put, out: Tensor) -> ops.SoftTargets:
        """Return the targets from the mean of all clients' logits, including new ones. Probabilities go to ``out``,
        [rows, classes]."""
        logits = put.sum.to(torch.float32).view(self.rows, self.classes)
        return ops.soft_targets(logits, scale=1.0 / put.heard, out=out)

    def nbytes(self) -> int:
        """Return the bytes of the rows and their sum."""
        return self.cache.nbytes() + self.sum.nbytes

    def state_dict(self) -> State:
        """Return the state. Tensors may be shared."""
        clients = [client for client, slot in enumerate(self.slots) if slot >= 0]
        return {
            "cache": {**self.cache.state_dict([self.slots[client] for client in clients]), "slots": None},
            "clients": clients,
            "sum": self.sum, "arrivals": self.arrivals,
        }  # fmt: skip

    def load_state_dict(self, state: State) -> None:
        """Inverse of :meth:`state_dict`, for a new object. Tensors are copied."""
        clients = [int(client) for client in state["clients"]]
        rows = {**state["cache"], "slots": list(range(len(clients)))}
        if len(rows["data"]) != len(clients) or len(set(clients)) != len(clients):
            raise ValueError("logits of nobody, or of a client twice")
        if state["sum"].shape != self.sum.shape:
            raise ValueError(f"the logits' sum: expected {list(self.sum.shape)}, got {list(state['sum'].shape)}")
        self.cache.load_state_dict(rows)
        self.sum = state["sum"].to(self.sum.device, torch.float64, copy=True)
        for slot, client in enumerate(clients):
            self.slots[client] = slot
        self.spare, self.used, self.heard = len(clients), len(clients) + 1, len(clients)
        self.arrivals = int(state["arrivals"])
