"""A round's tasks, and its replies as they arrive. They are freed as they are added, unless somebody looks at them."""

from __future__ import annotations

import time
from collections import UserList
from collections.abc import Iterable, Iterator
from typing import TypeVar

from flwr.app import Message
from flwr.serverapp import Grid

from fastagg._types import Arrays
from fastagg.integrations.flower import models, tasks
from fastagg.integrations.session import Book, Open
from fastagg.server.server import Server

Who = TypeVar("Who", int, str)


class Round(Book[Who, Who]):
    """A round's tasks without an answer so far, by node or client."""

    _said = False  # whether a changed model was logged

    def send(self, to: Iterable[Who]) -> None:
        for who in to:
            self.put(who, who, self.server.dispatch(who))

    def answered(self, who: Who) -> Open[Who]:
        """The task that ``who`` has answered. A subclass may have asked others without ``super()``."""
        return self.pop(who) or Open(who, self.server.dispatch(who))

    def adopt(self, arrays: Arrays) -> None:
        """Take the arrays from Flower as the model, if other code has changed them. Open tasks then end."""
        if models.holds(self.server, arrays):
            return
        self.end()
        models.put(self.server, arrays)
        if not self._said:
            self._said = True
            tasks.log.info("fastagg: the model came back changed (by a wrapper or a subclass); it is the model now")


class Replies(UserList[Message]):
    """A list of replies, most of which have not arrived yet.

    Whoever reads it, counts it or changes it waits for all replies, and keeps them. ``if replies:`` waits for the first
    ones only.

    Args:
        messages: those that are there.
        batches: those that are to come.

    Attributes:
        looked_at: whether somebody has read the list.
    """

    def __init__(self, messages: Iterable[Message] = (), batches: Iterable[list[Message]] = ()) -> None:
        self._here, self._batches, self.looked_at = list(messages), iter(batches), False

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
        left, self._here = self._here, []
        if left:
            yield left
            self._here += left
        for batch in self._batches:
            yield batch
            self._here += batch


class Streaming:
    """A grid whose ``send_and_receive`` returns before replies arrive.

    Attributes:
        heard: ids of the messages that were answered.
    """

    def __init__(self, grid: Grid, server: Server, poll: float) -> None:
        self._grid, self._server, self._poll = grid, server, poll
        self.heard: set[str] = set()

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Replies:
        waiting = dict.fromkeys(sent for sent in self._grid.push_messages(list(messages)) if sent)
        return Replies(batches=self._batches(waiting, None if timeout is None else time.monotonic() + timeout))

    def _batches(self, waiting: dict[str, None], until: float | None) -> Iterator[list[Message]]:
        while waiting:
            for batch in tasks.pull(self._grid, waiting, self._server):
                for message in batch:
                    self.heard.add(message.metadata.reply_to_message_id)
                    waiting.pop(message.metadata.reply_to_message_id, None)
                yield batch
            if not waiting or (until is not None and time.monotonic() > until):
                return
            time.sleep(self._poll)
