"""The cells of a comparison: recipes and tables, every combination of the changed keys, every seed."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from fastagg._types import Plain
from fastagg.errors import ConfigError
from fastagg.sim import recipes
from fastagg.sim.recipes import config, tables
from fastagg.sim.recipes.config import Config
from fastagg.sim.recipes.tables import NO_PAPER, Paper

Choice = tuple[tuple[str, object], ...]  # keys and their values in one cell, in the order of the table and grid

SETTING = "setting"  # the key in a Choice for a table's setting, whose value is a label


@dataclass(frozen=True)
class Cell:
    """One run of a comparison; ``method`` is "" if the config's label or name is used."""

    config: Config
    choice: Choice = ()
    folder: str = ""
    method: str = ""
    paper: Paper = NO_PAPER

    @property
    def name(self) -> str:
        """The folder below the comparison's: NAME[,KEY=VALUE...]/seedN."""
        return f"{self.folder or self.config.name}/seed{self.config.seed}"


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
    for cell in tables.load(name).cells:
        values = config.changed(cell.values, changes)
        found = config.from_dict(values, f"{name}, {cell.label}")
        yield Cell(found, _choice(cell.setting), method=cell.method, paper=cell.paper)


def _choice(setting: str) -> Choice:
    # A table's grid labels its columns "alpha=0.1, mean=5.0". Other settings are their own label.
    pairs = [part.partition("=") for part in setting.split(", ")]
    if all(equals for _, equals, _ in pairs):
        return tuple((key, value) for key, _, value in pairs)
    return ((SETTING, setting),) if setting else ()


def check_folders(cells: Sequence[Cell]) -> None:
    """Raise ConfigError when two cells would share a folder."""
    counts = Counter(cell.name for cell in cells)
    if twice := [name for name, count in counts.items() if count > 1]:
        raise ConfigError(f"{twice[0]} is given more than once: give each recipe once and no value twice")
