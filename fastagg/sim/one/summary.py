"""What summary.json says of a run."""

from __future__ import annotations

import platform
from dataclasses import asdict
from typing import TYPE_CHECKING

import torch

from fastagg._types import Plain
from fastagg.rules.directions import ActiveSet, AllClients
from fastagg.sim.one.metrics import participation, summarise

if TYPE_CHECKING:
    from fastagg.sim.one.simulation import Simulation


def _distillation(simulation: Simulation) -> Plain:
    record = simulation.server.distillation
    if record is None:
        return {}
    return {"distillation": {k: round(v, 6) for k, v in asdict(record).items() if v == v}}


def notes(simulation: Simulation) -> list[str]:
    """Return notes for the reader of the results, one line each."""
    notes = []
    if simulation.classes is not None:
        notes.append("clients: {} with short, {} with medium and {} with long delays".format(*simulation.classes))
        if not simulation.classes[2]:
            notes.append("no client is in the class of large delays: set delay.counts to have some")
        elif simulation.schedule.now and simulation.uploads and simulation.config.delay.name != "version":
            late = [n for n in simulation.slow if simulation.client_uploads[n] == 0]
            if late:
                notes.append(
                    f"{len(late)} of {len(simulation.slow)} clients of large delays never answered in this run"
                )
    share = simulation.warm_up / max(1, simulation.uploads)
    if isinstance(simulation.server.direction, AllClients | ActiveSet) and share > 0.1:
        notes.append(
            f'{share:.0%} of the updates came before the first step: algorithm.warmup = "partial" steps from the '
            "first on"
        )
    return notes


def summary(simulation: Simulation, stopped: str) -> Plain:
    """Return summary.json of a run that ended as ``stopped`` says: "finished", "interrupted" or "diverged"."""
    config, wall = simulation.config, simulation.stopwatch.split()
    return {
        "name": config.name,
        "algorithm": config.algorithm.name,
        "seed": config.seed,
        "stopped": stopped,
        "interrupted": stopped == "interrupted",
        **summarise(simulation.rows, config.run.target),
        "time_unit": simulation.schedule.unit,
        "delay_mean": simulation.delays.mean,
        "delay_median": simulation.delays.median,
        "delay_max": simulation.delays.maximum,
        "tau_avg": simulation.rounds.mean,
        "tau_median": simulation.rounds.median,
        "tau_max": simulation.rounds.maximum,
        **participation(simulation.client_uploads, len(simulation.data.clients)),
        "warm_up_share": round(simulation.warm_up / max(1, simulation.uploads), 6),
        "clients": len(simulation.data.clients),
        "delay_classes": simulation.classes,
        "notes": notes(simulation),
        "parameters": sum(p.numel() for p in simulation.module.parameters()),
        **_distillation(simulation),
        "fused": simulation.by_torch or True,
        "wall_seconds": {key: round(value, 4) for key, value in wall.items()},
        "server_share": round(wall["server"] / wall["total"], 6),  # share of the wall seconds
        "torch": str(torch.__version__),
        "python": platform.python_version(),
    }
