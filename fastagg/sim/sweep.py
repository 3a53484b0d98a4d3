"""The cells of a comparison: every recipe with every combination of the changed keys and with every seed."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fastagg.errors import ConfigError
from fastagg.sim.config import Config
from fastagg.sim.recipes import load

Choice = tuple[tuple[str, Any], ...]  # the grid's keys and the values one cell has of them


@dataclass(frozen=True)
class Cell:
    """One run of a comparison."""

    config: Config
    choice: Choice = ()

    @property
    def name(self) -> str:
        """The folder below the comparison's: NAME[,KEY=VALUE...]/seedN."""
        parts = [self.config.name, *(f"{key}={value}" for key, value in self.choice)]
        return re.sub(r"[^A-Za-z0-9._=,+-]+", "_", ",".join(parts)) + f"/seed{self.config.seed}"


def cells(
    recipes: Iterable[str], changes: Mapping[str, Any], grid: Mapping[str, Sequence[Any]], seeds: int
) -> list[Cell]:
    """Load every recipe with ``changes``, for every point of ``grid`` and ``seeds`` seeds from the recipe's own up.

    ConfigError when a recipe, a key or a value is wrong, or when two cells would share a folder.
    """
    found = []
    for recipe in recipes:
        for values in itertools.product(*grid.values()):
            choice = tuple(zip(grid, values, strict=True))
            first = load(recipe, {**changes, **dict(choice)})
            found += [
                Cell(first.model_copy(update={"seed": seed}), choice) for seed in range(first.seed, first.seed + seeds)
            ]
    check_folders(found)
    return found


def check_folders(cells: Sequence[Cell]) -> None:
    """Raise ConfigError when two cells would share a folder."""
    counts = Counter(cell.name for cell in cells)
    if twice := [name for name, count in counts.items() if count > 1]:
        raise ConfigError(f"{twice[0]} is given more than once: give each recipe once and no value twice")
