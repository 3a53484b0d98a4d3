"""Which node trains next, and which of the server's clients it is."""

from __future__ import annotations

from collections.abc import Iterable, Set
from typing import Any

from fastagg.integrations.flower.tasks import log


class Nodes:
    """Nodes that come and go. The one that has waited longest is next.

    Args:
        num_clients: n, where the rule keeps something of each client: nodes are then the clients 0..n-1, in the order
            they come, and a new one takes the number of one that has left. None: a client is its node's id.
    """

    def __init__(self, num_clients: int | None) -> None:
        self._free = None if num_clients is None else list(range(num_clients))
        self._client: dict[int, int] = {}  # node -> its number
        self._last: dict[int, int] = {}  # node -> when it was last given a task, counted in tasks
        self._rest: dict[int, float] = {}  # node -> until when it is left alone
        self._given = 0

    def free(self, online: Iterable[int], busy: Set[int], room: int, now: float) -> list[tuple[int, int]]:
        """Up to ``room`` pairs (node, client) to send a task to."""
        here = set(online)
        idle = [node for node in here - busy if self._rest.get(node, now) <= now]
        chosen: list[tuple[int, int]] = []
        for node in sorted(idle, key=lambda node: (self._last.get(node, -1), node)):
            if len(chosen) >= room:
                break
            client = self._number(node, here | busy)
            if client is not None:
                chosen.append((node, client))
                self._given += 1
                self._last[node] = self._given
        return chosen

    def rest(self, node: int, until: float) -> None:
        """Leave a node alone for a while."""
        self._rest[node] = until

    def _number(self, node: int, here: Set[int]) -> int | None:
        if self._free is None or node in self._client:
            return self._client.get(node, node)
        if self._free:
            self._client[node] = self._free.pop(0)
        elif gone := [other for other in self._client if other not in here]:
            self._client[node] = self._client.pop(gone[0])
            log.info("fastagg: node %d is now client %d, which was node %d", node, self._client[node], gone[0])
        return self._client.get(node)

    def state_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {"clients": dict(self._client)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Inverse of :meth:`state_dict`."""
        self._client = dict(state.get("clients", {}))
        if self._free is not None:
            self._free = [number for number in self._free if number not in self._client.values()]
