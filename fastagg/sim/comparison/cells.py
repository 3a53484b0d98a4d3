"""Makes the cells of a comparison, and runs each cell in this process or in a new process. A cell is one run.

A finished cell is only read. A stopped cell continues from its checkpoint. If a cell fails, the others go on. After
ctrl-C no further cell starts. The running cells stop at their next update, and write their results so far.
Importing this module imports no torch, because reading a finished comparison needs none.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import ExitStack, closing
from dataclasses import replace as replaced
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from fastagg import _checks
from fastagg._types import Plain
from fastagg.errors import ConfigError, FastaggError
from fastagg.sim.comparison.processes import Processes
from fastagg.sim.functions import beside
from fastagg.sim.recipes import tables
from fastagg.sim.recipes.config import Config
from fastagg.sim.recipes.tables import Cell
from fastagg.sim.runs.interrupt import on_ctrl_c
from fastagg.sim.runs.output import writing
from fastagg.sim.runs.passed import configured, taken
from fastagg.sim.runs.result import Outcome, finished
from fastagg.sim.show.progress import Progress, Watcher

# A replacement of a recipe's algorithm: a preset's name, a function that makes a server, or a dict of sections.
Rule = str | Callable[..., object] | Mapping[str, object]


def cells(
    names: Iterable[str | Config | Plain],
    changes: Plain | None,
    grid: Mapping[str, Sequence[object]],
    seeds: int | Sequence[int],
    *,
    more: Mapping[str, object] | None = None,
    rules: Mapping[str, Rule] | None = None,
) -> list[Cell]:
    """Return a cell for every combination of recipe, rule, grid point and seed. ``names``: recipes and tables. A table
    stands for all its runs. ``seeds``: a list of seeds, or the number of consecutive seeds from the recipe's seed up.

    ``changes`` and ``more`` have a new value for each dotted key, and ``grid`` has a list of values. ``grid`` overrides
    ``changes``, and ``more`` overrides both. ``rules``: the rules by label. None: each recipe's own algorithm.
    ConfigError: a name, key or value is invalid, or two cells would have the same folder.
    """
    members: list[Cell] = []
    for name, values in itertools.product(names, itertools.product(*grid.values())):
        point = tuple(zip(grid, values, strict=True))
        own = {**(changes or {}), **dict(point)}
        for cell in _cells(name, {**own, **(more or {})}, rules or {}):
            folder = file_name(",".join([cell.config.name, *(f"{key}={value}" for key, value in point)]))
            first = cell.config.seed
            for seed in range(first, first + seeds) if isinstance(seeds, int) else seeds:
                seeded = cell.config.model_copy(update={"seed": _checks.whole("seeds", seed, least=0)})
                members.append(replaced(cell, config=seeded, choice=cell.choice + point, folder=folder))
    counts = Counter(cell.name for cell in members)
    if twice := [name for name, count in counts.items() if count > 1]:
        raise ConfigError(f"{twice[0]} is given more than once: give each recipe once and no value twice")
    return members


def _cells(name: str | Config | Plain, changes: Plain, rules: Mapping[str, Rule]) -> Iterator[Cell]:
    if isinstance(name, str) and tables.is_table(name):
        if rules:
            raise ConfigError(f"rules: {name!r} is a table, which has its own methods")
        plain, held = taken(changes)
        yield from (replaced(cell, config=cell.config.holding(held)) for cell in tables.load(name, plain).cells)
        return
    base = configured(name, changes)
    if not rules:
        yield Cell(base)
    for label, rule in rules.items():
        row: Mapping[str, object] = rule if isinstance(rule, Mapping) else {"algorithm": rule}
        plain, held = taken(row)
        values = tables.merge(base.model_dump(exclude_none=True), plain)
        values |= {"name": tables.slug(base.name, label), "label": label}
        yield Cell(configured(values).holding({**base.held, **held}), method=label)


def file_name(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._=,+-]+", "_", text)


def check_cells(cells: Sequence[Cell]) -> None:
    """Raise the errors that ``cells`` would raise before they load their data. Only one seed of each run is checked."""
    for cell in {cell.folder or cell.config.name: cell for cell in reversed(cells)}.values():
        from fastagg.sim.runs.build import check

        try:
            with beside(cell.config.folder):
                check(cell.config)
        except FastaggError as error:
            raise type(error)(f"{cell.name}: {error}") from None


def run_cells(
    cells: Sequence[Cell], out: Path, jobs: int | None, watcher: Watcher, replace: bool = False
) -> dict[str, Outcome]:
    """Run ``cells`` in folders below ``out``, in ``jobs`` processes. With ``jobs`` 1 or None, run them in this process.
    Return the results or error messages of the cells that were finished or have started, by the cells' names.

    If a cell's folder has a run with other settings, the cell fails. With ``replace`` that run is deleted instead. A
    run with other data, or other code of the user, is run again, and a warning says so.
    """
    several = jobs is not None and _checks.whole("jobs", jobs, least=1, most=1024) > 1
    waiting, at_work, outcomes = deque[Cell](), dict[Future[Any], Cell](), dict[str, Outcome]()
    known: dict[object, dict[str, str]] = {}
    for cell in cells:
        if replace or (ended := finished(cell.config, out / cell.name, known)) is None:
            waiting.append(cell)
            continue
        watcher.started(cell)
        outcomes[cell.name] = ended
        watcher.ended(cell, ended)
    with ExitStack() as stack:
        workers, stop = None, Path()  # runs in other processes stop when the file `stop` exists
        if several and waiting:
            out = out.absolute()
            with writing(out):
                out.mkdir(parents=True, exist_ok=True)
                stop = Path(stack.enter_context(TemporaryDirectory(prefix=".running-", dir=out))) / "stop"
            workers = stack.enter_context(closing(Processes(jobs or 1)))
        asked = stack.enter_context(on_ctrl_c())
        while waiting or at_work:
            if asked.is_set():
                waiting.clear()
                if workers is not None:
                    stop.touch()
            while waiting and len(at_work) < (jobs or 1):
                cell, progress = waiting.popleft(), Progress()
                watcher.started(cell)
                if workers is not None:
                    at_work[workers.submit(_attempt, cell, out / cell.name, progress, replace, stop.exists)] = cell
                    continue
                progress.advanced = partial(watcher.advanced, cell)  # type: ignore[method-assign]
                (here := Future[Any]()).set_result(_attempt(cell, out / cell.name, progress, replace, asked.is_set))
                at_work[here] = cell
            over, _ = wait(at_work, 0.2, FIRST_COMPLETED)
            for future in over:
                cell = at_work.pop(future)
                died = future.exception()
                outcomes[cell.name] = future.result() if died is None else str(died)
                watcher.ended(cell, outcomes[cell.name])
    return outcomes


def _attempt(cell: Cell, folder: Path, progress: Progress, replace: bool, stop: Callable[[], bool]) -> Outcome:
    from fastagg.sim.runs.run import run

    try:
        return run(cell.config, folder, progress, resume="again", replace=replace, stop=stop)
    except FastaggError as error:
        return str(error)
    except Exception as error:  # an error in a cell must not end the other cells
        return f"{type(error).__name__}: {error}"
