"""Compares parts and leaves with a server in one process: python bench/parts.py [PARAMETERS]

It prints the median time of a dispatch and an answer, with the 20th and the 80th percentile. The rule is FADAS with a
buffer of 1, in fp32. Answers wait for the disk, in a folder under TMPDIR. The variants take turns. Ray runs on this
machine, so its parts share the cores with the driver. A leaf's sum has one update, which takes no time to train.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import ray
import torch

import fastagg
from fastagg.integrations.ray import Leaves, Parts

TENSORS, ROUNDS = 10, 31


def make(params: Any) -> fastagg.Server:
    return fastagg.FADAS(params, lr=0.01, buffer_size=1)


def ways(size: int, folder: Path) -> dict[str, Callable[[], object]]:
    """Return, for each variant, a function that makes a dispatch and an answer."""
    model = {f"layer{i}.weight": torch.zeros(size // TENSORS) for i in range(TENSORS)}
    update = {name: torch.full_like(array, 1e-3) for name, array in model.items()}
    cut, threads = fastagg.parts(model, 2), ThreadPoolExecutor(2)
    whole = fastagg.open(folder / "whole", lambda: make(model))
    here = [fastagg.open(folder / f"here-{i}", lambda part=part: make(part)) for i, part in enumerate(cut)]
    there, root = Parts(cut, make, folder / "ray"), fastagg.open(folder / "root", lambda: make(model))
    sums = Leaves(root, {"leaf": [0]}, lambda client, task: (torch.full_like(task.flat, 1e-3), None)).sums()

    def answer(server: fastagg.Server, given: Any) -> None:
        server.receive(0, given, task=server.dispatch(0).id)

    return {
        "one process": lambda: answer(whole, update),
        "two parts in threads of a process": lambda: list(threads.map(answer, here, cut.split(update))),
        "two parts on Ray": lambda: there.receive(there.dispatch(0), update),
        "a leaf's sum on Ray": lambda: next(sums),
    }


def main() -> None:
    size = int(float(sys.argv[1])) if len(sys.argv) > 1 else 10_000_000
    ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False)
    with TemporaryDirectory() as folder:
        found = ways(size, Path(folder))
        taken: dict[str, list[float]] = {name: [] for name in found}
        for turn in range(ROUNDS + 3):  # the first three turns allocate memory, and are not timed
            for name, way in found.items():
                begun = time.perf_counter()
                way()
                if turn >= 3:
                    taken[name].append(1e3 * (time.perf_counter() - begun))
        for name, times in taken.items():
            low, *_, high = statistics.quantiles(times, n=5)
            print(f"{name}: {statistics.median(times):.1f} ms ({low:.1f} to {high:.1f})")
        ray.shutdown()


if __name__ == "__main__":
    main()
