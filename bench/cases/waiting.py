"""How long answers wait for a server: FADAS with M = 1, beside a model of the queue.

Answers come at random times (Poisson), or several together. The server takes them one at a time. The model is a queue
with the service times of a server that nobody else uses. The real run has a thread for each of many clients. A figure
is the median of the seconds from an answer's arrival until it is counted, beside ``p99`` and the longest ``queue``.
"""

from __future__ import annotations

import random
import statistics
import threading
import time
from collections.abc import Sequence
from functools import partial

import torch
from problem import Built, Candidate, Case, Problem
from timing import seconds

import fastagg
from fastagg.timing import Stopwatch

THREADS, ANSWERS = 32, 600


def waits(came: Sequence[float], done: Sequence[float]) -> tuple[float, float, int]:
    """Return the median and the 99th percentile of the waits, and how many answers waited at once."""
    took = sorted(end - begin for begin, end in zip(came, done, strict=True))
    waiting = most = 0
    for _, move in sorted([(at, 1) for at in came] + [(at, -1) for at in done]):
        waiting += move
        most = max(most, waiting)
    return took[len(took) // 2], took[min(len(took) - 1, int(0.99 * len(took)))], most


def arrivals(count: int, rate: float, burst: int, seed: int) -> list[float]:
    """Return arrival times of ``count`` answers: ``rate`` per second on average, ``burst`` of them together."""
    draw, at, found = random.Random(seed), 0.0, list[float]()
    while len(found) < count:
        at += draw.expovariate(rate / burst)
        found += [at] * min(burst, count - len(found))
    return found


def model(came: Sequence[float], service: Sequence[float], seed: int) -> list[float]:
    """Return when each answer is done, by Lindley's recursion: it begins when it has come and the last one is done."""
    draw, free, done = random.Random(seed), 0.0, []
    for at in came:
        free = max(at, free) + draw.choice(service)
        done.append(free)
    return done


def serve(server: fastagg.Server, update: torch.Tensor, came: Sequence[float]) -> list[float]:
    """Measure the same with a real server: each thread waits until the next answer's time and hands it in."""
    done, numbers, lock = [0.0] * len(came), iter(range(len(came))), threading.Lock()
    for client in range(len(came)):
        server.dispatch(client)
    watch, begin = Stopwatch(), 0.1

    def client() -> None:
        while True:
            with lock:
                number = next(numbers, None)
            if number is None:
                return
            time.sleep(max(0.0, begin + came[number] - watch.total))
            server.receive(number, update)
            done[number] = watch.total - begin

    threads = [threading.Thread(target=client) for _ in range(THREADS)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    return done


def _built(problem: Problem, load: float, burst: int, real: bool) -> Built:
    server = fastagg.FADAS(torch.zeros(problem.size), lr=1e-3, buffer_size=1)
    service = []
    for _ in range(220):  # alone; the first ones allocate memory
        time.sleep(0.005)
        server.dispatch("alone")
        service.append(seconds(lambda: server.receive("alone", problem.update)))
    came = arrivals(ANSWERS, load / statistics.mean(service[20:]), burst, seed=1)
    last: list[tuple[float, float, int]] = []

    def run() -> float:
        done = serve(server, problem.update, came) if real else model(came, service[20:], seed=2)
        last.append(waits(came, done))
        return last[-1][0]

    told = lambda: {"p99": statistics.median(one[1] for one in last), "queue": max(one[2] for one in last)}  # noqa: E731
    return Built(run, None, warm=0, told=told)


def _candidates(load: float, burst: int) -> list[Candidate]:
    return [
        Candidate(name, partial(_built, load=load, burst=burst, real=real), 6)
        for name, real in (("fastagg", True), ("fastagg, a model of the queue", False))
    ]


CASES = [
    Case(f"waiting, load {load:.0%}, {burst} together", 0, partial(_candidates, load, burst), "disk", (10_000_000,),
         devices=("cpu",), told=True)
    for load, burst in ((0.3, 1), (0.6, 1), (0.8, 1), (0.3, 8), (0.6, 8))
]  # fmt: skip
