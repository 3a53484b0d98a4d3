"""One setting of the processor's table, two values, side by side: python bench/settings.py stream_from 0 1048576

Steps that write a new version beside the old one, and steps in place, interleaved call by call. A cell is the step's
time under the first value over its time under the second: above 1 the second is faster.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from itertools import cycle
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))

import fastagg
from fastagg import ops, tuning
from fastagg.parts import moments
from fastagg.storage import memory

CLIENTS = 4


def main() -> int:
    """Print a table for each thread count."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("setting", choices=sorted(tuning.current()))
    parser.add_argument("values", type=int, nargs=2)
    parser.add_argument(
        "--sizes", type=lambda text: int(float(text)), nargs="+", default=[10**6, 3 * 10**6, 11_200_000]
    )
    parser.add_argument("--threads", type=int, nargs="+", default=[1, fastagg.get_num_threads()])
    parser.add_argument("--rounds", type=int, default=25)
    given = parser.parse_args()
    first, second = given.values
    print(f"{tuning.processor()}; {given.setting}: time with {first} over time with {second}\n")
    for threads in given.threads:
        fastagg.set_num_threads(threads)
        print(f"| threads: {threads} | " + " | ".join(f"{size:,}" for size in given.sizes) + " |")
        print("|---|" + "---|" * len(given.sizes))
        columns = [ratios(size, given.setting, (first, second), given.rounds) for size in given.sizes]
        for name in columns[0]:
            print(f"| {name} | " + " | ".join(f"{column[name]:.2f}" for column in columns) + " |")
        print(flush=True)
    return 0


def steps(size: int) -> dict[str, Callable[[], object]]:
    """What is timed."""
    g, x, y, acc, total = (memory.zeros(size) for _ in range(5))
    g.fill_(1e-3)
    cache, held, turn = (
        fastagg.ClientCache(size, CLIENTS),
        moments.zeros("amsgrad", "fp32", size),
        cycle(range(CLIENTS)),
    )
    cache.data.zero_()

    def arrival() -> object:
        slot = next(turn)
        return ops.cached_step_(None, g, cache=cache, write=slot, read=(slot + 1) % CLIENTS, acc=acc)

    rows = {"cache": cache, "write": 0, "read": 0, "sum": total, "sum_scale": -0.1, "optimizer": "sgd", "lr": 0.1}
    return {
        "AMSGrad in place": lambda: ops.step_(x, g, optimizer="amsgrad", lr=0.1, **held),
        "AMSGrad into a new version": lambda: ops.step_(x, g, optimizer="amsgrad", lr=0.1, out=y, **held),
        "flush in place": lambda: ops.step_(x, g, acc=acc, scale=0.1, optimizer="sgd", lr=0.1),
        "flush into a new version": lambda: ops.step_(x, g, acc=acc, scale=0.1, optimizer="sgd", lr=0.1, out=y),
        "mixing into a new version": lambda: ops.step_(x, g, base=acc, weight=0.1, optimizer="sgd", lr=1.0, out=y),
        "ACE fp32 into a new version": lambda: ops.cached_step_(x, g, out=y, **rows),
        "CA2FL arrival": arrival,
        "a sum begun anew": lambda: ops.accumulate_(acc, g, fresh=True),
    }


def ratios(size: int, setting: str, values: tuple[int, int], rounds: int) -> dict[str, float]:
    """Median ratio of each step."""
    calls, found = max(1, 2_000_000 // size), {}
    for name, run in steps(size).items():
        taken: dict[int, list[float]] = {value: [] for value in values}
        for turn in range(rounds):
            for value in values if turn % 2 else values[::-1]:
                tuning.set_tuning({setting: value})
                run()
                start = time.perf_counter()
                for _ in range(calls):
                    run()
                taken[value].append(time.perf_counter() - start)
        found[name] = statistics.median(a / b for a, b in zip(*taken.values(), strict=True))
    return found


if __name__ == "__main__":
    sys.exit(main())
