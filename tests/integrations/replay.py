"""Replays a run's events on another server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import fastagg


def play(server: fastagg.Server, events: Sequence[tuple[Any, int, Any, Any]], rounds: bool = False) -> None:
    """Send every task from its version, and receive every update in its order.

    Args:
        server: a server in the state before the first event.
        events: client, version it trained from, update, weight, in order of arrival.
        rounds: whether a round is closed when the first update of the next one comes, and after the last update.
    """
    ahead: dict[Any, list[int]] = {}
    for client, version, _, _ in events:
        ahead.setdefault(client, []).append(version)
    busy: set[Any] = set()
    for client, version, update, weight in events:
        if rounds and version > server.version:
            server.close_round()
        for idle in ahead.keys() - busy:
            if ahead[idle] and ahead[idle][0] == server.version:
                server.dispatch(idle)
                busy.add(idle)
        server.receive(client, update, version, weight)
        busy.remove(client)
        ahead[client].pop(0)
    if rounds:
        server.close_round()
