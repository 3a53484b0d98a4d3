"""A run's checkpoint: everything it needs to go on, in one file beside its results.

The file is the server's own checkpoint (``fastagg.load`` reads it) with one more key, "run", which holds what the
simulator remembers. Which that is, the simulation says (``state_dict``). Random draws are keyed (seeds.py), so counters
stand for generators. Sizes do not grow with the length of a run, the rows of metrics.csv aside.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Protocol

from fastagg.errors import CheckpointError, ConfigError, DataError
from fastagg.serving import checkpoint
from fastagg.sim import output
from fastagg.sim.config import Config, differences, load
from fastagg.sim.metrics import Row

FILE = "checkpoint.pt"


class Resumable(Protocol):
    """What can go on from a checkpoint: a simulation."""

    rows: list[Row]

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class Checkpoints:
    """Writes a run's checkpoint and metrics.csv into ``out`` every ``seconds`` of wall-clock time; 0: always."""

    def __init__(self, out: Path, seconds: float) -> None:
        self._out = out
        self._seconds = seconds
        self._written = time.monotonic()

    def due(self) -> bool:
        return time.monotonic() - self._written >= self._seconds

    def write(self, simulation: Resumable) -> None:
        try:
            output.write_text(self._out / "metrics.csv", output.metrics_csv(simulation.rows))
        except OSError as error:
            raise DataError(f"cannot write results to {self._out}: {error}") from error
        checkpoint.write(simulation.state_dict(), self._out / FILE)
        self._written = time.monotonic()


def restore(simulation: Resumable, out: Path) -> bool:
    """Let a new ``simulation`` go on from the checkpoint in ``out``; False when there is none to go on from.

    CheckpointError when it is damaged or of another config.
    """
    if not (out / FILE).exists():
        return False
    state = checkpoint.read(out / FILE)
    if state.get("run") is None:
        return False  # a finished run left its server alone
    try:
        simulation.load_state_dict(state)
    except CheckpointError as error:
        raise CheckpointError(f"{out / FILE}: {error}") from error
    output.tidy(out)
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
