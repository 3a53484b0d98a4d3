"""What waking worker threads costs, and what keeping them awake costs: python bench/wakeup.py

Three small tables, medians of interleaved samples:

- a small step after a pause: workers are still awake after a short one and asleep after a long one
- the processor time that a call takes, beside what it takes on one thread: what idle workers spend awake
- a step right after an operation of torch's, whose own threads stay awake for milliseconds on the cores that ours need
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))

import torch

import fastagg
from fastagg import ops, tuning
from fastagg.parts import moments
from fastagg.storage import memory

PAUSES = (0.0, 20e-6, 100e-6, 1e-3, 10e-3)
SPINS = (0, 50, 1000)


def main() -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=100_000, help="parameters of the small step")
    parser.add_argument("--large", type=int, default=11_200_000, help="parameters of the step after torch")
    parser.add_argument("--rounds", type=int, default=41)
    given = parser.parse_args()
    print(f"{tuning.processor()}; {fastagg.get_num_threads()} threads; usual spin {tuning.current()['spin']} us\n")
    after_a_pause(given.size, given.rounds)
    processor_time(given.size, given.rounds)
    after_torch(given.large, max(9, given.rounds // 4))
    return 0


def amsgrad(size: int) -> Callable[[], object]:
    """A step in place."""
    x, update = memory.zeros(size), memory.empty(size).fill_(1e-3)
    state = moments.zeros("amsgrad", "fp32", size)
    return lambda: ops.step_(x, update, optimizer="amsgrad", lr=1e-3, **state)


def awake(seconds: float) -> None:
    """Pass the time without giving the core away: the caller is a server that is busy with something else."""
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass


def timed(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def after_a_pause(size: int, rounds: int) -> None:
    run, threads = amsgrad(size), fastagg.get_num_threads()
    print(f"AMSGrad at {size:,} parameters, microseconds, after a pause of\n")
    print("| spin, us | threads | " + " | ".join(f"{1e6 * pause:,.0f} us" for pause in PAUSES) + " |")
    print("|" + "---|" * (2 + len(PAUSES)))
    for spin, count in [(0, 1), *((spin, threads) for spin in SPINS)]:
        tuning.set_tuning({"spin": spin})
        fastagg.set_num_threads(count)
        cells = []
        for pause in PAUSES:
            for _ in range(3):
                run()
            samples = []
            for _ in range(rounds):
                awake(pause)
                samples.append(timed(run))
            cells.append(f"{1e6 * statistics.median(samples):.1f}")
        print(f"| {spin} | {count} | " + " | ".join(cells) + " |")
    fastagg.set_num_threads(threads)
    print()


def processor_time(size: int, rounds: int) -> None:
    run, threads, pause = amsgrad(size), fastagg.get_num_threads(), 1e-3
    print("Processor time of a call and the millisecond after it, microseconds (the caller sleeps meanwhile)\n")
    print("| spin, us | threads | processor time | more than one thread takes |")
    print("|---|---|---|---|")
    alone = 0.0
    for spin, count in [(0, 1), *((spin, threads) for spin in SPINS)]:
        tuning.set_tuning({"spin": spin})
        fastagg.set_num_threads(count)
        run()
        samples = []
        for _ in range(rounds):
            time.sleep(pause)
            start = time.process_time()
            run()
            time.sleep(pause)
            samples.append(time.process_time() - start)
        taken = statistics.median(samples)
        alone = alone or taken
        print(f"| {spin} | {count} | {1e6 * taken:.0f} | {1e6 * (taken - alone):.0f} |")
    fastagg.set_num_threads(threads)
    print()


def after_torch(size: int, rounds: int) -> None:
    run, busy = amsgrad(size), torch.zeros(size)
    settings: dict[str, Callable[[], object]] = {
        "after a quiet 20 ms": lambda: awake(0.02),
        "right after torch's add_": lambda: busy.add_(1.0),
        "right after torch's add_ and a pause of 5 ms": lambda: (busy.add_(1.0), awake(0.005)),
    }
    samples: dict[str, list[float]] = {name: [] for name in settings}
    tuning.set_tuning({"spin": 50})
    for _ in range(rounds):
        for name, before in settings.items():
            before()
            samples[name].append(timed(run))
    print(f"AMSGrad at {size:,} parameters, milliseconds, {fastagg.get_num_threads()} threads\n")
    print("| | median | p20 | p80 |")
    print("|---|---|---|---|")
    for name, taken in samples.items():
        ordered = sorted(taken)
        p20, p80 = ordered[len(ordered) // 5], ordered[4 * len(ordered) // 5]
        print(f"| {name} | {1e3 * statistics.median(taken):.2f} | {1e3 * p20:.2f} | {1e3 * p80:.2f} |")
    print()


if __name__ == "__main__":
    sys.exit(main())
