"""How long answers wait for a server, by a model and for real: python bench/ingest.py [--size 1e7]

Answers come at random times (Poisson), or in bursts. The server takes them one at a time, as its lock has it. The model
is a queue with the service times of a server that nobody else uses. The real run has a thread for each of many clients.
"""

from __future__ import annotations

import argparse
import random
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

import checkout  # noqa: F401
import torch

import fastagg
from fastagg.timing import Stopwatch, seconds

THREADS = 32


@dataclass(frozen=True)
class Waiting:
    """One run: the seconds from an answer's arrival until it is counted, and how many answers waited at once."""

    p50: float
    p99: float
    queue: int

    @classmethod
    def of(cls, came: Sequence[float], done: Sequence[float]) -> Waiting:
        took = sorted(end - begin for begin, end in zip(came, done, strict=True))
        moves = sorted([(at, 1) for at in came] + [(at, -1) for at in done])
        waiting = most = 0
        for _, move in moves:
            waiting += move
            most = max(most, waiting)
        return cls(took[len(took) // 2], took[min(len(took) - 1, int(0.99 * len(took)))], most)


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


def alone(server: fastagg.Server, update: torch.Tensor, count: int) -> list[float]:
    """Return the seconds of ``count`` arrivals at an otherwise idle server."""
    found = []
    for _ in range(count):
        time.sleep(0.005)
        server.dispatch("alone")
        found.append(seconds(lambda: server.receive("alone", update)))
    return found


def main() -> None:
    """Print the model's and the real figures for several loads, as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=float, default=1e7, help="parameters (1e7)")
    parser.add_argument("--count", type=int, default=600, help="answers of each run (600)")
    given = parser.parse_args()
    server = fastagg.FADAS(torch.zeros(int(given.size)), lr=1e-3, buffer_size=1)
    update = torch.randn(int(given.size)) * 1e-3
    alone(server, update, 20)
    service = alone(server, update, 200)
    mean = sum(service) / len(service)
    print(f"FADAS, M = 1, {given.size:.0e} parameters: {mean * 1e3:.2f} ms an arrival alone\n")
    print("| load | together | p50, model | real | p99, model | real | longest queue, model | real |")
    print("|---:|---:|---:|---:|---:|---:|---:|---:|")
    for load, burst in ((0.3, 1), (0.6, 1), (0.8, 1), (0.3, 8), (0.6, 8)):
        came = arrivals(given.count, load / mean, burst, seed=1)
        expected = Waiting.of(came, model(came, service, seed=2))
        found = Waiting.of(came, serve(server, update, came))
        print(
            f"| {load:.0%} | {burst} | {expected.p50 * 1e3:.1f} ms | {found.p50 * 1e3:.1f} ms | "
            f"{expected.p99 * 1e3:.1f} ms | {found.p99 * 1e3:.1f} ms | {expected.queue} | {found.queue} |"
        )


if __name__ == "__main__":
    main()
