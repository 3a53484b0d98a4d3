"""A Flower grid inside one process: nodes are functions, and time passes when the strategy asks for replies."""

from collections.abc import Callable, Iterable

import torch
from flwr.app import ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from fastagg.integrations.flower import read, tasks, write

tasks.POLL = 0.0  # nobody sleeps
TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 0, 0  # in its own processes Flower sets these

Train = Callable[[Message], "RecordDict | Error | None"]


class FakeGrid(Grid):
    """A grid whose nodes answer with ``train(message)`` after ``delay(node)`` pulls. None is never answered.

    Attributes:
        nodes: the online nodes.
        log: (node, what was sent, message id) in order.
    """

    def __init__(self, train: Train, nodes: Iterable[int], delay: Callable[[int], int] = lambda node: 0) -> None:
        self.train, self.nodes, self.delay = train, list(nodes), delay
        self.log: list[tuple[int, Message]] = []
        self.replies: dict[str, tuple[int, Message]] = {}
        self.asked: list[int] = []  # number of ids in each pull
        self.now = 0

    def set_run(self, run: object) -> None: ...

    @property
    def run(self) -> object:
        return None

    def create_message(self, *args: object, **more: object) -> Message:
        raise NotImplementedError

    def get_node_ids(self) -> list[int]:
        return list(self.nodes)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        ids = []
        for message in messages:
            ids.append(f"m{len(self.log)}")
            message.metadata.__dict__["_message_id"] = ids[-1]
            node = message.metadata.dst_node_id
            self.log.append((node, message))
            answer = self.train(message)
            if answer is not None:
                back = Message(answer, reply_to=message)
                if isinstance(answer, Error) and answer.code == 5:  # the SuperLink sends this error, not the node
                    back.metadata.__dict__["_src_node_id"] = 0
                self.replies[ids[-1]] = (self.now + self.delay(node), back)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        ids = sorted(message_ids, key=lambda name: int(name[1:]))  # a set's order is not the same in two processes
        self.asked.append(len(ids))
        self.now += 1
        due = [i for i in ids if i in self.replies and self.replies[i][0] < self.now]
        return [self.replies.pop(i)[1] for i in due]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        raise AssertionError("replies would all be in memory at once")


class CollectingGrid(FakeGrid):
    """For Flower's own strategies and wrappers, which take all replies at once."""

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        return self.pull_messages(self.push_messages(messages))


def model(message: Message) -> dict[str, torch.Tensor]:
    """Return the model in a message, as new tensors."""
    return {name: array.clone() for name, array in read(message.content["arrays"]).items()}


def trained(message: Message, step: float | None = None, samples: int = 10, **note: str | int) -> RecordDict:
    """Return a Flower client's reply: its parameters move by a step that depends on the node and the version."""
    node, version = message.metadata.dst_node_id, message.content["config"]["fastagg-version"]
    step = 0.1 * node + 0.013 * version if step is None else step
    arrays = {n: a + step if a.is_floating_point() else a + 1 for n, a in model(message).items()}
    return reply(arrays, samples, loss=float(node), **note)


def node(message: Message) -> RecordDict:
    """A node that trains and evaluates. Its score is the mean of the array ``w`` that it was sent."""
    if message.metadata.message_type == "train":
        return trained(message)
    score = float(read(message.content["arrays"])["w"].mean())
    return RecordDict({"metrics": MetricRecord({"num-examples": 1, "score": score})})


def reply(arrays: dict[str, torch.Tensor], samples: int = 10, loss: float = 0.0, **note: str | int) -> RecordDict:
    """Return a reply with arrays, metrics, and a note if it is not empty."""
    records = {"arrays": write(arrays), "metrics": MetricRecord({"num-examples": samples, "loss": loss})}
    told = ConfigRecord({f"fastagg-{name}": value for name, value in note.items()})
    return RecordDict({**records, "config": told} if note else records)
