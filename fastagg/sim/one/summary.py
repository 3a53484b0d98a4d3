"""What summary.json says of a run."""

from __future__ import annotations

import platform
import statistics
from collections.abc import Iterator
from dataclasses import asdict

import torch

from fastagg._types import Plain
from fastagg.rules.directions import ActiveSet, AllClients
from fastagg.sim.one.metrics import LAST, summarise
from fastagg.sim.one.simulation import Simulation


def _notes(simulation: Simulation, warm_up: float, tested: int) -> Iterator[str]:
    """Yield notes for the reader of the results, one line each. They stand beside the run's name."""
    if simulation.diverged:
        yield f"diverged after {simulation.uploads} updates: {simulation.diverged}"
    elif tested < (made := min(LAST, simulation.server.version)):
        yield f"the accuracy is of {tested} of the last {made} versions: the others were not tested"
    if simulation.classes is not None:
        yield "clients: {} with short, {} with medium and {} with long delays".format(*simulation.classes)
        late, slow = sum(simulation.client_uploads[client] == 0 for client in simulation.slow), len(simulation.slow)
        if not slow:
            yield "no client is in the class of large delays: set delay.counts to have some"
        elif late and simulation.uploads and simulation.schedule.now:
            yield f"{late} of {slow} clients of large delays never answered"
    if isinstance(simulation.server.direction, AllClients | ActiveSet) and warm_up > 0.1:
        yield (
            f'{warm_up:.0%} of the updates came before the first step: algorithm.warmup = "partial" steps from the '
            "first on"
        )
    if simulation.config.algorithm.name == "FedAC" and simulation.own.train is None:
        yield "FedAC's clients train without their control variates: this is the server's part, not the paper's FedAC"


def summary(simulation: Simulation, stopped: str) -> Plain:
    """Return summary.json of a run that ended as ``stopped`` says: "finished", "interrupted" or "diverged"."""
    config, wall = simulation.config, simulation.stopwatch.split()
    delays, rounds, distillation = simulation.delays, simulation.rounds, simulation.server.distillation
    uploads = [simulation.client_uploads[client] for client in range(len(simulation.data.clients))]
    mean, warm_up = statistics.fmean(uploads), simulation.warm_up / max(1, simulation.uploads)
    results = summarise(simulation.rows, config.run.target, stopped)
    numbers = {} if distillation is None else {k: round(v, 6) for k, v in asdict(distillation).items() if v == v}
    return {
        "name": config.name,
        "algorithm": config.algorithm.shown,
        "seed": config.seed,
        "stopped": stopped,
        "interrupted": stopped == "interrupted",
        **results,
        "time_unit": simulation.schedule.unit,
        "delay_mean": delays.mean,
        "delay_median": delays.median,
        "delay_max": delays.maximum,
        "tau_avg": rounds.mean,
        "tau_median": rounds.median,
        "tau_max": rounds.maximum,
        "client_uploads_min": min(uploads),
        "client_uploads_max": max(uploads),
        "client_uploads_cv": statistics.pstdev(uploads) / mean if mean else 0.0,
        "warm_up_share": round(warm_up, 6),
        "clients": len(uploads),
        "delay_classes": simulation.classes,
        "weighting": simulation.server.weighting,
        "notes": list(_notes(simulation, warm_up, results["last5_versions"])),
        "parameters": sum(p.numel() for p in simulation.module.parameters()),
        **({} if distillation is None else {"distillation": numbers}),
        "fused": simulation.by_torch or True,
        "wall_seconds": {key: round(value, 4) for key, value in wall.items()},
        "server_share": round(wall["server"] / wall["total"], 6),  # share of the wall seconds
        "torch": str(torch.__version__),
        "python": platform.python_version(),
    }
