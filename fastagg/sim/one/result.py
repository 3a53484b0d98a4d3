"""The result of a run, in memory or read from its folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor

from fastagg._types import Plain
from fastagg.errors import DataError
from fastagg.model import Layout
from fastagg.server import checkpoint
from fastagg.sim.one import output
from fastagg.sim.one.metrics import ClientRow, DelayRow, Row
from fastagg.sim.recipes.config import Config


@dataclass(frozen=True)
class Result:
    """One finished (or interrupted) run.

    Attributes:
        config: the run's settings.
        rows: the lines of metrics.csv.
        summary: the contents of summary.json.
        unit: the meaning of 1.0 of virtual time.
        delays: the number of updates for each delay in server versions, as in delays.csv.
        clients: the lines of clients.csv.
        folder: where the run was written; None: nowhere.
        weights: the final model of a run that was not written.
    """

    config: Config
    rows: list[Row]
    summary: Plain
    unit: str
    delays: dict[int, int] = field(default_factory=dict)
    clients: list[ClientRow] = field(default_factory=list)
    folder: Path | None = field(default=None, compare=False)
    weights: Mapping[str, Tensor] | None = field(default=None, compare=False, repr=False)

    @property
    def label(self) -> str:
        return self.config.label or self.config.name

    @property
    def model(self) -> Mapping[str, Tensor]:
        """The final model on the server, for ``module.load_state_dict``, read from the run's folder if it has one.

        CheckpointError or DataError if it is not there any more.
        """
        if self.weights is not None:
            return self.weights
        if self.folder is None:
            raise DataError("the result has no model: it was neither run here nor read from a folder")
        state = checkpoint.read(self.folder / "checkpoint.pt")
        held = state["buffers"]
        return dict(Layout.from_spec(state["layout"]).copies(state["flat"], held["values"], held["counters"]))


Outcome = Result | str  # str: the error of a failed run


def read(out: Path, config: Config) -> Result | None:
    """Return the run of ``config`` that ended in ``out``; None if there is none. DataError if a file is damaged."""
    summary = output.read_summary(out / "summary.json")
    if summary is None:
        return None
    rows = output.read_rows(Row, out / "metrics.csv")
    clients = output.read_rows(ClientRow, there) if (there := out / "clients.csv").exists() else []
    delays = {row.delay: row.uploads for row in output.read_rows(DelayRow, out / "delays.csv")}
    return Result(config, rows, summary, summary["time_unit"], delays, clients, out)
