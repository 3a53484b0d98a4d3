"""What the simulator adds to the training it simulates: wall time per client update, from a packaged recipe."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import turns
from records import Row

RECIPES = ("fedbuff-synthetic-exponential", "fadas-digits-large", "ace-digits-exponential")
CANDIDATES = ["fastagg", "the training alone"]
PERIOD = 20  # client updates per sample


def simulations(recipe: str, size: int, rounds: int = 15) -> list[Row]:
    """The loop (clock, server, delays) against local training alone on the same clients; ``size`` is the model's.

    The peer trains the loop's last updates once more and hands them to nobody: the least that any simulator takes.
    """
    from fastagg.sim.recipes import load
    from fastagg.sim.simulation import Simulation

    simulation = Simulation(load(recipe, {"run.batched": False}))  # one call of `_work` an update
    work, recorded = simulation._work, deque[tuple[Any, ...]](maxlen=PERIOD)

    def recording(*job: Any) -> Any:
        recorded.append(job)
        return work(*job)

    simulation._work = recording

    def simulate() -> None:
        for _ in range(PERIOD):
            simulation.step()

    def train() -> None:
        for job in recorded:
            work(*job)

    runs: dict[str, Callable[[], object]] = {"fastagg": simulate, "the training alone": train}
    for run in runs.values():
        run()
    d = sum(p.numel() for p in simulation.module.parameters())
    notes = {"fastagg": "clock, delays, training, server", "the training alone": "no clock, no server"}
    return turns.rows(f"simulate {recipe}", runs, d, 0, rounds, period=PERIOD, notes=notes)
