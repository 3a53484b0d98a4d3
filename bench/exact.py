"""Compares the time of a fold into an exact sum with one in fp32, in a leaf and in a server: python bench/exact.py"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import torch

import fastagg
from fastagg import timing

FOLDS, LARGEST = 10, 8.0


def leaf(update: torch.Tensor, exact: float | None) -> Callable[[], None]:
    made = fastagg.Leaf(torch.zeros(update.numel()), exact=exact)

    def folds() -> None:
        for _ in range(FOLDS):
            made.fold(update)

    return folds


def server(update: torch.Tensor, exact: float | None) -> Callable[[], None]:
    made = fastagg.FedBuff(torch.zeros(update.numel()), buffer_size=FOLDS, exact=exact)

    def folds() -> None:
        for client in range(FOLDS):
            made.dispatch(client)
            made.receive(client, update)

    return folds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=float, nargs="+", default=[1e6, 1e7, 1e8])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=15)
    given = parser.parse_args()
    fastagg.set_num_threads(given.threads)
    for size in map(int, given.size):
        update = torch.randn(size, generator=torch.Generator().manual_seed(0))
        update *= 0.9 * LARGEST / update.norm()
        for make in (leaf, server):
            acts: list[Any] = [make(update, exact) for exact in (None, LARGEST)]
            for act in acts:
                act()  # its memory is there
            found = timing.interleave(dict(zip(("fp32", "exact"), acts, strict=True)), rounds=given.rounds, least=0.0)
            floats, whole = (min(found.samples(name)) / FOLDS for name in ("fp32", "exact"))
            print(
                f"{make.__name__}, {size:,} parameters: fp32 {1e3 * floats:.3f} ms a fold, exact {1e3 * whole:.3f} ms, "
                f"ratio {whole / floats:.2f}"
            )


if __name__ == "__main__":
    main()
