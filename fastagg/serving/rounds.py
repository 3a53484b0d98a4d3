"""A synchronous round whose result does not depend on the order its updates arrive in: they wait for each other."""

from __future__ import annotations

from typing import Any

import torch

from fastagg.layout import Layout, Parsed
from fastagg.parts.directions import Arrival
from fastagg.storage.pieces import Pieces, as_tensor

Entry = tuple[Arrival, Parsed]


class Round:
    """The updates of one round, copied, each in the type it came in."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []

    def keep(self, arrival: Arrival, parsed: Parsed) -> None:
        """Copy an update, its buffers and counters: the client's memory may be used again."""
        buffers = None if parsed.buffers is None else _copied(parsed.buffers)
        counters = None if parsed.counters is None else [counter.clone() for counter in parsed.counters]
        self.entries.append((arrival._replace(update=_copied(arrival.update)), Parsed(Pieces([]), buffers, counters)))

    def in_order(self, *last: Entry) -> list[Entry]:
        """What is kept, and ``last``, by the clients' ids: whole numbers first, then names."""
        return sorted([*self.entries, *last], key=lambda entry: (isinstance(entry[0].client, str), entry[0].client))

    def nbytes(self) -> int:
        """Bytes of the updates kept."""
        return sum(o.numel() * o.element_size() for arrival, _ in self.entries for o in arrival.update.owners)

    def state_dict(self) -> list[dict[str, Any]]:
        """Plain data and tensors; tensors are shared."""
        return [
            {
                **{key: getattr(arrival, key) for key in ("client", "gain", "weight", "share")},
                "update": arrival.update.owners,
                "buffers": None if parsed.buffers is None else parsed.buffers.owners,
                "counters": parsed.counters,
            }
            for arrival, parsed in self.entries
        ]

    def load_state_dict(self, state: list[dict[str, Any]], version: int, layout: Layout, device: torch.device) -> None:
        """Inverse of :meth:`state_dict`, in the round of ``version``; tensors are copied.

        Raises:
            ValueError: an update is not of ``layout``'s model.
        """
        for kept in state:
            update, buffers = Pieces(kept["update"]), None if kept["buffers"] is None else Pieces(kept["buffers"])
            if update.size != layout.size or (buffers is not None and buffers.size != layout.buffer_size):
                raise ValueError("an update that waits for its round is not of this model")
            numbers = float(kept["gain"]), float(kept["weight"]), float(kept["share"])
            arrival = Arrival(kept["client"], update.to(device), version, version, *numbers, None, 0.0, None)
            self.keep(arrival, Parsed(Pieces([]), buffers, kept["counters"]))


def _copied(pieces: Pieces) -> Pieces:
    return Pieces([as_tensor(owner).detach().clone() for owner in pieces.owners])
