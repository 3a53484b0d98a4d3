"""Flower's rounds: memory at the peak by the number of clients whose replies arrive one by one; and Flower's own
processes on loopback, where nodes move ResNet-18 and do not train, or one of four is slow."""

from __future__ import annotations

import json
import logging
import os
import random
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import checkout
import numpy as np
from problem import Built, Candidate, Case, Problem, Skip

import fastagg
from cases.servers import CLIENTS, SIZE

BENCH = Path(__file__).resolve().parents[1]
ARRAYS, ROUNDS = 20, 3
SECONDS, SLOW = 120.0, 30.0  # of a run with a slow client, and how much longer it takes
UPLOADS = {"FedBuff": 2, "FADAS": 2, "FedAvg": 4, "FedAMS": 4}  # per version


def _needed() -> None:
    """The tests' helpers for Flower are in a checkout only."""
    try:
        import flwr  # noqa: F401
    except ImportError as error:
        raise Skip(str(error)) from error
    if not checkout.PATHS:
        raise Skip("it needs the repository's tests/support")
    if (tests := str(checkout.ROOT / "tests")) not in sys.path:
        sys.path.append(tests)


def _strategy(rule: str, whose: str) -> Any:
    from flwr.serverapp import strategy as theirs

    from fastagg.integrations.flower import AsyncStrategy, SyncStrategy, tasks

    tasks.POLL = 0.0
    make: dict[str, Any] = {
        "FedAvg": fastagg.FedAvg, "FedAdam": partial(fastagg.FedAdam, lr=0.01),
        "FedBuff": partial(fastagg.FedBuff, buffer_size=4), "FADAS": partial(fastagg.FADAS, lr=0.01, buffer_size=4),
    }  # fmt: skip
    if whose == "Flower":
        return getattr(theirs, rule)(fraction_evaluate=0.0)
    if rule in ("FedAvg", "FedAdam"):
        return SyncStrategy(make[rule], fraction_evaluate=0.0)
    return AsyncStrategy(make[rule])


