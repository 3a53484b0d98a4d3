"""Peak memory of Flower's rounds over the number of clients, ours beside Flower's own. Replies arrive one by one.

Each figure comes from a process of its own: the growth of its resident memory, in models, from where the application
has the first model to the highest peak of three rounds. Ours runs without Python's garbage collector.

python bench/flower_memory.py [--parameters 100000000] [--clients 4 16 64]
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import random
import subprocess
import sys
from collections.abc import Iterable
from functools import partial
from typing import Any

import checkout

sys.path.append(str(checkout.ROOT / "tests"))

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Message
from flwr.serverapp import strategy as theirs
from peak import at_rest, forget_peak, resident
from support.flower_apps import FakeGrid, read, reply

import fastagg
from fastagg.integrations.flower import AsyncStrategy, SyncStrategy, write

ARRAYS, ROUNDS = 20, 3
STRATEGIES: dict[str, Any] = {
    "Flower FedAvg": theirs.FedAvg,
    "Flower FedAdam": theirs.FedAdam,
    "fastagg FedAvg": partial(SyncStrategy, fastagg.FedAvg, poll=0),
    "fastagg FedAdam": partial(SyncStrategy, partial(fastagg.FedAdam, lr=0.01), poll=0),
    "fastagg FedBuff": partial(AsyncStrategy, partial(fastagg.FedBuff, buffer_size=4), poll=0),
    "fastagg FADAS": partial(AsyncStrategy, partial(fastagg.FADAS, lr=0.01, buffer_size=4), poll=0),
}


class Link(FakeGrid):
    """A SuperLink in other processes: a reply takes no memory here until it is pulled, one at a time, as by chance."""

    def __init__(self, clients: int) -> None:
        super().__init__(lambda message: None, range(1, clients + 1))
        self._random = random.Random(0)

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        return [self._reply(message_id) for message_id in message_ids if self._random.random() < 0.3]

    def _reply(self, message_id: str) -> Message:
        sent = self.log[int(message_id[1:])][1]
        answer = reply({}, loss=1.0)
        answer["arrays"] = ArrayRecord()
        for name, array in read(sent.content["arrays"]).items():
            answer["arrays"][name] = write([array + 0.001])["0"]
        sent.__dict__["_content"] = None  # it has left this process
        return Message(answer, reply_to=sent)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        return [self._reply(i) for i in super().push_messages(messages)]


def peak(name: str, parameters: int, clients: int) -> float:
    """Return the peak of one strategy, in models."""
    logging.getLogger("flwr").setLevel(logging.ERROR)
    strategy = STRATEGIES[name](fraction_evaluate=0.0) if "Adam" in name or "Avg" in name else STRATEGIES[name]()
    shape = (parameters // ARRAYS,)
    first = ArrayRecord({f"w{i}": Array(np.zeros(shape, np.float32)) for i in range(ARRAYS)})
    grid = Link(clients)
    if name.startswith("fastagg"):
        gc.collect()
        gc.disable()
    before = at_rest()
    forget_peak()
    strategy.start(grid, first, num_rounds=ROUNDS)
    return (resident("VmHWM") - before) / (4 * parameters)


def measured(name: str, parameters: int, clients: int) -> float:
    """Run :func:`peak` in a process of its own."""
    command = [sys.executable, __file__, "--one", name, "--parameters", str(parameters), "--clients", str(clients)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return float(json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--parameters", type=int, default=100_000_000)
    parser.add_argument("--clients", type=int, nargs="+", default=[4, 16, 64])
    parser.add_argument("--strategies", nargs="+", choices=STRATEGIES, default=list(STRATEGIES))
    parser.add_argument("--one", choices=STRATEGIES, help="measure one in this process")
    given = parser.parse_args()
    if given.one:
        torch.set_num_threads(2)
        print(json.dumps(peak(given.one, given.parameters, given.clients[0])))
        return
    print("| strategy |", " | ".join(f"{count} clients" for count in given.clients), "|")
    print("|---|" + "---:|" * len(given.clients))
    for name in given.strategies:
        found = [measured(name, given.parameters, count) for count in given.clients]
        print(f"| {name} | {' | '.join(f'{value:.1f}' for value in found)} |", flush=True)


if __name__ == "__main__":
    main()
