"""What the strategies of both of Flower's APIs do alike in rounds: the model, the tasks, and the replies of a round.

A reply counts once, or is refused and changes nothing. Replies are freed as they are added, unless somebody looks at
them. Only the strategies call this, from one thread.
"""

from __future__ import annotations

import os
import time
from collections import UserList
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, TypeVar

from flwr.app import Message
from flwr.serverapp import Grid

from fastagg._types import Arrays, State
from fastagg.errors import ConfigError, FastaggError, NonFiniteUpdate, RunFailed, UpdateTooLarge
from fastagg.integrations import models
from fastagg.integrations.flower import tasks
from fastagg.integrations.flower.records import formed
from fastagg.integrations.flower.settings import Maker, callable_or_none, run_of, say_what_differs
from fastagg.integrations.goals import Settings
from fastagg.integrations.replies import ClientFailure, LateReply, attempt, stripped
from fastagg.integrations.session import Book, OpenTask, Session
from fastagg.server.answers import Answer
from fastagg.server.dispatch import Dispatch, Receipt
from fastagg.server.server import Server
from fastagg.storage import memory

Holder = TypeVar("Holder", int, str)
Reply = TypeVar("Reply")
KeptReply = TypeVar("KeptReply")


class Round(Book[Holder, Holder]):
    """A round's tasks without an answer so far, by node or client."""

    _said = False  # whether a changed model was logged

    def send(self, holders: Iterable[Holder]) -> None:
        for holder in holders:
            self.put(holder, holder, self.server.dispatch(holder))

    def answered(self, holder: Holder) -> OpenTask[Holder]:
        """The task that ``holder`` has answered. A subclass may have asked others without ``super()``."""
        return self.pop(holder) or OpenTask(holder, self.server.dispatch(holder))

    def adopt(self, arrays: Arrays) -> None:
        """Take the arrays from Flower as the model, if other code has changed them. Open tasks then end."""
        if models.holds(self.server, arrays):
            return
        self.end()
        models.put(self.server, arrays)
        if not self._said:
            self._said = True
            tasks.log.info("fastagg: the model came back changed (by a wrapper or a subclass); it is the model now")


class Gathering(Generic[Holder, Reply, KeptReply]):
    """The replies of one round: which count, and which do not.

    Args:
        read: returns a reply as the answer to its task.
        keep: returns what stays of a reply, of which the receipt is None if it does not count.

    Attributes:
        good: what stays of the replies that count.
        bad: who did not answer, or what does not count, and why.
    """

    def __init__(
        self, session: Session, read: Callable[[Dispatch, Reply], Answer],
        keep: Callable[[Holder, Reply, Receipt | None], KeptReply],
    ) -> None:  # fmt: skip
        self._session, self._read, self._version = session, read, session.server.version
        self._keep: Callable[[Holder, Reply, Receipt | None], KeptReply] = keep
        self._heard: set[Holder] = set()
        self._taken: list[tuple[Holder, Receipt]] = []
        self.good: list[KeptReply] = []
        self.bad: list[tuple[Holder, FastaggError]] = []

    def add(self, replies: Iterable[tuple[Holder, Reply]]) -> None:
        """Add replies in one pass over memory. A second reply of the same client is dropped."""
        book: Any = self._session.book
        answers: list[tuple[Reply, OpenTask[Holder], Answer | FastaggError]] = []
        for holder, reply in replies:
            if holder in self._heard:
                tasks.log.warning("fastagg: dropped a reply of node %s: it has answered already", holder)
                continue
            self._heard.add(holder)
            try:
                task = book.answered(holder)
            except FastaggError as error:
                self.bad.append((holder, stripped(error)))
            else:
                answers.append((reply, task, attempt(self._read, task.task, reply)))
        outcomes = book.take([(task, answer) for _, task, answer in answers])
        for (reply, task, _), outcome in zip(answers, outcomes, strict=True):
            kept = self._keep(task.holder, reply, outcome if isinstance(outcome, Receipt) else None)
            if isinstance(outcome, Receipt):
                self._taken.append((task.holder, outcome))
                self.good.append(kept)
            else:
                self.bad.append((task.holder, outcome))

    def close(self) -> bool:
        """End the round. Return whether the model has stepped.

        Raises:
            RunFailed: clients fail, or are refused, again and again; or no reply can be used, whoever sends it.
        """
        session = self._session
        session.close_round()
        memory.trim()  # there is no update before the next round
        session.book.end()
        tasks.log.info("fastagg: a round of %d updates, version %d", len(self.good), session.server.version)
        for holder, error in self.bad:
            session.refused(holder, error)
        for holder, receipt in self._taken:
            session.taken(holder, receipt)
        session.failures.check(())
        faults = ClientFailure, LateReply, NonFiniteUpdate, UpdateTooLarge  # which are their client's fault alone
        wrong = [error for _, error in self.bad if not isinstance(error, faults)]
        if wrong and not self.good:
            raise RunFailed(f"no reply of this round could be used; {type(wrong[0]).__name__}: {wrong[0]}")
        return session.server.version != self._version


