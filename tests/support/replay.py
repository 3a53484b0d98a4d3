"""Replays a run's events on another server."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

import fastagg
from fastagg._types import Plain
from fastagg.errors import FastaggError
from fastagg.integrations import replies
from fastagg.integrations.session import Book, OpenTask, Session
from fastagg.server.dispatch import Dispatch
from fastagg.server.server import Outcome

Event = tuple[Any, int, Any, Any]  # client, version it trained from, update, weight


def listen(heard: Callable[[fastagg.Server, Event], object], patch: pytest.MonkeyPatch | None = None) -> None:
    """Call ``heard`` with every update that a server takes in an integration, and with its server."""
    plain = Book.take

    def take(self: Book[Any, Any], answers: Any) -> list[Outcome]:
        outcomes = plain(self, answers)
        for (one, answer), outcome in zip(answers, outcomes, strict=True):
            if isinstance(outcome, fastagg.Receipt) and answer.control is None:
                update = one.task.delta(answer.update) if answer.kind == "model" else answer.update
                heard(self.server, (answer.client, answer.version, update, answer.num_samples))
        return outcomes

    (patch or pytest.MonkeyPatch()).setattr(Book, "take", take)


def answer(server: fastagg.Server, task: Dispatch, arrays: Any, told: Plain | None = None) -> Any:
    """What an adapter makes of a client's reply to its task: the arrays, and what they state besides."""
    told = dict(told or {})
    try:
        return replies.answer(server, task, arrays, told.pop("stated", {}), **told)
    except FastaggError as error:
        return error


def taken(server: fastagg.Server, *answers: tuple[Dispatch, Any] | tuple[Dispatch, Any, Plain]) -> list[Outcome]:
    """Pass replies to a server as an adapter does."""
    book = Book[Any, Any](server)
    return book.take([(OpenTask(task.client, task), answer(server, task, *reply)) for task, *reply in answers])


def answered(session: Session, answers: Sequence[tuple[Any, ...]]) -> None:
    """Pass trained models, by client, to a run."""
    open_tasks = [(OpenTask(client, task), task, sent) for client, task, *sent in answers]
    session.take([(held, answer(session.server, task, *sent), None) for held, task, sent in open_tasks])


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
