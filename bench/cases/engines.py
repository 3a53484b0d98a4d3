"""Where the simulator's clients train: here, in threads, and on Ray, per client update.

Workers have begun and a part of the run is over before the clock starts.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
from problem import Built, Candidate, Case, Problem, Skip

from cases.simulator import MODELS, recipe

CASE_MODELS: dict[str, tuple[dict[str, Any], int, int]] = {  # the model, its parameters, client updates of a sample
    # many, because up to 25 of them were trained before the clock starts
    **{label: (model, parameters, 1500) for label, model, parameters in MODELS[:3]},
    "MLP of 4.1 million": ({"name": "mlp", "widths": [2000, 2000]}, 4_152_010, 20),
}
ENGINES: dict[str, tuple[str, int | None]] = {
    "fastagg": ("here", None), "fastagg, threads, 2": ("here", 2),
    "fastagg, ray, 1": ("ray", 1), "fastagg, ray, 2": ("ray", 2),
}  # fmt: skip
WARM = 0.3


def _available(engine: str) -> None:
    if engine != "ray":
        return
    if not find_spec("ray"):
        raise Skip("ray is not installed")
    import ray

    if not ray.is_initialized():
        ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)


def _trained(problem: Problem, model: dict[str, Any], fused: bool, updates: int, engine: str, workers: Any) -> Built:
    from fastagg.sim.one.simulation import Simulation

    _available(engine)
    if engine == "here" and workers and not fused:
        raise Skip("torch trains one client at a time in a process")
    torch.set_num_threads(1)
    simulation = Simulation(recipe(model, 1_000_000, fused=fused), engine=engine, workers=workers)  # type: ignore[arg-type]

    def run() -> None:
        for _ in range(updates):
            simulation.step()

    for _ in range(max(1, int(WARM * updates))):
        simulation.step()
    return Built(run, None, warm=0, close=simulation.close)


def _engines(build: Callable[..., Built], names: list[str], **how: Any) -> list[Candidate]:
    return [
        Candidate(name, partial(build, engine=ENGINES[name][0], workers=ENGINES[name][1], **how), 4) for name in names
    ]


CASES = [
    Case(
        f"engines, {label}{', by torch' * (not fused)}", 0,
        partial(_engines, _trained, list(ENGINES), model=model, fused=fused, updates=updates // (1 if fused else 4)),
        "processes", (parameters,), period=updates // (1 if fused else 4), devices=("cpu",),
    )
    for label, (model, parameters, updates) in CASE_MODELS.items()
    for fused in ((True, False) if updates > 20 else (True,))
]  # fmt: skip
