"""Every client's latest logits on the unlabelled set, and their mean (FedEcho, Algorithm 1, lines 5 and 14)."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from fastagg import ops
from fastagg.storage import memory
from fastagg.storage.cache import ClientCache


class Put(NamedTuple):
    """A client's new logits, written where nobody looks yet."""

    sum: Tensor  # over all clients, with them
    heard: int
    moves: list[tuple[Any, Any, Any]]  # (object, attribute or index, value): what makes them the client's


class Teachers:
    """A row of ``rows*classes`` logits per client, and their running sum: O(rows*classes) an arrival, whatever n is.

    A client's new row goes to a spare slot, and the client's old slot is the next spare one: until the moves are made
    nothing has changed. The sum is in fp64, so that a million changes leave it where adding up all rows would.

    Args:
        num_clients: n.
        rows, classes: of the logits.
        format: of the rows, as :class:`fastagg.ClientCache` has them.
        device: where they live.
        seed: of the rounding.
    """

    def __init__(self, num_clients: int, rows: int, classes: int, format: str, device: torch.device, seed: int) -> None:
        self.rows, self.classes = rows, classes
        self.cache = ClientCache(rows * classes, num_clients + 1, format, device, seed)
        self.sum = torch.zeros(rows * classes, dtype=torch.float64, device=device)
        self.slots = [-1] * num_clients  # of the clients heard from
        self.spare = 0
        self.used = 1  # slots that were ever written, or are spare
        self.heard = 0  # number of clients heard from
        self.arrivals = 0

    def put(self, client: int, logits: Tensor) -> Put:
        """A client's logits, [rows*classes] fp32, finite: what would take the place of its old ones."""
        old = self.slots[client]
        stored = memory.zeros(self.cache.size, self.cache.device)
        ops.cached_step_(
            None, logits, cache=self.cache, write=self.spare, client=client, arrival=self.arrivals, sum=stored
        )  # a sum of zero takes what the row stores, exactly
        total = self.sum + stored
        if old >= 0:
            total -= ops.read_row(self.cache, old)
        heard = self.heard + (old < 0)
        moves: list[tuple[Any, Any, Any]] = [
            (self, "sum", total), (self, "heard", heard), (self, "arrivals", self.arrivals + 1),
            (self.slots, client, self.spare), (self, "spare", old if old >= 0 else self.used),
            (self, "used", self.used + (old < 0)),
        ]  # fmt: skip
        return Put(total, heard, moves)

    def mean(self, put: Put, out: Tensor) -> ops.SoftTargets:
        """What the mean of all clients' logits says, new ones among them; probabilities go to ``out``,
        [rows, classes]."""
        logits = put.sum.to(torch.float32).view(self.rows, self.classes)
        return ops.soft_targets(logits, scale=1.0 / put.heard, out=out)

    def nbytes(self) -> int:
        """Bytes of the rows and their sum."""
        return self.cache.nbytes() + self.sum.nbytes

    def state_dict(self) -> dict[str, Any]:
        """Tensors may be shared."""
        clients = [client for client, slot in enumerate(self.slots) if slot >= 0]
        return {
            "cache": {**self.cache.state_dict([self.slots[client] for client in clients]), "slots": None},
            "clients": clients,
            "sum": self.sum, "arrivals": self.arrivals,
        }  # fmt: skip

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Inverse of :meth:`state_dict`, into a new one; tensors are copied."""
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
