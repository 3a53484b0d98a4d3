"""The common part of the synchronous strategies for Flower's two APIs: the model, the tasks, and a round's replies.

A reply counts once, or is refused and changes nothing. Replies are freed as they are added, unless other code reads
them. Only the strategies call this module, from one thread.
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
    """A round's open tasks, by node or client."""

    _said = False  # whether a changed model was logged

    def send(self, holders: Iterable[Holder]) -> None:
        for holder in holders:
            self.put(holder, holder, self.server.dispatch(holder))

    def answered(self, holder: Holder) -> OpenTask[Holder]:
        """Return the task that ``holder`` has answered. If there is none, open one: a subclass may have sent messages
        without ``super()``."""
        return self.pop(holder) or OpenTask(holder, self.server.dispatch(holder))

    def adopt(self, arrays: Arrays) -> None:
        """If other code has changed Flower's arrays, use them as the server's model, and end open tasks."""
        if models.holds(self.server, arrays):
            return
        self.end()
        models.put(self.server, arrays)
        if not self._said:
            self._said = True
            tasks.log.info("fastagg: the model came back changed (by a wrapper or a subclass); it is the model now")


class Gathering(Generic[Holder, Reply, KeptReply]):
    """Adds the replies of one round, and keeps apart those that count and those that do not.

    Args:
        read: ``read(task, reply)`` returns the answer to the task.
        keep: ``keep(holder, reply, receipt)`` returns the part of a reply that is kept. The receipt is None if the
            reply does not count.

    Attributes:
        good: the kept parts of the replies that count.
        bad: the clients that did not answer or whose replies do not count, with the errors.
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
            RunFailed: clients fail, or are refused, again and again. Or no reply of the round could be used, for
                reasons that are not a single client's fault.
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
        faults = ClientFailure, LateReply, NonFiniteUpdate, UpdateTooLarge  # the fault of a single client
        wrong = [error for _, error in self.bad if not isinstance(error, faults)]
        if wrong and not self.good:
            raise RunFailed(f"no reply of this round could be used; {type(wrong[0]).__name__}: {wrong[0]}")
        return session.server.version != self._version


class Rounds(Generic[Holder]):
    """A strategy's run in rounds. Among a strategy's bases, this class must come before Flower's class.

    Attributes:
        run: the run's rule, settings and files.
        server, session: the Server, and the run's state (``session.summary()``, ``session.tally``), after the start.
        lr, deterministic: the strategy's arguments.
    """

    _advice: str  # what a message advises if the server has another model than Flower

    def _set_up(
        self, server: Maker | Server, settings: Settings, checkpoint: str | os.PathLike[str] | None,
        lr: Callable[[int], float] | None, deterministic: bool,
    ) -> None:  # fmt: skip
        self.run = run_of(server, settings, checkpoint, rounds=True)
        self.lr, self.deterministic = callable_or_none("lr", lr), deterministic
        self._own = server if isinstance(server, Server) else None
        self.server: Server | None = self._own
        self.session: Session | None = None
        self._tasks: Round[Holder]  # made with the session

    def _begin(self, model: Arrays, kinds: Iterable[str] = ()) -> State:
        kept = self.run.begin(model, kinds=kinds)
        self.server, self.session = self.run.server, self.run.session
        self._tasks = self.session.book = Round(self.server)
        self.session.noun = "node"
        say_what_differs(self.server, self.lr is not None)
        return kept

    def _adopt(self, arrays: Arrays) -> Server:
        """Use Flower's arrays as the server's model, because other code may have changed them. Begin the run first, if
        needed."""
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
        """Prepare round ``number``. Open tasks of an earlier, abandoned round end."""
        assert self.server is not None
        self._tasks.end()
        lr = self.server.optimizer.lr if self.lr is None else self.lr(number)
        if lr != self.server.optimizer.lr:
            self.server.lr = lr
        return self.server


class Replies(UserList[Message]):
    """A list of replies, most of which have not arrived yet.

    Code that reads, counts or changes the list waits for all replies, and all are kept. ``if replies:`` waits only for
    the first replies.

    Args:
        messages: the replies that have arrived.
        batches: the replies that will arrive.
        looked_at: whether other code has read the list. Reading sets it.
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
        """Yield the replies in batches. If ``looked_at`` is false, the caller may free their arrays."""
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
