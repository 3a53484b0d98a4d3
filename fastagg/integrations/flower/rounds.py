"""The common part of the synchronous strategies for Flower's two APIs: the model, the tasks, and a round's replies.

A reply counts once, or is refused and changes nothing. :class:`SyncStrategy` frees a reply's arrays after they were
added, unless other code may read them. Only these strategies use this module, each from one thread.
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
    """A round's open tasks. A task's key is the id of the node or client that has the task."""

    _said = False  # whether the log has said that other code changed the model

    def send(self, holders: Iterable[Holder]) -> None:
        for holder in holders:
            self.put(holder, holder, self.server.dispatch(holder))

    def answered(self, holder: Holder) -> OpenTask[Holder]:
        """Remove and return the task that ``holder`` has answered. If ``holder`` has no task, open one, because a
        subclass may have sent messages without a call of ``super()``."""
        return self.pop(holder) or OpenTask(holder, self.server.dispatch(holder))

    def adopt(self, arrays: Arrays) -> None:
        """If Flower's ``arrays`` differ from the server's model, end open tasks and make ``arrays`` the model."""
        if models.holds(self.server, arrays):
            return
        self.end()
        models.put(self.server, arrays)
        if not self._said:
            self._said = True
            tasks.log.info("fastagg: the model came back changed (by a wrapper or a subclass); it is the model now")


class Gathering(Generic[Holder, Reply, KeptReply]):
    """Adds the replies of one round to the server's sum, and lists which replies count.

    Args:
        read: ``read(task, reply)`` returns the answer to the task.
        keep: ``keep(holder, reply, receipt)`` returns the part of a reply that :attr:`good` keeps. The receipt is None
            if the reply does not count.

    Attributes:
        good: what ``keep`` returned for each reply that counts.
        bad: pairs of a client and an error. The client did not answer, or the client's reply does not count.
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
            RunFailed: the run cannot continue (:class:`fastagg.integrations.goals.Settings`). Or no reply of the round
                counts, and at least one error is not a single client's fault.
        """
        session = self._session
        session.close_round()
        memory.trim()  # frees unused memory, because no update comes before the next round
        session.book.end()
        tasks.log.info("fastagg: a round of %d updates, version %d", len(self.good), session.server.version)
        for holder, error in self.bad:
            session.refused(holder, error)
        for holder, receipt in self._taken:
            session.taken(holder, receipt)
        session.failures.check(())
        faults = ClientFailure, LateReply, NonFiniteUpdate, UpdateTooLarge  # errors that are a single client's fault
        wrong = [error for _, error in self.bad if not isinstance(error, faults)]
        if wrong and not self.good:
            raise RunFailed(f"no reply of this round could be used; {type(wrong[0]).__name__}: {wrong[0]}")
        return session.server.version != self._version


class Rounds(Generic[Holder]):
    """Base class of strategies that run in rounds. A strategy must name this base class before Flower's class.

    Attributes:
        run: the run's rule, settings and files.
        server: the Server. None before the start, unless the user passed a Server.
        session: the run's state (``session.summary()``, ``session.tally``). None before the start.
        lr, deterministic: the strategy's arguments.
    """

    _advice: str  # what the user should do if the server starts from another model than Flower's

    def _set_up(
        self, server: Maker | Server, settings: Settings, checkpoint: str | os.PathLike[str] | None,
        lr: Callable[[int], float] | None, deterministic: bool,
    ) -> None:  # fmt: skip
        self.run = run_of(server, settings, checkpoint, rounds=True)
        self.lr, self.deterministic = callable_or_none("lr", lr), deterministic
        self._own = server if isinstance(server, Server) else None
        self.server: Server | None = self._own
        self.session: Session | None = None
        self._tasks: Round[Holder]  # set when the session is made

    def _begin(self, model: Arrays, kinds: Iterable[str] = ()) -> State:
        kept = self.run.begin(model, kinds=kinds)
        self.server, self.session = self.run.server, self.run.session
        self._tasks = self.session.book = Round(self.server)
        self.session.noun = "node"
        say_what_differs(self.server, self.lr is not None)
        return kept

    def _adopt(self, arrays: Arrays) -> Server:
        """Return the server. The first call begins the run, and raises ConfigError if the model of a checkpoint or of
        the user's Server differs from ``arrays``. Later, if ``arrays`` differ from the server's model, they replace
        it."""
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
        """Set the learning rate of round ``number``, and end tasks that are still open from an earlier round."""
        assert self.server is not None
        self._tasks.end()
        lr = self.server.optimizer.lr if self.lr is None else self.lr(number)
        if lr != self.server.optimizer.lr:
            self.server.lr = lr
        return self.server


class Replies(UserList[Message]):
    """A list of replies. Replies that have not arrived yet are pulled when the list is read.

    Code that reads, counts or changes the list waits until all replies have arrived, or their timeout is over. The list
    then keeps all replies. ``if replies:`` waits only for the first replies.

    Args:
        messages: the replies that have arrived.
        batches: an iterator that waits for the other replies and yields them.
        looked_at: whether other code may have read the list. Reading the list, except by ``if``, sets this to True.
    """

    def __init__(
        self, messages: Iterable[Message] = (), batches: Iterable[list[Message]] = (), looked_at: bool = False
    ) -> None:
        self._here, self._batches, self.looked_at = list(messages), iter(batches), looked_at

    @property
    def data(self) -> list[Message]:  # all methods of UserList use this attribute
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
        """Yield the replies in batches. If ``looked_at`` is False, the caller may free the arrays of these replies."""
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
    """A grid whose ``send_and_receive`` does not wait for replies, but returns :class:`Replies`, which wait when read.

    Attributes:
        heard: ids of the sent messages to which a reply has come.
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
