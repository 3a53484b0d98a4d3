"""The cells of a comparison: recipes and tables, every combination of the changed keys, every seed."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from fastagg._types import Plain
from fastagg.errors import ConfigError
from fastagg.sim import recipes
from fastagg.sim.recipes import tables
from fastagg.sim.recipes.tables import Cell


def cells(
    names: Iterable[str], changes: Mapping[str, object], grid: Mapping[str, Sequence[object]], seeds: int
) -> list[Cell]:
    """Return every recipe and every run of every table, at every point of ``grid``, with ``seeds`` seeds.

    ``changes`` and ``grid`` map dotted keys to a value or values; seeds count up from the recipe's seed. ConfigError
    if a name, key or value is wrong, or when two cells would share a folder.
    """
    found: list[Cell] = []
    for name in names:
        for values in itertools.product(*grid.values()):
            point = tuple(zip(grid, values, strict=True))
            for cell in _loaded(name, {**changes, **dict(point)}):
                parts = [cell.config.name, *(f"{key}={value}" for key, value in point)]
                folder = file_name(",".join(parts))
                for seed in range(cell.config.seed, cell.config.seed + seeds):
                    seeded = cell.config.model_copy(update={"seed": seed})
                    found.append(replace(cell, config=seeded, choice=cell.choice + point, folder=folder))
    check_folders(found)
    return found


def file_name(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._=,+-]+", "_", text)


def _loaded(name: str, changes: Plain) -> Iterator[Cell]:
    if not tables.is_table(name):
        yield Cell(recipes.load(name, changes))
        return
    yield from tables.load(name, changes).cells


def check_folders(cells: Sequence[Cell]) -> None:
    """Raise ConfigError when two cells would share a folder."""
    counts = Counter(cell.name for cell in cells)
    if twice := [name for name, count in counts.items() if count > 1]:
        raise ConfigError(f"{twice[0]} is given more than once: give each recipe once and no value twice")
