"""Settings searched for every method alike, with Optuna, before they are compared on other seeds.

Every method has the same number of trials over the same ranges, on the same seed, which no later run has. A trial's
run is a run as any: a search that was stopped goes on, because what has ended is read again and gives the same draws.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

from fastagg import _extras
from fastagg._types import Foreign
from fastagg.errors import ConfigError, RunFailed
from fastagg.sim.comparison.cells import check_cells, run_cells
from fastagg.sim.recipes.tables import Cell
from fastagg.sim.runs import output
from fastagg.sim.runs.passed import configured
from fastagg.sim.runs.result import Result
from fastagg.sim.show.progress import Watcher

SEED = 1_000_000  # of trials: far from those that anybody compares


class Range(NamedTuple):
    """Where a setting is searched: between two numbers, on a logarithmic scale if both are above zero; whole numbers if
    both are."""

    low: float
    high: float

    @property
    def whole(self) -> bool:
        return isinstance(self.low, int) and isinstance(self.high, int)


def searched(
    cells: Sequence[Cell],
    ranges: Mapping[str, Range],
    budget: int,
    out: Path,
    watcher: Watcher,
    *,
    jobs: int | None = None,
) -> list[Cell]:
    """Return ``cells`` with the best setting of each method (all seeds of one recipe and one point of a grid).

    A trial's score is its accuracy of the last five versions, 0 if it diverged. Its run is in the folder
    ``search`` of ``out``, all scores in search.csv.

    Raises:
        ConfigError: a key or a value is refused. RunFailed: a method has no trial that ended. MissingDependency.
    """
    _extras.require("a search of settings", "search", _extras.SEARCH)
    optuna: Foreign = import_module("optuna")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    if already := {key for cell in cells for key, _ in cell.choice if key in ranges}:
        raise ConfigError(f"{', '.join(sorted(already))}: give values to compare, or a range to search, not both")
    methods = {cell.folder or cell.config.name: cell for cell in reversed(cells)}
    # the same draws for all, as far as their scores are the same
    studies = {
        name: optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=0)) for name in methods
    }
    lines: list[dict[str, object]] = []
    watcher.begun(budget * len(methods))
    for number in range(budget):
        trials = {name: studies[name].ask() for name in methods}
        runs: dict[str, Cell] = {}
        for name, trial in trials.items():
            values = {key: _drawn(trial, key, span) for key, span in ranges.items()}
            config = configured(methods[name].config, {**values, "seed": SEED})
            runs[name] = replace(methods[name], config=config, folder=f"search/{name}/{number}")
        several = list(runs.values())
        if not number:
            check_cells(several)
        outcomes = run_cells(several, out, jobs, watcher)
        for name, trial in trials.items():
            found = outcomes.get(runs[name].name)
            if found is None or (isinstance(found, Result) and found.summary["interrupted"]):
                raise KeyboardInterrupt  # the same command goes on
            score = found.summary["last5_accuracy_mean"] or 0.0 if isinstance(found, Result) else None
            studies[name].tell(trial, score, None if score is not None else optuna.trial.TrialState.FAIL)
            why = found if isinstance(found, str) else ""
            lines.append({"method": name, "trial": number, **trial.params, "accuracy": score, "failed": why})
    with output.writing(out):
        output.write_text(out / "search.csv", output.csv_text(lines[0], lines))
    return [_best(cell, studies[cell.folder or cell.config.name], lines) for cell in cells]


def _drawn(trial: Foreign, key: str, span: Range) -> float:
    scale = {"log": span.low > 0}
    draw = trial.suggest_int if span.whole else trial.suggest_float
    found: float = draw(key, span.low, span.high, **scale)
    return found


def _best(cell: Cell, study: Foreign, lines: Sequence[Mapping[str, object]]) -> Cell:
    try:
        values = study.best_params
    except ValueError:
        why = next((line["failed"] for line in lines if line["method"] == (cell.folder or cell.config.name)), "")
        raise RunFailed(f"{cell.folder}: every trial of the search failed: {why}") from None
    return replace(cell, config=configured(cell.config, values))
