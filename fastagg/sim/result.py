"""The result of a run, in memory or read from its folder."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from fastagg._types import Plain
from fastagg.sim import output
from fastagg.sim.config import Config
from fastagg.sim.metrics import Row


@dataclass(frozen=True)
class Result:
    """One finished (or interrupted) run.

    Attributes:
        config: the run's settings.
        rows: the lines of metrics.csv.
        summary: the contents of summary.json.
        unit: the meaning of 1.0 of virtual time.
        delays: the number of updates for each delay in server versions, as in delays.csv.
    """

    config: Config
    rows: list[Row]
    summary: Plain
    unit: str
    delays: dict[int, int] = field(default_factory=dict)

    @property
    def label(self) -> str:
        return self.config.label or self.config.name


Outcome = Result | str  # str: the error of a failed run


def read(out: Path, config: Config) -> Result | None:
    """Return the run of ``config`` that ended in ``out``; None if there is none. DataError if a file is damaged."""
    summary = output.read_summary(out / "summary.json")
    if summary is None:
        return None
    rows = output.read_metrics(out / "metrics.csv")
    return Result(config, rows, summary, summary["time_unit"], output.read_delays(out / "delays.csv"))
