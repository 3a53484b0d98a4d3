"""Leaves as Ray's actors: each adds up the updates of its own clients, and the server takes one sum from each of them.

    pip install ".[ray]"   in the repository
    cd examples/leaves && python serve.py

Twelve clients train a model of handwritten digits. Three leaves have four of them each, and two sums are a step of
FADAS, so the leaves' sums have delays. ``--lose 5`` kills a leaf after five sums: only the sum that it was making is
lost, and another actor takes its clients. At the end one process repeats the run in the same order and compares.

With RAY_ADDRESS the leaves run on that cluster, whose machines need fastagg. Start this in its own folder, because
Ray's workers look for packages in the current folder first.
"""

from __future__ import annotations

import argparse
import os
from typing import Any, NamedTuple

import numpy as np
import ray
import torch
from ray.exceptions import RayActorError
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

import fastagg

CLIENTS, EACH = 12, 4  # clients, and how many of them a leaf has
HELD_OUT = 297  # digits that no client has
STEPS, RATE = 5, 0.5  # of a client's training


class Event(NamedTuple):
    """What became of a leaf's task.

    Attributes:
        leaf: the leaf's number.
        came: whether its sum came. If not, the leaf was lost.
    """

    leaf: int
    came: bool


def model() -> nn.Module:
    torch.manual_seed(0)  # the same model everywhere
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def make() -> fastagg.Server:
    return fastagg.FADAS(model(), lr=0.03, buffer_size=2 * EACH, delay_threshold=2, weighting="samples")


def digits() -> tuple[Tensor, Tensor]:
    images, labels = load_digits(return_X_y=True)
    return torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels)


def train(flat: np.ndarray, client: int, given: tuple[Tensor, Tensor]) -> tuple[Tensor, int]:
    """Return a client's update, and its number of digits. In place of this your clients train."""
    images, labels = (part[:-HELD_OUT][client::CLIENTS][5 * client :] for part in given)
    net = model()
    start = torch.tensor(flat)  # a copy: what Ray hands out is for reading only
    vector_to_parameters(start, net.parameters())
    optimizer = torch.optim.SGD(net.parameters(), lr=RATE)
    for _ in range(STEPS):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(images), labels).backward()
        optimizer.step()
    return parameters_to_vector(net.parameters()).detach() - torch.tensor(flat), len(labels)


def accuracy(server: fastagg.Server) -> float:
    net = model()
    net.load_state_dict(server.parameters())
    images, labels = (part[-HELD_OUT:] for part in digits())
    return float((net(images).argmax(1) == labels).float().mean())


class Region:
    """A leaf and its clients."""

    def __init__(self, number: int) -> None:
        torch.set_num_threads(1)  # an actor has one CPU
        fastagg.set_num_threads(1)
        self.clients, self.digits = range(number * EACH, (number + 1) * EACH), digits()
        self.leaf = fastagg.Leaf(model(), weighting="samples")

    def begun(self) -> bool:
        return True

    def work(self, flat: np.ndarray) -> tuple[np.ndarray, int, float]:
        """Send a version to the clients. Return the parts of their :class:`fastagg.Partial`."""
        for client in self.clients:
            self.leaf.fold(*train(flat, client, self.digits))
        partial = self.leaf.take()
        return partial.total.numpy(), partial.updates, partial.weight


def drive(server: fastagg.Server, sums: int, lose: int | None) -> list[Event]:
    """Take sums from Ray's actors as they come. Return what came, in order."""
    actor = ray.remote(Region).options(num_cpus=1, max_restarts=0)
    leaves = {number: actor.remote(number) for number in range(CLIENTS // EACH)}
    ray.get([leaf.begun.remote() for leaf in leaves.values()])  # so that no leaf is ahead of others that still start
    stored: dict[int, Any] = {}  # the newest version in Ray's object store, which all leaves read
    working: dict[Any, tuple[int, fastagg.Dispatch]] = {}  # by the reference of what will come

    def send(number: int) -> None:
        task = server.dispatch(number)
        if task.version not in stored:
            stored.clear()  # Ray keeps older ones for leaves that still need them
            stored[task.version] = ray.put(task.flat.numpy())
        working[leaves[number].work.remote(stored[task.version])] = number, task

    for number in leaves:
        send(number)
    events: list[Event] = []
    while sum(event.came for event in events) < sums:
        ready = ray.wait(list(working))[0][0]
        number, task = working.pop(ready)
        try:
            partial = fastagg.Partial(*ray.get(ready))
        except RayActorError:
            server.forget(number)
            leaves[number] = actor.remote(number)
            events.append(Event(number, False))
        else:
            receipt = server.receive_partial(number, partial, task.version, incarnation=task.incarnation)
            events.append(Event(number, True))
            if receipt.applied:
                print(f"version {receipt.version}: {partial.updates} updates of leaf {number}, delay {receipt.delay}")
        send(number)
        if len(events) == lose:
            ray.kill(leaves[number])
    return events


def repeat(server: fastagg.Server, events: list[Event]) -> None:
    """Do the same in this process."""
    leaves = {number: Region(number) for number in range(CLIENTS // EACH)}
    tasks = {number: server.dispatch(number) for number in leaves}
    for number, came in events:
        if came:
            partial = fastagg.Partial(*leaves[number].work(tasks[number].flat.numpy()))
            server.receive_partial(number, partial, tasks[number].version)
        else:
            server.forget(number)
        tasks[number] = server.dispatch(number)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sums", type=int, default=40, help="how many sums the server takes")
    parser.add_argument("--lose", type=int, help="kill a leaf after so many sums")
    arguments = parser.parse_args()
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # Ray would report that it runs
    if os.environ.get("RAY_ADDRESS"):
        ray.init(log_to_driver=False)
    else:
        ray.init(address="local", num_cpus=CLIENTS // EACH, include_dashboard=False, log_to_driver=False)
    server = make()
    events = drive(server, arguments.sums, arguments.lose)
    ray.shutdown()
    lost = sum(not event.came for event in events)
    print(f"version {server.version} after {arguments.sums} sums of {EACH} updates; {lost} leaves were lost")
    print(f"accuracy {accuracy(server):.1%}")
    alone = make()
    repeat(alone, events)
    same = torch.equal(server.flat, alone.flat)
    print("equal to one process, to the bit" if same else "NOT equal to one process")
    if not same:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
