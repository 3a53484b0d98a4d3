"""A round's tasks, and its replies as they arrive. They are freed as they are added, unless somebody looks at them."""

from __future__ import annotations

import time
from collections import UserList
from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

from flwr.app import Message
from flwr.serverapp import Grid

from fastagg._types import Arrays
from fastagg.integrations.flower import models, tasks
from fastagg.integrations.replies import end
from fastagg.server.dispatch import Dispatch
from fastagg.server.server import Server

Who = TypeVar("Who", int, str)


class Tasks(Generic[Who]):
    """A round's tasks without an answer so far, by node or client.

    Attributes:
        open: the tasks.
    """

    def __init__(self) -> None:
        self.open: dict[Who, Dispatch] = {}
        self._said = False  # whether a changed model was logged

    def send(self, server: Server, to: Iterable[Who]) -> None:
        """Begin a round."""
        self.open = {who: server.dispatch(who) for who in to}

    def pop(self, server: Server, who: Who) -> Dispatch:
        """The task that ``who`` has answered. A subclass may have asked others without ``super()``."""
        return self.open.pop(who) if who in self.open else server.dispatch(who)

    def give_up(self, server: Server) -> None:
        """End the tasks that are open."""
        for task in self.open.values():
            end(server, task)
        self.open.clear()

    def adopt(self, server: Server, arrays: Arrays) -> None:
        """Take the arrays from Flower as the model, if other code has changed them. Open tasks then end."""
        if models.holds(server, arrays):
            return
        self.give_up(server)
        models.put(server, arrays)
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