def _rounds(problem: Problem, rule: str, whose: str, clients: int) -> Built:
    """Three rounds of a strategy. The replies are in other processes until they are pulled."""
    _needed()
    from flwr.app import Array, ArrayRecord, Message
    from support.flower_apps import FakeGrid, reply

    from fastagg.integrations.flower import write

    logging.getLogger("flwr").setLevel(logging.ERROR)

    class Link(FakeGrid):
        """A SuperLink: a reply takes no memory here until it is pulled, one at a time, as by chance."""

        def __init__(self) -> None:
            super().__init__(lambda message: None, range(1, clients + 1))
            self.chance = random.Random(0)

        def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
            return [self.answer(message_id) for message_id in message_ids if self.chance.random() < 0.3]

        def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
            return [self.answer(one) for one in self.push_messages(messages)]

        def push_messages(self, messages: Iterable[Message]) -> list[str]:
            ids = super().push_messages(messages)
            for message_id in ids:
                self.log[int(message_id[1:])][1].__dict__["_content"] = None  # it has left this process
            return ids

        def answer(self, message_id: str) -> Message:
            answer = reply({}, loss=1.0)
            answer["arrays"] = ArrayRecord()
            for name in first:
                answer["arrays"][name] = write([np.full(problem.size // ARRAYS, 0.001, np.float32)])["0"]
            return Message(answer, reply_to=self.log[int(message_id[1:])][1])

    zeros = {f"w{i}": Array(np.zeros(problem.size // ARRAYS, np.float32)) for i in range(ARRAYS)}
    first = ArrayRecord(zeros)
    return Built(lambda: _strategy(rule, whose).start(Link(), first, num_rounds=ROUNDS), None, warm=0)


def _processes(act: Callable[[Any], float], app: Path | None = None) -> float:
    """Run ``act`` with Flower's processes, which can import fastagg and the benchmarks."""
    from support.federation import Federation

    os.environ["PYTHONPATH"] = f"{BENCH.parent}{os.pathsep}{BENCH}"
    with tempfile.TemporaryDirectory() as folder:
        flower = Federation(Path(folder), **({} if app is None else {"app": app}))
        try:
            return act(flower)
        finally:
            flower.close()


def _moved(problem: Problem, rule: str, whose: str) -> Built:
    """Ten nodes do not train. Return the seconds of a round; ``aggregation`` and ``after the last reply`` are parts of
    it, and ``held`` and ``peak`` the ServerApp's memory in models."""
    _needed()
    seen: list[dict[str, float]] = []

    def act(flower: Any) -> float:
        for part in range(CLIENTS):
            flower.node(part, CLIENTS)
        flower.run("run", rule=rule, whose=whose, rounds=ROUNDS + 1, nodes=CLIENTS)
        log = flower.wait("run", "BENCH done", 300 + 120 * ROUNDS)
        rows = [json.loads(line) for line in re.findall(r"BENCH (\{.*\})", log)]
        seen.extend(rows[1:] or rows)  # the first round also waits for processes to start
        return statistics.median(row["round"] for row in rows[1:] or rows)

    def told() -> dict[str, float]:
        return {name: statistics.median(row[name] for row in seen) for name in seen[0] if name != "round"}

    return Built(lambda: _processes(act, BENCH / "flower_app"), None, warm=0, told=told)


def _straggling(problem: Problem, rule: str) -> Built:
    """Four nodes train the digits, one is slow. Return the seconds of an update; accuracies are told."""
    _needed()
    seen: list[dict[str, float]] = []

    def act(flower: Any) -> float:
        with open(flower.app / "digits" / "server_app.py", "a") as file:
            file.write(_CLOCK)
        for part in range(4):
            flower.node(part, 4, slow=SLOW if part == 3 else 0.0)
        flower.run("run", rule=rule, versions=10_000)
        flower.wait("run", "BENCH ", 120)
        time.sleep(SECONDS)
        rows = [(float(when), float(found)) for when, found in re.findall(r"BENCH (\S+) (\S+)", flower.log("run"))]
        begun, updates = rows[0][0], (len(rows) - 1) * UPLOADS[rule]
        half = [found for when, found in rows if when - begun <= SECONDS / 2][-1]
        seen.append({"after 8 updates": rows[min(8 // UPLOADS[rule], len(rows) - 1)][1], "after half": half,
                     "at the end": rows[-1][1]})  # fmt: skip
        return SECONDS / max(1, updates)

    def told() -> dict[str, float]:
        return {f"accuracy {name}": statistics.median(one[name] for one in seen) for name in seen[0]}

    return Built(lambda: _processes(act), None, warm=0, told=told)


_CLOCK = """
import time

_accuracy = accuracy


def accuracy(*given):  # of the model that every version is
    found = _accuracy(*given)
    print(f"BENCH {time.time():.2f} {found:.4f}", flush=True)
    return found
"""


def _case(name: str, size: int, candidates: list[Candidate], **more: Any) -> Case:
    return Case(name, 0, lambda: candidates, "processes", (size,), devices=("cpu",), **more)


def _both(build: Callable[..., Built], rule: str, **how: Any) -> list[Candidate]:
    sides = ("fastagg", "Flower") if rule in ("FedAvg", "FedAdam") else ("fastagg",)
    return [Candidate(whose, partial(build, rule=rule, whose=whose, **how), 12) for whose in sides]


STRAGGLING = {"fastagg": "FedBuff", **{f"fastagg, {rule}": rule for rule in UPLOADS if rule != "FedBuff"}}
RULES = ("FedAvg", "FedAdam", "FedBuff", "FADAS")
CASES = [
    *(
        _case(f"Flower's rounds, {rule}, {clients} clients", 100_000_000, _both(_rounds, rule, clients=clients),
              period=ROUNDS * clients, peaks=True)
        for rule in RULES
        for clients in (4, 16, 64)
    ),
    *(_case(f"Flower's processes, {rule}", SIZE, _both(_moved, rule), told=True) for rule in RULES),
    _case(
        "Flower's processes, one slow client", 650,
        [Candidate(name, partial(_straggling, rule=rule), 0) for name, rule in STRAGGLING.items()],
        told=True,
    ),
]  # fmt: skip
