"""Local training of clients in flight, one by one and in batches: python bench/simulator.py

Client-updates per second with 25 clients in flight, digits at Dir(0.3), two epochs of batches of 50, on one torch
thread (the simulator's own setting), and on all of them for the batches.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))

import os

import torch
from timing import interleave

from fastagg.sim.config import from_dict
from fastagg.sim.simulation import Simulation

MODELS = (
    ("mlp, 64", {"name": "mlp", "widths": [64]}),
    ("cnn, 4 and 8 channels", {"name": "cnn", "widths": [4, 8]}),
    ("cnn, 16 and 32 channels", {"name": "cnn", "widths": [16, 32]}),
)


def measure(label: str, model: dict[str, object], rounds: int) -> None:
    """Print one row."""
    values = {
        "name": "bench",
        "algorithm": {"name": "FedBuff", "buffer_size": 5},
        "data": {"name": "digits", "clients": 50},
        "model": model,
        "client": {"lr": 0.1, "epochs": 2},
        "delay": {"name": "three-class"},
        "participation": {"rule": "concurrency", "concurrency": 25},
        "run": {"uploads": 25},
    }
    simulation = Simulation(from_dict(values, "bench"))
    jobs, batched, clients = simulation.schedule.in_flight(), simulation.batched, simulation.data.clients
    assert batched is not None

    def alone() -> None:
        torch.set_num_threads(1)
        for job in jobs:
            simulation.trainer.train(job.task, clients[job.client], job.client, job.number)

    def together(threads: int) -> None:
        torch.set_num_threads(threads)
        batched.train(jobs)

    cores = os.cpu_count() or 1
    candidates = {"alone": alone, "together": lambda: together(1), "all cores": lambda: together(cores)}
    # A run trains without a pause, so that a sample is many calls: a core that has just slept is slow for some ten ms.
    timings = interleave(candidates, rounds=rounds, least=0.3)
    rate = {name: len(jobs) / timings.seconds(name).p50 for name in candidates}
    times = {name: timings.ratio("alone", name).p50 for name in candidates}
    print(
        f"| {label} | {rate['alone']:.0f} | {rate['together']:.0f} ({times['together']:.1f}x) | "
        f"{rate['all cores']:.0f} ({times['all cores']:.1f}x) |",
        flush=True,
    )


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    given = parser.parse_args()
    print("| model | updates/s one by one | in batches | in batches, all cores |\n|---|---|---|---|")
    for label, model in MODELS:
        measure(label, model, given.rounds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
