"""Client updates a second here, in threads, in a pool of processes, and on Ray. Run it alone on a machine:

    python bench/engines.py [--rounds 5] [--uploads 150] [--workers 1 2]

A round runs every engine once, in a random order; medians of the rounds are printed, in Markdown. Workers have begun
and a part of the run is over before the clock starts. The second table is what an engine costs by itself: tasks that do
nothing, which take a version's weights and give back as many numbers. Ray is measured where it is installed.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import statistics
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import checkout  # noqa: F401
import torch

from fastagg.sim import engines
from fastagg.sim.one.simulation import Simulation
from fastagg.sim.recipes import config
from fastagg.sim.recipes.config import Config
from fastagg.timing import HostClock, Stopwatch

Engine = tuple[str, int | None]  # its name and how many workers

MODELS: dict[str, tuple[dict[str, Any], bool, float]] = {  # the model, whether without torch, its share of the uploads
    "MLP, 64": ({"name": "mlp", "widths": [64]}, True, 8.0),
    "MLP, 64; by torch": ({"name": "mlp", "widths": [64]}, False, 2.0),
    "CNN, 16 and 32 channels": ({"name": "cnn", "widths": [16, 32]}, True, 4.0),
    "CNN, 16 and 32 channels; by torch": ({"name": "cnn", "widths": [16, 32]}, False, 1.0),
    "MLP, 4.1 million parameters": ({"name": "mlp", "widths": [2000, 2000]}, True, 0.4),
}
SIZES = (1_000, 100_000, 10_000_000)
WARM = 0.3  # of the uploads
PER_VERSION = 5  # tasks


def recipe(model: dict[str, Any], fused: bool) -> Config:
    """Twenty-five of fifty clients in flight, two epochs of batches of 50 on digits, a buffer of 5."""
    values = {
        "name": "engines",
        "algorithm": {"name": "FedBuff", "buffer_size": 5},
        "data": {"name": "digits", "clients": 50},
        "model": model,
        "client": {"lr": 0.02, "epochs": 2},
        "delay": {"name": "three-class"},
        "participation": {"rule": "concurrency", "concurrency": 25},
        "run": {"uploads": 1_000_000, "fused": fused},
    }
    return config.from_dict(values, "bench")


def updates(given: Config, engine: Engine, uploads: int) -> float:
    """Client updates a second of a run that goes on already."""
    with contextlib.closing(Simulation(given, engine=engine[0], workers=engine[1])) as simulation:  # type: ignore[arg-type]
        for _ in range(max(1, int(WARM * uploads))):
            simulation.step()
        return 1 / HostClock().sample("", simulation.step, uploads)


def nothing() -> Callable[..., Any]:
    """What a worker begins with whose tasks cost nothing: they give back as many zeros as there are weights."""
    made: dict[int, Any] = {}

    def do(task: Any, weights: Any) -> Any:
        size = len(weights)
        if size not in made:
            made[size] = torch.zeros(size).numpy()
        return made[size]

    return do


def overhead(engine: Engine, size: int, tasks: int) -> tuple[float, float]:
    """Seconds of one task after the other, and of a task among many that are submitted at once."""
    with contextlib.closing(engines.start(engine[0], engine[1], nothing)) as crew:
        model, weights = torch.zeros(size).numpy(), None

        def ask(count: int) -> list[Any]:
            nonlocal weights
            asked = []
            for number in range(count):
                if number % PER_VERSION == 0:
                    weights = crew.put(model)
                asked.append(crew.submit(None, weights))
            return asked

        def answers(asked: list[Any]) -> None:
            assert all(len(future.result()) == size for future in asked)

        answers(ask(2 * crew.count + 3))
        watch = Stopwatch(["alone", "among"])
        with watch.timing("alone"):
            for _ in range(tasks):
                answers(ask(1))
        with watch.timing("among"):
            answers(ask(tasks))
        return watch.seconds["alone"] / tasks, watch.seconds["among"] / tasks


def _name(engine: Engine) -> str:
    return "here" if engine[1] is None else f"{'threads' if engine[0] == 'here' else engine[0]}, {engine[1]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--uploads", type=int, default=150, help="of the slower models; others take more (150)")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--tasks", type=int, default=300, help="that do nothing (300)")
    given = parser.parse_args()
    names = ["pool", "ray"] if find_spec("ray") else ["pool"]
    crews: list[Engine] = [(name, count) for name in names for count in given.workers]
    others: list[Engine] = [*(("here", count) for count in given.workers if count > 1), *crews]
    if "ray" in names:
        import ray

        ray.init(address="local", num_cpus=max(given.workers), include_dashboard=False, log_to_driver=False)
    torch.set_num_threads(1)
    draw = random.Random(0)
    candidates: list[Engine] = [("here", None), *others]
    print("Client updates a second, and how many times those of one process:\n")
    print("| model | " + " | ".join(map(_name, candidates)) + " |")
    print("|---|" + "---:|" * len(candidates), flush=True)
    for label, (model, fused, share) in MODELS.items():
        # Torch trains one client at a time in a process.
        able = [engine for engine in candidates if fused or engine[0] != "here" or engine[1] is None]
        found: dict[Engine, list[float]] = {engine: [] for engine in able}
        for _ in range(given.rounds):
            for engine in draw.sample(able, len(able)):
                found[engine].append(updates(recipe(model, fused), engine, max(1, int(share * given.uploads))))
        cells = [f"{statistics.median(found[candidates[0]]):,.0f}"]
        for engine in others:
            if engine not in able:
                cells.append("")
                continue
            ratio = statistics.median(a / b for a, b in zip(found[engine], found[candidates[0]], strict=True))
            cells.append(f"{statistics.median(found[engine]):,.0f} ({ratio:.2f})")
        print(f"| {label} | " + " | ".join(cells) + " |", flush=True)
    print("\nA task that does nothing, in milliseconds: one after the other; among many\n")
    print("| parameters | " + " | ".join(map(_name, crews)) + " |")
    print("|---:|" + "---:|" * len(crews), flush=True)
    for size in SIZES:
        tasks = max(10, min(given.tasks, int(given.tasks * 1e6 / size)))
        times: dict[Engine, list[tuple[float, float]]] = {engine: [] for engine in crews}
        for _ in range(given.rounds):
            for engine in draw.sample(crews, len(crews)):
                times[engine].append(overhead(engine, size, tasks))
        cells = []
        for engine in crews:
            alone, among = (statistics.median(pair[i] for pair in times[engine]) * 1e3 for i in (0, 1))
            cells.append(f"{alone:.2f}; {among:.2f}")
        print(f"| {size:,} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
