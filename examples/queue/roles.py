"""What the processes of this example do. They share a queue (NATS JetStream) and an object store, and nothing else.

    root     sends tasks to leaves, takes their sums; a server with a folder     SUMS.* -> root -> TASKS.*
    reader   reads the tasks of a leaf and trains its clients                    TASKS.n -> reader -> UPDATES.n
    leaf     adds up the updates of a task                                       UPDATES.n -> leaf -> SUMS.n

Messages are small: vectors lie in the object store, under names that a second try uses again.
"""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from typing import Any

import nats
import numpy as np
import obstore
import torch
from nats.js import JetStreamContext
from nats.js.api import ConsumerConfig, DeliverPolicy, RetentionPolicy
from nats.js.errors import NotFoundError
from obstore.store import LocalStore
from torch import Tensor

import fastagg

LEAVES, CLIENTS = 3, 4  # leaves, and how many clients each of them has
WAIT = 0.5  # seconds after which a message that is not acknowledged comes again


def make() -> fastagg.Server:
    return fastagg.FADAS(torch.zeros(200), lr=0.03, buffer_size=2 * CLIENTS, delay_threshold=2)


def train(model: Tensor, client: int) -> Tensor:
    """Return a client's update: softmax regression on data of its own. In place of this your clients train."""
    random = torch.Generator().manual_seed(client)
    x = torch.randn(30, 20, generator=random)
    y = x[:, :10].argmax(1)
    weight = model.view(10, 20).clone().requires_grad_()
    for _ in range(3):
        (gradient,) = torch.autograd.grad(torch.nn.functional.cross_entropy(x @ weight.T, y), weight)
        weight.data -= 0.5 * gradient
    return weight.detach().flatten() - model


def folded(leaf: fastagg.Leaf, updates: list[Tensor]) -> fastagg.Partial:
    """Add up the updates of a leaf's clients, in the clients' order: it decides the bits."""
    for update in updates:
        leaf.fold(update)
    return leaf.take()


class Place:
    """The queue and the object store, and this process's end of both."""

    js: JetStreamContext

    def __init__(self, url: str, folder: Path) -> None:
        self.url, self.folder = url, folder
        self.store = LocalStore(folder / "objects", mkdir=True)  # or obstore's S3Store, GCSStore, AzureStore

    async def enter(self) -> Place:
        torch.set_num_threads(1)
        fastagg.set_num_threads(1)
        self.js = (await nats.connect(self.url)).jetstream(timeout=60)
        return self

    async def prepare(self) -> None:
        """Make the streams. UPDATES forgets what is acknowledged; SUMS is the log that the root reads."""
        await self.js.add_stream(name="TASKS", subjects=["TASKS.*"])
        await self.js.add_stream(name="UPDATES", subjects=["UPDATES.*"], retention=RetentionPolicy.WORK_QUEUE)
        await self.js.add_stream(name="SUMS", subjects=["SUMS.*"])

    def put(self, name: str, vector: Tensor) -> str:
        obstore.put(self.store, name, vector.numpy().tobytes())
        return name

    def get(self, name: str) -> Tensor:
        return torch.from_numpy(np.frombuffer(obstore.get(self.store, name).bytes(), np.float32).copy())

    async def say(self, subject: str, **said: Any) -> None:
        await self.js.publish(subject, json.dumps(said).encode())

    async def last(self, stream: str, subject: str) -> dict[str, Any]:
        """Return what was said last on a subject."""
        try:
            found = await self.js.get_last_msg(stream, subject)
        except NotFoundError:
            return {}
        heard: dict[str, Any] = json.loads(found.data or b"")
        return heard

    async def work(self, subject: str, name: str) -> Any:
        """Yield messages of a work queue. Those that are not acknowledged come again, perhaps to another process."""
        config = ConsumerConfig(ack_wait=WAIT, max_ack_pending=100)
        queue = await self.js.pull_subscribe(subject, durable=name, config=config)
        while True:
            try:
                for message in await queue.fetch(CLIENTS, timeout=5.0):
                    yield message, json.loads(message.data)
            except TimeoutError:  # nothing came
                continue

    async def log(self, subject: str, first: int) -> Any:
        """Yield the messages of a stream from offset ``first`` on, in order, and their offsets."""
        config = ConsumerConfig(deliver_policy=DeliverPolicy.BY_START_SEQUENCE, opt_start_seq=first)
        queue = await self.js.subscribe(subject, ordered_consumer=True, config=config)
        async for message in queue.messages:
            yield message.metadata.sequence.stream, json.loads(message.data)


async def root(place: Place, number: int) -> None:
    with fastagg.open(place.folder / "state", make) as server:
        sent = {leaf: (await place.last("TASKS", f"TASKS.{leaf}")).get("task") for leaf in range(LEAVES)}

        async def send(leaf: int) -> None:
            """Send a leaf its next task. If it was made before but not sent, it is the same one."""
            task = server.dispatch(leaf)
            server.flush()  # a task that has gone out is not forgotten
            model = place.put(f"models/{task.incarnation}-{task.version}", task.flat)
            await place.say(f"TASKS.{leaf}", task=task.id, model=model)
            sent[leaf] = task.id

        for leaf in range(LEAVES):
            if sent[leaf] is None:
                await send(leaf)
        # Exactly once: the offset lies in the record of the sum that it belongs to. The last one is read again, because
        # this process may have ended before it sent the leaf's next task.
        async for offset, said in place.log("SUMS.*", server.offset or 1):
            partial = fastagg.Partial(place.get(said["sum"]), said["updates"], said["weight"])
            with suppress(fastagg.AlreadyCounted):
                server.receive_partial(said["leaf"], partial, task=said["task"], offset=offset)
            if sent[said["leaf"]] == said["task"]:
                await send(said["leaf"])


async def reader(place: Place, leaf: int) -> None:
    async for message, said in place.work(f"TASKS.{leaf}", f"reader-{leaf}"):
        model = place.get(said["model"])
        for client in range(CLIENTS):
            update = place.put(f"updates/{said['task']}-{client}", train(model, leaf * CLIENTS + client))
            await place.say(f"UPDATES.{leaf}", task=said["task"], client=client, update=update)
        await message.ack()


async def leaf(place: Place, number: int) -> None:
    adding = fastagg.Leaf(torch.zeros(200))
    waiting: defaultdict[int, dict[int, tuple[Any, str]]] = defaultdict(dict)  # by task and client
    async for message, said in place.work(f"UPDATES.{number}", f"leaf-{number}"):
        came = waiting[said["task"]]
        came[said["client"]] = message, said["update"]  # of two that are equal the later one is acknowledged
        if len(came) == CLIENTS:
            partial = folded(adding, [place.get(came[client][1]) for client in range(CLIENTS)])
            total = place.put(f"sums/{said['task']}", partial.total)
            await place.say(
                f"SUMS.{number}",
                leaf=number, task=said["task"], sum=total, updates=partial.updates, weight=partial.weight,
            )  # fmt: skip
            for message, _ in waiting.pop(said["task"]).values():
                await message.ack()


def run(role: str, url: str, folder: Path, number: int) -> None:
    """Be one of the processes, until it is ended."""

    async def go() -> None:
        await {"root": root, "reader": reader, "leaf": leaf}[role](await Place(url, folder).enter(), number)

    asyncio.run(go())
