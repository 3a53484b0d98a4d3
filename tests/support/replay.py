"""Replays a run's events on another server."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

import fastagg
from fastagg._types import Plain
from fastagg.errors import FastaggError
from fastagg.integrations import replies
from fastagg.integrations.session import Book, Open, Session
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


def taken(server: fastagg.Server, *answers: tuple[Dispatch, Any] | tuple[Dispatch, Any, Plain]) -> list[Outcome]:
    """What an adapter does with clients' replies to their tasks: the arrays, and what they state besides."""

    def answer(task: Dispatch, arrays: Any, told: Plain) -> fastagg.Answer | FastaggError:
        try:
            stated = told.pop("stated", {})
            return replies.answer(server, task, arrays, stated, **told)
        except FastaggError as error:
            return error

    book = Book[Any, Any](server)
    return book.take([(Open(task.client, task), answer(task, arrays, dict(*told))) for task, arrays, *told in answers])


def answered(session: Session, answers: Sequence[tuple[Any, Dispatch, Any]]) -> None:
    """Note trained models, by client, in a run."""
    session.note([client for client, _, _ in answers], taken(session.server, *(one[1:] for one in answers)))


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
