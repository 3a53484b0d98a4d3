"""A run's result and its folder.

inputs.json (digests of data and code) and config.toml are written first. During the run metrics.csv and checkpoint.pt
have the state of the last checkpoint. At the end, summary.json is written after all other results.

The checkpoint is a server's checkpoint, which ``fastagg.load`` can read. Until the run's end it also has the
simulator's state, as "run". This state has counters instead of random generators, because all draws are keyed
(seeds.py), and grows with a run only by the rows of metrics.csv. Importing this module does not import torch.
"""

from __future__ import annotations

import itertools
import json
import logging
import statistics
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from fastagg import _checks
from fastagg._types import Plain
from fastagg.errors import CheckpointError, ConfigError, DataError
from fastagg.sim.functions import beside
from fastagg.sim.recipes.config import Config, differences, load, to_toml
from fastagg.sim.runs import output
from fastagg.sim.runs.inputs import NONE, OF_DATA, digests
from fastagg.sim.runs.metrics import ClientRow, DelayRow, EvaluationRow, summarise

if TYPE_CHECKING:
    from torch import Tensor

    from fastagg.sim.data.federated import FederatedData
    from fastagg.sim.runs.simulation import Simulation

# The files that a run writes besides inputs.json, config.toml and the picture accuracy.*.
FILES = ("summary.json", "checkpoint.pt", "metrics.csv", "clients.csv", "delays.csv", "report.html")
INPUTS = "inputs.json"  # the file with the digests of the run's data and code
COMPARISON = "a comparison"  # what `begun` returns for the folder of a comparison

Resume = Literal["never", "go on", "again"]
_log = logging.getLogger("fastagg")
_told: set[str] = set()  # warnings that this process has logged


def checked_target(target: float) -> float:
    """Return ``target`` if it is an accuracy in (0, 1]. Otherwise raise ConfigError."""
    if not _checks.number("target", target, above=0) <= 1:
        raise ConfigError(_checks.wrong("target", "a number in (0, 1]", target))
    return target


@dataclass(frozen=True)
class Result:
    """The result of one run, which may have been interrupted or have diverged.

    Attributes:
        config: the run's settings.
        rows: the lines of metrics.csv.
        summary: the contents of summary.json.
        unit: the unit of virtual time, such as "10 s".
        delays: the number of updates for each delay in server versions, as in delays.csv.
        clients: the lines of clients.csv.
        folder: the run's folder. None: the run was not written.
        weights: the final model of a run that was not written. Otherwise None.
    """

    config: Config
    rows: list[EvaluationRow]
    summary: Plain
    unit: str
    delays: dict[int, int] = field(default_factory=dict)
    clients: list[ClientRow] = field(default_factory=list)
    folder: Path | None = field(default=None, compare=False)
    weights: Mapping[str, Tensor] | None = field(default=None, compare=False, repr=False)

    def at(self, target: float | None, every: int = 1) -> Result:
        """Return a copy of the result with the numbers for the accuracy ``target``. None: the run's own target.
        ``every``: as in :func:`fastagg.sim.runs.metrics.reaching`."""
        target = self.config.run.target if target is None else checked_target(target)
        numbers = summarise(self.rows, target, self.summary["stopped"], every) | {"target_updates": every}
        run = self.config.run.model_copy(update={"target": target})
        config = self.config.model_copy(update={"run": run})
        return replace(self, config=config, summary=self.summary | numbers)

    @property
    def updates_between_tests(self) -> int:
        """The median number of updates between two tests of versions that ``run.evaluate_every`` divides."""
        ends = [row.uploads for row in self.rows if row.version % self.config.run.evaluate_every == 0]
        gaps = [end - begin for begin, end in itertools.pairwise(ends) if end > begin]
        return max(1, int(statistics.median(gaps or [self.rows[-1].uploads])))

    @property
    def model(self) -> Mapping[str, Tensor]:
        """The final model on the server, for ``module.load_state_dict``. It may be read from the folder's checkpoint.

        CheckpointError: the folder has no readable checkpoint. DataError: the result has neither weights nor a folder.
        """
        if self.weights is not None:
            return self.weights
        if self.folder is None:
            raise DataError("the result has no model: it was neither run here nor read from a folder")
        from fastagg.model import Layout
        from fastagg.server import checkpoint

        state = checkpoint.read(self.folder / "checkpoint.pt")
        held = state["buffers"]
        return dict(Layout.from_spec(state["layout"]).copies(state["flat"], held["values"], held["counters"]))


