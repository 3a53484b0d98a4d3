"""A synchronous round whose result does not depend on the order of arrivals: updates wait until all have come."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from fastagg.layout import Parsed
from fastagg.storage.pieces import Pieces, as_tensor

if TYPE_CHECKING:
    from fastagg.serving.server import Server


class Entry(NamedTuple):
    """One waiting update: the numbers from its examination, and ``parsed``, a copy of its own."""

    client: int | str
    version: int
    gain: float
    weight: float
    share: float
    norm: float
    parsed: Parsed

    def native(self) -> tuple[Any, ...]:
        """Return the update in the form that the native road takes."""
        return (self.parsed.parameters.native, self.version, self.gain, self.weight, self.share, self.norm)

    def state_dict(self) -> dict[str, Any]:
        """Return plain data and tensors. Tensors are shared."""
        numbers = {key: getattr(self, key) for key in ("client", "gain", "weight", "share", "norm")}
        return {
            **numbers, "update": self.parsed.parameters.owners,
            "buffers": None if self.parsed.buffers is None else self.parsed.buffers.owners,
            "counters": self.parsed.counters,
        }  # fmt: skip

    @classmethod
    def loaded(cls, state: dict[str, Any], server: Server, version: int) -> Entry:
        """Inverse of :meth:`state_dict`, for the round of ``version``. Tensors are copied.

        Raises:
            ValueError: the update does not fit the server's model.
        """
        layout = server.layout
        update, buffers = Pieces(state["update"]), None if state["buffers"] is None else Pieces(state["buffers"])
        if update.size != layout.size or (buffers is not None and buffers.size != layout.buffer_size):
            raise ValueError("an update that waits for its round is not of this model")
        gain, weight, share, norm = (float(state[key]) for key in ("gain", "weight", "share", "norm"))
        parsed = kept(Parsed(update.to(server.device), buffers, state["counters"]))
        return cls(state["client"], version, gain, weight, share, norm, parsed)


def kept(parsed: Parsed) -> Parsed:
    """Return a copy of an update with its buffers and counters, so that the client may reuse its memory."""
    buffers = None if parsed.buffers is None else _copied(parsed.buffers)
    counters = None if parsed.counters is None else [counter.clone() for counter in parsed.counters]
    return Parsed(_copied(parsed.parameters), buffers, counters)


def in_order(entries: Sequence[Entry]) -> list[Entry]:
    """Sort by the clients' ids: whole numbers first, then names."""
    return sorted(entries, key=lambda entry: (isinstance(entry.client, str), entry.client))


def nbytes(entries: Sequence[Entry]) -> int:
    """Return the bytes of the kept updates."""
    return sum(o.numel() * o.element_size() for entry in entries for o in entry.parsed.parameters.owners)


def _copied(pieces: Pieces) -> Pieces:
    return Pieces([as_tensor(owner).detach().clone() for owner in pieces.owners])
