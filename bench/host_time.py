"""Measures the host's time for an answer on a CUDA device, without a device. Kernels of the emulation do nothing.

python bench/host_time.py [SIZE] prints for each rule the median microseconds of a task and its answer. It needs a build
with -DFASTAGG_EMULATE_CUDA=ON (tests/emulation).
"""

from __future__ import annotations

import statistics
import sys
import time

import torch

import fastagg
from fastagg._build import native
from fastagg.ops.place import emulated

RULES = {
    "ASGD": lambda x, **k: fastagg.ASGD(x, lr=0.1, **k),
    "FedAsync": lambda x, **k: fastagg.FedAsync(x, **k),
    "FedBuff": lambda x, **k: fastagg.FedBuff(x, buffer_size=10, **k),
    "FADAS": lambda x, **k: fastagg.FADAS(x, lr=0.1, buffer_size=10, **k),
}


def main(size: int) -> None:
    update = torch.ones(size)
    with emulated():
        for name, make in RULES.items():
            server = make(torch.zeros(size))
            took: dict[str, list[float]] = {"dispatch": [], "receive": []}
            for turn in range(3000):
                native.emulation.empty_launches(turn >= 100)  # a norm must have been there
                begun = time.perf_counter()
                server.dispatch(turn % 8)
                between = time.perf_counter()
                server.receive(turn % 8, update)
                took["dispatch"].append(between - begun)
                took["receive"].append(time.perf_counter() - between)
            native.emulation.empty_launches(False)
            said = ", ".join(f"{key} {1e6 * statistics.median(all_):.1f} us" for key, all_ in took.items())
            print(f"{name}, {size}: {said}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1000)
