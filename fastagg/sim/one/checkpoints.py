"""A run's checkpoint: everything that it needs to continue, in one file in the run's folder.

The file is the server's own checkpoint (``fastagg.load`` can read it) with one more key, "run", for the simulator's
state. The simulation provides this state (``state_dict``). Random draws are keyed (seeds.py), so the state has counters
instead of generators. Its size does not grow with the length of a run, except for the rows of metrics.csv.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from fastagg.errors import CheckpointError, ConfigError, DataError
from fastagg.server import checkpoint
from fastagg.sim.one import output
from fastagg.sim.one.metrics import Row
from fastagg.sim.recipes.config import Config, differences, load

if TYPE_CHECKING:
    from fastagg.sim.one.simulation import Simulation

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
            output.write_text(self._out / "metrics.csv", output.rows_csv(Row, simulation.rows))
        except OSError as error:
            raise DataError(f"cannot write results to {self._out}: {error}") from error
        checkpoint.write(simulation.state_dict(), self._out / FILE)
        self._written = time.monotonic()


def restore(simulation: Simulation, out: Path) -> bool:
    """Let a new ``simulation`` continue from the checkpoint in ``out``. Return False if there is none.

    CheckpointError if it is damaged or belongs to another config.
    """
    if not (out / FILE).exists():
        return False
    state = checkpoint.read(out / FILE)
    if state.get("run") is None:
        return False  # a finished run left only its server
    try:
        simulation.load_state_dict(state)
    except CheckpointError as error:
        raise CheckpointError(f"{out / FILE}: {error}") from error
    output.tidy(out)
    return True


def same_run(out: Path, config: Config, *, strict: bool) -> bool:
    """Return whether ``out`` holds a run of exactly this config. ConfigError if ``strict`` and it is another
    config's."""
    if not (out / "config.toml").exists():
        return False
    if changed := differences(load(out / "config.toml"), config):
        if not strict:
            return False
        raise ConfigError(f"{out} holds a run with other settings ({', '.join(changed)}): choose another folder")
    return True
