"""A synchronous round whose result does not depend on the order its updates arrive in: they wait for each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from fastagg.layout import Parsed
from fastagg.storage.pieces import Pieces, as_tensor

if TYPE_CHECKING:
    from fastagg.serving.server import Server


class Entry(NamedTuple):
    """One update that waits: numbers of its judgement, and ``parsed``, which is its own copy."""

    client: int | str
    version: int
    gain: float
    weight: float
    share: float
    norm: float
    parsed: Parsed

    def native(self) -> tuple[Any, ...]:
        """As the native road takes it."""
        return (self.parsed.parameters.native, self.version, self.gain, self.weight, self.share, self.norm)

    def state_dict(self) -> dict[str, Any]:
        """Plain data and tensors; tensors are shared."""
        numbers = {key: getattr(self, key) for key in ("client", "gain", "weight", "share", "norm")}
        return {
            **numbers, "update": self.parsed.parameters.owners,
            "buffers": None if self.parsed.buffers is None else self.parsed.buffers.owners,
            "counters": self.parsed.counters,
        }  # fmt: skip

    @classmethod
    def loaded(cls, state: dict[str, Any], server: Server, version: int) -> Entry:
        """Inverse of :meth:`state_dict`, in the round of ``version``; tensors are copied.

        Raises:
            ValueError: an update is not of the server's model.
        """
        layout = server.layout
        update, buffers = Pieces(state["update"]), None if state["buffers"] is None else Pieces(state["buffers"])
        if update.size != layout.size or (buffers is not None and buffers.size != layout.buffer_size):
            raise ValueError("an update that waits for its round is not of this model")
        gain, weight, share, norm = (float(state[key]) for key in ("gain", "weight", "share", "norm"))
        parsed = kept(Parsed(update.to(server.device), buffers, state["counters"]))
        return cls(state["client"], version, gain, weight, share, norm, parsed)


def kept(parsed: Parsed) -> Parsed:
    """A copy of an update, its buffers and counters: the client's memory may be used again."""
    buffers = None if parsed.buffers is None else _copied(parsed.buffers)
    counters = None if parsed.counters is None else [counter.clone() for counter in parsed.counters]
    return Parsed(_copied(parsed.parameters), buffers, counters)


def in_order(entries: Sequence[Entry]) -> list[Entry]:
    """By the clients' ids: whole numbers first, then names."""
    return sorted(entries, key=lambda entry: (isinstance(entry.client, str), entry.client))


def nbytes(entries: Sequence[Entry]) -> int:
    """Bytes of the updates kept."""
    return sum(o.numel() * o.element_size() for entry in entries for o in entry.parsed.parameters.owners)


def _copied(pieces: Pieces) -> Pieces:
    return Pieces([as_tensor(owner).detach().clone() for owner in pieces.owners])
