"""Replays a run's events on another server."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

import fastagg
from fastagg.integrations import replies
from fastagg.integrations.session import Session
from fastagg.server.dispatch import Dispatch
from fastagg.server.server import Outcome

Event = tuple[Any, int, Any, Any]  # client, version it trained from, update, weight


def listen(heard: Callable[[fastagg.Server, Event], object], patch: pytest.MonkeyPatch | None = None) -> None:
    """Call ``heard`` with every trained model that a server takes in an integration, and with its server."""
    plain = replies.take

    def take(server: fastagg.Server, answers: Any, **how: Any) -> list[Outcome]:
        outcomes = plain(server, answers, **how)
        for (task, reply), outcome in zip(answers, outcomes, strict=True):
            if isinstance(outcome, fastagg.Receipt):
                fit = replies.fitted(server, task, reply)
                if replies._way(fit) in ("model", "delta"):
                    update = fit.arrays if fit.kind == "delta" else task.delta(fit.arrays)
                    heard(server, (task.client, task.version, update, fit.samples))
        return outcomes

    (patch or pytest.MonkeyPatch()).setattr(replies, "take", take)


def answered(session: Session, answers: Sequence[tuple[Any, Dispatch, replies.Reply]]) -> None:
    """What an adapter does with clients' replies to their tasks."""
    session.note([client for client, _, _ in answers], replies.take(session.server, [one[1:] for one in answers]))


def play(server: fastagg.Server, events: Sequence[Event], rounds: bool = False) -> None:
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
