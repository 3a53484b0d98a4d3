"""Which node trains next, and the client id of each node."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence, Set

from fastagg._types import State
from fastagg.errors import ConfigError
from fastagg.integrations.flower.tasks import log

Choose = Callable[[Sequence[int], int], Iterable[int]]


class Nodes:
    """Nodes that come and go. The one that has waited longest is next.

    Args:
        num_clients: n, if the rule keeps a row for each client. Nodes then get the client ids 0..n-1 in order of
            appearance, and a new node takes the id of one that has left. None: the client id is the node's id.
        choose: ``choose(free, version)`` gets the free nodes, longest waiting first, and returns those that get this
            version, in order.
    """

    def __init__(self, num_clients: int | None, choose: Choose | None = None) -> None:
        self._free = None if num_clients is None else list(range(num_clients))
        self._choose = choose
        self._client: dict[int, int] = {}  # node -> its number
        self._last: dict[int, int] = {}  # node -> when it was last given a task, counted in tasks
        self._given = 0
        self._unused: set[int] = set()  # for whom there is no number

    def free(self, idle: Iterable[int], here: Set[int], room: int, version: int) -> list[tuple[int, int]]:
        """Up to ``room`` pairs (node, client) to send ``version`` to.

        Args:
            idle: nodes that could get a task.
            here: nodes that are online or have a task. Their ids are not given to others.

        Raises:
            ConfigError: ``choose`` returned another node.
        """
        waiting = sorted(idle, key=lambda node: (self._last.get(node, -1), node))
        if room <= 0 or not waiting:
            return []
        if self._choose is not None:
            asked, known = list(self._choose(tuple(waiting), version)), set(waiting)
            if not known.issuperset(asked) or len(set(asked)) != len(asked):
                raise ConfigError(f"choose: expected some of the free nodes {waiting}, each once, got {asked}")
            waiting = asked
        chosen: list[tuple[int, int]] = []
        for node in waiting:
            if len(chosen) >= room:
                break
            client = self._number(node, here)
            if client is not None:
                chosen.append((node, client))
                self._given += 1
                self._last[node] = self._given
        return chosen

    def _number(self, node: int, here: Set[int]) -> int | None:
        if self._free is None or node in self._client:
            return self._client.get(node, node)
        if self._free:
            self._client[node] = self._free.pop(0)
        elif gone := [other for other in self._client if other not in here]:
            self._client[node] = self._client.pop(gone[0])
            log.info("fastagg: node %d is now client %d, which was node %d", node, self._client[node], gone[0])
        elif node not in self._unused:
            self._unused.add(node)
            log.warning(
                "fastagg: node %d gets no task: the rule has num_clients=%d, and all are taken", node, len(self._client)
            )
        return self._client.get(node)

    def state_dict(self) -> State:
        return {"clients": dict(self._client)}

    def load_state_dict(self, state: State) -> None:
        self._client = dict(state.get("clients", {}))
        if self._free is not None:
            self._free = [number for number in self._free if number not in self._client.values()]
