"""What `fastagg recipes` lists."""

from __future__ import annotations

from dataclasses import dataclass

from fastagg.sim import recipes
from fastagg.sim.recipes import tables
from fastagg.sim.recipes.config import Config


@dataclass(frozen=True)
class Entry:
    """What `fastagg recipes` prints about a recipe or a table.

    Attributes:
        name: the argument for `fastagg run` or `fastagg compare`.
        runs: the number of runs; 1 for a recipe.
        algorithms, data: the presets and data sets in it.
        files: whether the data is in files, so that --data-dir is needed.
        purpose: one line. For a table it names the paper's own table or figure.
    """

    name: str
    runs: int
    algorithms: tuple[str, ...]
    data: tuple[str, ...]
    files: bool
    purpose: str


def catalogue() -> list[Entry]:
    """Return an entry for every recipe and then for every table."""
    singles = [(name, [recipe], recipe.about) for name in recipes.names() for recipe in [recipes.load(name)]]
    loaded = map(tables.load, tables.names())
    many = [(table.name, [cell.config for cell in table.cells], table.title) for table in loaded]
    return [_entry(*found) for found in (*singles, *many)]


def _entry(name: str, configs: list[Config], purpose: str) -> Entry:
    algorithms = tuple(dict.fromkeys(c.algorithm.name for c in configs))
    data = tuple(dict.fromkeys(c.data.shown for c in configs))
    files = any(hasattr(c.data, "dir") for c in configs)
    return Entry(name, len(configs), algorithms, data, files, purpose.replace("\n", " ").rstrip("."))
