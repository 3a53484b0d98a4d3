"""Flower's rounds with fastagg's arithmetic: replies are folded in one by one as they are read."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result

from fastagg import _checks
from fastagg.integrations.flower import tasks
from fastagg.integrations.flower.records import read
from fastagg.integrations.flower.tasks import log
from fastagg.serving.dispatch import Dispatch
from fastagg.serving.server import Server
from fastagg.storage import memory


class SyncStrategy(FedAvg):
    """Any synchronous rule of fastagg as a Flower strategy.

    Args:
        server: a preset (``fastagg.FedAvg``, ``FedAMS``, ``FedAdam``, ``FedYogi``, ...), with its settings bound by
            :func:`functools.partial`, which is started with ``initial_arrays``; or a Server, from a checkpoint, say.
        deterministic: fold each round's replies in the order of their node ids, so that results do not depend on who
            was first. The round's replies are then all in memory at once.
        checkpoint: file that the server is saved to after every round; :func:`fastagg.load` reads it.
        poll: seconds between two looks for replies.
        flower: settings of ``flwr.serverapp.strategy.FedAvg``.

    Attributes:
        server: the Server, once started.

    Raises:
        ConfigError: ``server`` is neither, or refuses its settings.
    """

    def __init__(
        self,
        server: tasks.Make | Server,
        *,
        deterministic: bool = False,
        checkpoint: str | os.PathLike[str] | None = None,
        poll: float = 0.2,
        **flower: Any,
    ) -> None:
        super().__init__(**flower)
        self.poll = _checks.number("poll", poll, least=0)
        self._make, self.deterministic, self.checkpoint = server, deterministic, checkpoint
        self.server: Server | None = server if isinstance(server, Server) else None
        self._tasks: dict[int, Dispatch] = {}  # by node
        self._messages: list[Message] = []
        self._arrays: ArrayRecord | None = None

    def start(self, grid: Grid, initial_arrays: ArrayRecord, *args: Any, **settings: Any) -> Result:
        """As Flower's own, but replies are pulled while earlier ones are folded in. A Server's model goes before
        ``initial_arrays``."""
        server = self._begin(initial_arrays)
        return super().start(Streaming(grid, server, self.poll), self._arrays, *args, **settings)

    def _begin(self, arrays: ArrayRecord) -> Server:
        self.server = tasks.made(self._make, read(arrays), clients_per_round=tasks.OPEN)
        self._arrays, self._tasks = tasks.model(self.server), {}
        return self.server

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Sample nodes as Flower does, and note what each is sent."""
        server = self.server if self.server is not None and self._arrays is not None else self._begin(arrays)
        self._messages = messages = list(super().configure_train(server_round, self._arrays, config, grid))
        keys = (self.arrayrecord_key, self.configrecord_key)
        for message in messages:
            node = message.metadata.dst_node_id
            self._tasks[node] = task = server.dispatch(node)
            message.content = tasks.content(task, message.content[keys[0]], message.content[keys[1]], keys)
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Fold every reply in as it comes, then close the round with those that were good."""
        server, folded = self.server, list[RecordDict]()
        if server is None:
            return None, None
        if self.deterministic:
            replies = sorted(replies, key=lambda message: message.metadata.src_node_id)
        # An error about a node may come from the SuperLink. Ids are given to messages when they are sent.
        asked = {sent.metadata.message_id: sent.metadata.dst_node_id for sent in self._messages}
        asked.pop("", None)
        self._messages, before = [], server.version
        for batch in replies.batches if isinstance(replies, Replies) else [list(replies)]:
            folded += self._fold(server, batch, asked)
            batch.clear()  # before more are read
        server.close_round()
        memory.trim()  # the next update is a round away
        for node, task in self._tasks.items():
            log.warning("fastagg: node %d did not answer round %d", node, server_round)
            server.forget(task.client, task.version)
        self._tasks.clear()
        log.info("fastagg: round %d: %d updates, version %d", server_round, len(folded), server.version)
        if server.version == before:
            return None, None
        if self.checkpoint is not None:
            server.save(self.checkpoint)
        self._arrays = tasks.model(server)
        return self._arrays, tasks.averaged(self.train_metrics_aggr_fn, folded, self.weighted_by_key)

    def _fold(self, server: Server, messages: list[Message], asked: dict[str, int]) -> list[RecordDict]:
        """Fold replies in; the metrics of those that were good."""
        arrived: list[tasks.Arrived] = []
        for message in messages:
            node = asked.get(message.metadata.reply_to_message_id, message.metadata.src_node_id)
            if (task := self._tasks.pop(node, None)) is None:
                log.warning("fastagg: dropped a reply of node %d: it has answered already, or was not asked", node)
            else:
                arrived.append((task, node, message))
        receipts = tasks.take(server, arrived, self.weighted_by_key)
        good = (message for (_, _, message), receipt in zip(arrived, receipts, strict=True) if receipt)
        return [tasks.metrics_of(message.content) for message in good]


class Streaming:
    """A grid whose ``send_and_receive`` returns before the replies are there."""

    def __init__(self, grid: Grid, server: Server, poll: float) -> None:
        self._grid, self._server, self._poll = grid, server, poll

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grid, name)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Replies:
        waiting = {sent for sent in self._grid.push_messages(list(messages)) if sent}
        return Replies(self._batches(waiting, None if timeout is None else time.monotonic() + timeout))

    def _batches(self, waiting: set[str], until: float | None) -> Iterator[list[Message]]:
        while waiting:
            for batch in tasks.pull(self._grid, waiting, self._server):
                waiting -= {message.metadata.reply_to_message_id for message in batch}
                yield batch
            if not waiting or (until is not None and time.monotonic() > until):
                return
            time.sleep(self._poll)


class Replies:
    """A round's replies as they come: in batches, or one by one for who knows no batches."""

    def __init__(self, batches: Iterator[list[Message]]) -> None:
        self.batches = batches

    def __iter__(self) -> Iterator[Message]:
        for batch in self.batches:
            yield from batch