Outcome = Result | str  # a str is the error message of a failed run


def begun(folder: Path) -> str:
    """Return in words what a run would overwrite in ``folder``: "a finished run", "an interrupted run", "an unfinished
    run", "a comparison", or "a file NAME". Empty: a run would overwrite nothing."""
    if (folder / "comparison.csv").exists():
        return COMPARISON
    if folder.is_dir() and (summary := output.read_summary(folder / "summary.json")) is not None:
        return "an interrupted run" if summary["interrupted"] else "a finished run"
    if (folder / "checkpoint.pt").exists():
        return "an unfinished run"
    return next((f"a file {path.name}" for path in _written(folder) if path.exists()), "")


def _written(folder: Path) -> list[Path]:
    return [*(folder / name for name in (*FILES, INPUTS)), *folder.glob("accuracy.*")]


def finished(config: Config, out: Path, known: dict[object, dict[str, str]]) -> Result | None:
    """Return the result in ``out`` if it is of a finished run with the same config and inputs. Otherwise, or if a file
    is damaged, return None. ``known``: as in :func:`fastagg.sim.runs.inputs.digests`."""

    @cache
    def load() -> FederatedData:
        from fastagg.sim.runs.build import build_data

        return build_data(config)

    folder = Folder(out, config)
    with beside(config.folder), suppress(Exception):
        if folder.same_config("again", replace=False) and (ended := folder.ended(load, known)) is not None:
            return None if folder.other_inputs() else ended
    return None