class Rounds(Generic[Holder]):
    """A strategy's run in rounds. Flower's own class comes after it among a strategy's bases.

    Attributes:
        run: its rule, settings and files.
        server, session: after the start: the Server, and the run's state (``session.summary()``, ``session.tally``).
        lr, deterministic: as the strategy was given them.
    """

    _advice: str  # where the model to start from is

    def _set_up(
        self, server: Maker | Server, settings: Settings, checkpoint: str | os.PathLike[str] | None,
        lr: Callable[[int], float] | None, deterministic: bool,
    ) -> None:  # fmt: skip
        self.run = run_of(server, settings, checkpoint, rounds=True)
        self.lr, self.deterministic = callable_or_none("lr", lr), deterministic
        self._own = server if isinstance(server, Server) else None
        self.server: Server | None = self._own
        self.session: Session | None = None
        self._tasks: Round[Holder]  # there with the session

    def _begin(self, model: Arrays, kinds: Iterable[str] = ()) -> State:
        kept = self.run.begin(model, kinds=kinds)
        self.server, self.session = self.run.server, self.run.session
        self._tasks = self.session.book = Round(self.server)
        self.session.noun = "node"
        say_what_differs(self.server, self.lr is not None)
        return kept

    def _adopt(self, arrays: Arrays) -> Server:
        """Take the arrays from Flower as the model, even if other code has changed them."""
        begins = self.session is None
        if begins:
            self._begin(arrays)
        assert self.server is not None
        arrays = formed(self.server, arrays)
        if begins and not models.holds(self.server, arrays):
            self.server, self.session = self._own, None
            raise ConfigError(f"the server goes on from another model than the one that it was handed: {self._advice}")
        self._tasks.adopt(arrays)
        return self.server

    def _configure(self, number: int) -> Server:
        """Prepare round ``number``. Tasks of a round that somebody gave up end."""
        assert self.server is not None
        self._tasks.end()
        lr = self.server.optimizer.lr if self.lr is None else self.lr(number)
        if lr != self.server.optimizer.lr:
            self.server.lr = lr
        return self.server


class Replies(UserList[Message]):
    """A list of replies, most of which have not arrived yet.

    Whoever reads it, counts it or changes it waits for all replies, and keeps them. ``if replies:`` waits for the first
    ones only.

    Args:
        messages: those that are there.
        batches: those that are to come.
        looked_at: whether somebody has read the list, which may change.
    """

    def __init__(
        self, messages: Iterable[Message] = (), batches: Iterable[list[Message]] = (), looked_at: bool = False
    ) -> None:
        self._here, self._batches, self.looked_at = list(messages), iter(batches), looked_at

    @property
    def data(self) -> list[Message]:  # all methods of UserList read and set it
        self.looked_at = True
        for batch in self._batches:
            self._here += batch
        return self._here

    @data.setter
    def data(self, messages: list[Message]) -> None:
        self._here = messages

    def __bool__(self) -> bool:
        while not self._here and (batch := next(self._batches, None)) is not None:
            self._here = batch
        return bool(self._here)

    def fold(self) -> Iterator[list[Message]]:
        """The replies in batches. If nobody has looked at them, the caller takes their arrays away."""
        if self.looked_at:
            yield list(self._here)
            return
        first, self._here = self._here, []
        if first:
            yield first
            self._here += first
        for batch in self._batches:
            yield batch
            self._here += batch


class StreamedGrid:
    """A grid whose ``send_and_receive`` returns before replies arrive.

    Attributes:
        heard: ids of the messages that were answered.
    """

    def __init__(self, grid: Grid, server: Server) -> None:
        self._grid, self._server = grid, server
        self.heard: set[str] = set()

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Replies:
        waiting = dict.fromkeys(sent for sent in self._grid.push_messages(list(messages)) if sent)
        return Replies(batches=self._batches(waiting, None if timeout is None else time.monotonic() + timeout))

    def _batches(self, waiting: dict[str, None], deadline: float | None) -> Iterator[list[Message]]:
        while waiting:
            for batch in tasks.pull(self._grid, waiting, self._server):
                for message in batch:
                    self.heard.add(message.metadata.reply_to_message_id)
                    waiting.pop(message.metadata.reply_to_message_id, None)
                yield batch
            if not waiting or (deadline is not None and time.monotonic() > deadline):
                return
            time.sleep(tasks.POLL)
