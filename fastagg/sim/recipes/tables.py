"""Reads tables of runs. A table has several methods in several settings, like a table or figure of a paper.

A table is a TOML file: ``NAME.toml`` in recipes/tables or in reproduction/ of the repository, or a file with any path.
docs/simulator.md describes the keys of the file.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field, ValidationError

from fastagg._types import Plain
from fastagg.errors import ConfigError
from fastagg.sim import recipes
from fastagg.sim.data.sections import Section
from fastagg.sim.recipes import config

FOLDER = "tables"


ACCURACY = "last5_accuracy_mean"


class Paper(Section):
    """The paper's numbers. ``measure``: the key of summary.json that the table compares. ``values``: method -> setting
    -> [mean] or [mean, deviation]. reproduction/papers.py shows ``values`` beside a comparison's numbers."""

    measure: str = ACCURACY
    values: dict[str, dict[str, list[float]]] = Field(default={})


class TableFile(Section):
    """The keys of a table's file."""

    title: str
    source: str = ""
    extends: str | None = None
    only: list[str] = Field(default=[])
    base: Plain = Field(default={})
    methods: dict[str, Plain] = Field(default={})
    settings: dict[str, Plain] = Field(default={})
    grid: dict[str, list[object]] = Field(default={})
    paper: Paper = Paper()
    claims: list[Plain] = Field(default=[])  # the paper's claims, which reproduction/papers.py reads


Choice = tuple[tuple[str, object], ...]  # a cell's setting: (key, value) pairs of the table, then pairs of the grid

SETTING = "setting"  # a key in a Choice. Its value is the label of a table's setting.


@dataclass(frozen=True)
class Cell:
    """One run of a comparison. ``choice``: the run's setting. ``folder``: the folder of the run's seeds. Empty: the
    config's name. ``method``: the method's label. Empty: the config's label or name. ``measure``: the key of
    summary.json that the table compares. ``setting``: the label of the table's column."""

    config: config.Config
    choice: Choice = ()
    folder: str = ""
    method: str = ""
    measure: str = ACCURACY
    setting: str = ""

    @property
    def name(self) -> str:
        """The path of the run's folder, from the comparison's folder: NAME[,KEY=VALUE...]/seedN."""
        return f"{self.folder or self.config.name}/seed{self.config.seed}"


@dataclass(frozen=True)
class Table:
    """A table's cells, row by row."""

    name: str
    title: str
    cells: tuple[Cell, ...]


def names() -> list[str]:
    return recipes.names(FOLDER)


def is_table(name_or_path: str) -> bool:
    """Return whether ``name_or_path`` is a table's name, or the path of a TOML file with the key ``methods``.
    ConfigError: the file cannot be read."""
    return name_or_path in names() or (name_or_path.endswith(".toml") and "methods" in _parse(name_or_path))


def load(name_or_path: str, changes: Plain | None = None) -> Table:
    """Return the table with this name or path. ``changes`` maps dotted keys to new values in all cells.

    ConfigError: there is no such table, or a cell is not a valid recipe.
    """
    file, name = read(name_or_path), Path(name_or_path).stem
    named = not name_or_path.endswith(".toml")
    path = Path(str(recipes.file(name, FOLDER)) if named else name_or_path).expanduser()
    cells = []
    for method, own in file.methods.items():
        for setting, (choice, shared) in _columns(file).items():
            if setting in own.get("not_at", []):
                continue
            row = {key: value for key, value in own.items() if key not in ("at", "not_at")}
            values = merge(merge(merge(file.base, row), shared), own.get("at", {}).get(setting, {}))
            label = f"{method}, {setting}" if setting else method
            values |= {"name": slug(name, method, setting), "label": label, "about": f"{file.title}."}
            recipe = config.from_dict(config.changed(values, changes or {}), f"{name}, {label}")
            recipe = config.placed(recipe, path)
            cells.append(Cell(recipe, choice, method=method, measure=file.paper.measure, setting=setting))
    return Table(name, file.title, tuple(cells))


def merge(below: Mapping[str, object], above: Mapping[str, object]) -> Plain:
    """Return ``below`` with the values of ``above``. Sections with the same name are merged key by key, unless the
    section of ``above`` has the key "name" or "rule". Such a section replaces the section of ``below``."""
    merged = dict(deepcopy(below))
    for key, value in above.items():
        earlier = merged.get(key)
        if isinstance(value, Mapping) and isinstance(earlier, Mapping) and not value.keys() & {"name", "rule"}:
            merged[key] = {**earlier, **deepcopy(dict(value))}
        else:
            merged[key] = deepcopy(value)
    return merged


def _columns(file: TableFile) -> dict[str, tuple[Choice, Plain]]:
    """Return each setting's Choice, and the setting's changes to a recipe, by the setting's label."""
    if not file.grid:
        return {label: (((SETTING, label),), own) for label, own in file.settings.items()} or {"": ((), {})}
    columns: dict[str, tuple[Choice, Plain]] = {}
    for combination in itertools.product(*file.grid.values()):
        changes = dict(zip(file.grid, combination, strict=True))
        choice = tuple((key.rpartition(".")[2], str(value)) for key, value in changes.items())
        columns[", ".join(f"{key}={value}" for key, value in choice)] = choice, config.changed({}, changes)
    return columns


def read(name_or_path: str) -> TableFile:
    """Return the contents of a table's file, merged with the contents of the table that the file extends, if any.
    ConfigError: there is no such file, or the file is not a valid table."""
    values = _parse(name_or_path)
    try:
        file = TableFile.model_validate(values)
    except ValidationError as error:
        raise ConfigError(f"{name_or_path}: {config.explain(error, TableFile)}") from None
    if file.grid and file.settings:
        raise ConfigError(f"{name_or_path}: give settings or grid, not both")
    if file.extends is not None:
        file = _on_top(read(file.extends), file)
    if unknown := [method for method in file.only if method not in file.methods]:
        raise ConfigError(f"{name_or_path}: only names unknown methods: {', '.join(unknown)}")
    for method, own in file.methods.items():
        if unknown := [label for label in [*own.get("at", {}), *own.get("not_at", [])] if label not in _columns(file)]:
            raise ConfigError(f"{name_or_path}: {method} has changes at {', '.join(unknown)}, which is no setting")
    return file


def _on_top(below: TableFile, above: TableFile) -> TableFile:
    methods = {**below.methods, **above.methods}
    if above.only:
        methods = {label: methods[label] for label in above.only if label in methods}
    return above.model_copy(
        update={
            "base": merge(below.base, above.base),
            "methods": methods,
            "settings": {} if above.grid else {**below.settings, **above.settings},
            "grid": above.grid or ({} if above.settings else below.grid),
            "paper": above.paper if above.paper.model_fields_set else below.paper,
        }
    )


def _parse(name_or_path: str) -> Plain:
    if name_or_path.endswith(".toml"):
        return config.read(Path(name_or_path).expanduser(), "table")
    if name_or_path not in names():
        raise ConfigError(recipes.unknown(name_or_path, recipes.names(), names()))
    return config.parse(recipes.text(name_or_path, FOLDER), name_or_path)


def slug(*parts: str) -> str:
    """Return a folder's name: ``parts`` in lower case, joined by dots, with only letters, digits, dots and dashes."""
    return ".".join(re.sub(r"[^A-Za-z0-9.]+", "-", part).strip("-.").lower() for part in parts if part)