class Folder:
    """Writes and reads the folder ``out`` of a run of ``config``. ``inputs``: the digests of the run's data and code.
    ``unknown``: the keys of the digests that cannot be computed now, because the data cannot be loaded."""

    def __init__(self, out: Path, config: Config) -> None:
        self.out, self.config = out, config
        self.checkpoint = out / "checkpoint.pt"
        self.inputs: dict[str, str] = {}
        self.unknown: Collection[str] = ()
        self._kept = time.monotonic()

    def same_config(self, resume: Resume, replace: bool) -> bool:
        """Return whether the folder has a run of exactly this config that ``resume`` continues. ConfigError: a
        comparison would be overwritten. Without ``replace``, also: other files would be, or the config differs."""
        there = begun(self.out) if resume == "never" else ""
        if there == COMPARISON or (there and not replace):
            go_on, delete = '--resume (resume="go on") goes on with it', "--replace (replace=True) deletes it"
            ways = [] if there == COMPARISON else [delete] if there.startswith("a file") else [go_on, delete]
            raise ConfigError(f"{self.out} holds {there}: {', '.join([*ways, '--out (out=) takes another folder'])}")
        if resume == "never" or not (self.out / "config.toml").exists():
            return False
        changed = differences(load(self.out / "config.toml"), self.config)
        if changed and not replace:
            names = ", ".join(changed)
            raise ConfigError(f"{self.out} holds a run with other settings ({names}): choose another folder")
        return not changed

    def same_inputs(self, resume: Resume, replace: bool) -> bool:
        """Return whether the folder's run had the same ``inputs``. If not, and ``resume`` is "go on" without
        ``replace``, raise ConfigError."""
        if not (parts := self.other_inputs()):
            return True
        what = f"holds a run of {'perhaps ' * parts[0].startswith('no digest')}other data or code"
        if resume == "go on" and not replace:
            raise ConfigError(f"{self.out} {what} ({'; '.join(parts)}): choose another folder")
        _log.warning("%s %s (%s): it is run again", self.out, what, "; ".join(parts))
        return False

    def other_inputs(self) -> list[str]:
        """Return in words which ``inputs`` differ from those of the folder's run. Inputs that are ``unknown`` now are
        left out. An input without a digest counts as different."""
        known = output.read_json(self.out / INPUTS) or {}
        keys = sorted((known.keys() | self.inputs.keys()).difference(self.unknown))
        return [*(f"{key} changed" for key in keys if known.get(key) != self.inputs.get(key)), *self._lacking()]

    def _lacking(self) -> list[str]:
        """Return in words which of the ``inputs`` have no digest, and why."""
        reasons = (digest.removeprefix(NONE) for digest in self.inputs.values() if digest.startswith(NONE))
        return [f"no digest of {reason}" for reason in reasons]

    def warn(self) -> None:
        """If inputs have no digest, warn that the run will be run again at each start, and name them. A process logs
        each warning once."""
        for text in sorted({*self._lacking()} - _told):
            _told.add(text)
            _log.warning("%s: %s: the run is run again whenever it is started", self.out, text)

    def read(self) -> Result | None:
        """Return the result in the folder. The result's accuracies and target times are computed from metrics.csv.
        None: the folder has no summary. DataError: a file is damaged."""
        if (summary := output.read_summary(self.out / "summary.json")) is None:
            return None
        rows = output.read_rows(EvaluationRow, self.out / "metrics.csv")
        clients = output.read_rows(ClientRow, there) if (there := self.out / "clients.csv").exists() else []
        delays = {row.delay: row.uploads for row in output.read_rows(DelayRow, self.out / "delays.csv")}
        summary |= summarise(rows, self.config.run.target, summary["stopped"])
        return Result(self.config, rows, summary, summary["time_unit"], delays, clients, self.out)

    def ended(self, load: Callable[[], FederatedData], known: dict[object, dict[str, str]]) -> Result | None:
        """Return the result of the finished run in the folder, and compute ``inputs``. None: there is no finished run.
        If the data cannot be loaded, ``inputs`` lacks the digests OF_DATA."""
        if (result := self.read()) is None or result.summary["interrupted"]:
            return None
        try:
            self.inputs = digests(self.config, load, known)
        except DataError:
            self.inputs, self.unknown = digests(self.config, None), OF_DATA
        return result

    def restore(self, simulation: Simulation) -> bool:
        """Let a new ``simulation`` continue from an unfinished run's checkpoint. Return False if there is none.

        CheckpointError: the checkpoint is damaged or belongs to another config.
        """
        from fastagg.server import checkpoint

        if not self.checkpoint.exists() or (state := checkpoint.read(self.checkpoint)).get("run") is None:
            return False  # the checkpoint of a finished run has only the server's state
        try:
            simulation.load_state_dict(state)
        except CheckpointError as error:
            raise CheckpointError(f"{self.checkpoint}: {error}") from error
        self._tidy()
        return True

    def prepare(self) -> None:
        """Remove an earlier run's files, and write the config and ``inputs``. The old summary is removed first.
        Otherwise, after a crash, it could be taken for this run's summary."""
        with output.writing(self.out):
            self.out.mkdir(parents=True, exist_ok=True)
            self._tidy()
            for path in _written(self.out):
                path.unlink(missing_ok=True)
            if self.inputs:
                output.write_text(self.out / INPUTS, json.dumps(self.inputs, indent=2) + "\n")
            output.write_text(self.out / "config.toml", to_toml(self.config))

    def _tidy(self) -> None:
        for path in self.out.glob("*.partial"):  # files that a killed process has left
            path.unlink(missing_ok=True)

    def due(self) -> bool:
        return time.monotonic() - self._kept >= self.config.run.checkpoint_every

    def keep(self, simulation: Simulation) -> None:
        from fastagg.server import checkpoint

        with output.writing(self.out):
            output.write_text(self.out / "metrics.csv", output.rows_csv(EvaluationRow, simulation.rows))
        checkpoint.write(simulation.state_dict(), self.checkpoint)
        self._kept = time.monotonic()
