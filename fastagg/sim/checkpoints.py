"""A run's checkpoint: everything it needs to go on, in one file beside its results.

The file is the server's own checkpoint (``fastagg.load`` reads it) with one more key, "run", which holds what the
simulator remembers. Random draws are keyed (seeds.py), so counters stand for generators. Sizes do not grow with the
length of a run, the rows of metrics.csv aside.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import asdict, astuple
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastagg.errors import CheckpointError, ConfigError, DataError
from fastagg.serving import checkpoint
from fastagg.sim import output
from fastagg.sim.config import Config, differences, load, to_toml
from fastagg.sim.metrics import Row

if TYPE_CHECKING:
    from fastagg.sim.run import Simulation

FILE = "checkpoint.pt"


class Checkpoints:
    """Writes a run's checkpoint and metrics.csv into ``out`` every ``seconds`` of wall-clock time; 0: always."""

    def __init__(self, out: Path, seconds: float) -> None:
        self._out = out
        self._seconds = seconds
        self._written = time.monotonic()

    def due(self) -> bool:
        return time.monotonic() - self._written >= self._seconds

    def write(self, simulation: Simulation) -> None:
        try:
            output.write_text(self._out / "metrics.csv", output.metrics_csv(simulation.rows))
        except OSError as error:
            raise DataError(f"cannot write results to {self._out}: {error}") from error
        checkpoint.write({**simulation.server.state_dict(copy=False), "run": state_of(simulation)}, self._out / FILE)
        self._written = time.monotonic()


def state_of(simulation: Simulation) -> dict[str, Any]:
    """Return what the simulator remembers, the server's state aside, as plain data and tensors."""
    differences = simulation.differences
    return {
        "config": to_toml(simulation.config),
        "rows": [astuple(row) for row in simulation.rows],
        "uploads": simulation.uploads,
        "client_uploads": dict(simulation.client_uploads),
        "largest": simulation.largest,
        "dropped": simulation.dropped,
        "delays": {name: part.state_dict() for name, part in simulation.statistics.items()},
        "differences": None if differences is None else differences.state_dict(),
        "distillation": None if simulation.server.distillation is None else asdict(simulation.server.distillation),
        "schedule": simulation.schedule.state_dict(),
        "ready": [(*key, update) for key, update in simulation.ready.items()],
        "wall_seconds": simulation.stopwatch.split(),
    }


def restore(simulation: Simulation, out: Path) -> bool:
    """Let a new ``simulation`` go on from the checkpoint in ``out``; False when there is none to go on from.

    CheckpointError when it is damaged or of another config.
    """
    if not (out / FILE).exists():
        return False
    whole = checkpoint.read(out / FILE)
    state = whole.pop("run", None)
    if state is None:
        return False
    if state["config"] != to_toml(simulation.config):
        raise CheckpointError(f"{out / FILE}: the checkpoint is of another run than this config's")
    output.tidy(out)
    simulation.server.load_state_dict(whole)
    try:
        state = checkpoint.on_device(state, simulation.server.device)
        simulation.rows[:] = [Row(*row) for row in state["rows"]]
        simulation.uploads, simulation.largest = state["uploads"], state["largest"]
        simulation.dropped = state["dropped"]
        simulation.client_uploads = Counter(state["client_uploads"])
        for name, part in simulation.statistics.items():
            part.load_state_dict(state["delays"][name])
        if simulation.differences is not None:
            simulation.differences.load_state_dict(state["differences"])
        for name, value in (state["distillation"] or {}).items():
            setattr(simulation.server.distillation, name, value)
        simulation.schedule.load_state_dict(state["schedule"])
        simulation.ready = {(client, number): update for client, number, update in state["ready"]}
        simulation.stopwatch.restore(state["wall_seconds"])
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(f"{out / FILE}: the checkpoint is damaged: {type(error).__name__}: {error}") from error
    return True


def same_run(out: Path, config: Config, *, strict: bool) -> bool:
    """Whether ``out`` holds a run, begun or done, of this very config. ConfigError if ``strict`` and it is another."""
    if not (out / "config.toml").exists():
        return False
    if changed := differences(load(out / "config.toml"), config):
        if not strict:
            return False
        raise ConfigError(f"{out} holds a run with other settings ({', '.join(changed)}): choose another folder")
    return True
