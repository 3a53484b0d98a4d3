"""Tables and figures of the papers as data: several methods in several settings, with the paper's numbers.

A table is a TOML file: ``NAME.toml`` in recipes/tables or a checkout's reproduction/, or any other path.
docs/simulator.md describes it.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field, PositiveFloat, ValidationError, ValidationInfo, field_validator

from fastagg._types import Plain
from fastagg.errors import ConfigError
from fastagg.sim import recipes
from fastagg.sim.data.sections import Section
from fastagg.sim.recipes import config

FOLDER = "tables"


class Measured(Section):
    """A number: the entry ``measure`` of summary.json times ``scale``; by default 100 for accuracies and shares."""

    measure: str = "last5_accuracy_mean"
    scale: PositiveFloat = Field(default=None, validate_default=True)

    @field_validator("scale", mode="before")
    @classmethod
    def _of_the_measure(cls, scale: object, known: ValidationInfo) -> object:
        share = re.search("accuracy|share|client_(mean|worst|spread)", known.data.get("measure", ""))
        return (100.0 if share else 1.0) if scale is None else scale


class Paper(Measured):
    """A paper's own numbers of a ``measure``. A file has those of all cells in ``values``: method -> setting -> [mean]
    or [mean, deviation]. A cell has its own in ``numbers``, empty if there are none."""

    values: dict[str, dict[str, list[float]]] = Field(default={})
    numbers: tuple[float, ...] = ()

    def at(self, method: str, setting: str) -> Paper:
        own = tuple(self.values.get(method, {}).get(setting, ()))
        return self.model_copy(update={"values": {}, "numbers": own})


class Claim(Measured):
    """The claim that ``better``, a method and a setting, is better than ``worse`` in ``measure``. Larger is better,
    unless ``less``."""

    text: str
    better: tuple[str, str]
    worse: tuple[str, str]
    less: bool = False

    @field_validator("better", "worse", mode="before")
    @classmethod
    def _in_the_only_setting(cls, side: object) -> object:
        return (*side, "")[: max(2, len(side))] if isinstance(side, list) else side  # TOML has no tuples


class _File(Section):
    title: str
    source: str = ""
    extends: str | None = None
    only: list[str] = Field(default=[])
    base: Plain = Field(default={})
    methods: dict[str, Plain] = Field(default={})
    settings: dict[str, Plain] = Field(default={})
    grid: dict[str, list[object]] = Field(default={})
    paper: Paper = Paper()
    claims: list[Claim] = Field(default=[])


NO_PAPER = Paper()

Choice = tuple[tuple[str, object], ...]  # keys and their values in one cell, in the order of the table and grid

SETTING = "setting"  # the key in a Choice for a table's setting, whose value is a label


@dataclass(frozen=True)
class Cell:
    """One run of a comparison; ``method`` is "" if the config's label or name is used. ``setting`` is its column."""

    config: config.Config
    choice: Choice = ()
    folder: str = ""
    method: str = ""
    paper: Paper = NO_PAPER
    setting: str = ""

    @property
    def name(self) -> str:
        """The folder below the comparison's: NAME[,KEY=VALUE...]/seedN."""
        return f"{self.folder or self.config.name}/seed{self.config.seed}"


@dataclass(frozen=True)
class Table:
    """A whole table: its cells, row by row."""

    name: str
    title: str
    cells: tuple[Cell, ...]
    claims: tuple[Claim, ...] = ()


def names() -> list[str]:
    return recipes.names(FOLDER)


def is_table(name_or_path: str) -> bool:
    """Return whether this is a table: one by its name, or a TOML file with methods. ConfigError if unreadable."""
    return name_or_path in names() or (name_or_path.endswith(".toml") and "methods" in _parse(name_or_path))


def load(name_or_path: str, changes: Plain | None = None) -> Table:
    """Return a table, given by its name or by a path, with ``changes`` to dotted keys of all cells.

    ConfigError if there is no such table, or a cell is not a valid recipe.
    """
    file, name = _read(name_or_path), Path(name_or_path).stem
    named = not name_or_path.endswith(".toml")
    path = Path(str(recipes.file(name, FOLDER)) if named else name_or_path).expanduser()
    cells = []
    for method, own in file.methods.items():
        for setting, shared in _columns(file).items():
            if setting in own.get("not_at", []):
                continue
            row = {key: value for key, value in own.items() if key not in ("at", "not_at")}
            values = merge(merge(merge(file.base, row), shared), own.get("at", {}).get(setting, {}))
            label = f"{method}, {setting}" if setting else method
            values |= {"name": slug(name, method, setting), "label": label, "about": f"{file.title}."}
            recipe = config.from_dict(config.changed(values, changes or {}), f"{name}, {label}")
            recipe = config.placed(recipe, path)
            paper = file.paper.at(method, setting)
            cells.append(Cell(recipe, _choice(setting), method=method, paper=paper, setting=setting))
    sides = {(cell.method, cell.setting) for cell in cells}
    for claim in file.claims:
        for side in (claim.better, claim.worse):
            if side not in sides:
                what = f"the claim {claim.text!r} is about {', '.join(side)}, which is not in the table"
                raise ConfigError(f"{name}: {what}")
    return Table(name, file.title, tuple(cells), tuple(file.claims))


def _choice(setting: str) -> Choice:
    # A table's grid labels its columns "alpha=0.1, mean=5.0". Other settings are their own label.
    pairs = [part.partition("=") for part in setting.split(", ")]
    if all(equals for _, equals, _ in pairs):
        return tuple((key, value) for key, _, value in pairs)
    return ((SETTING, setting),) if setting else ()


def merge(below: Mapping[str, object], above: Mapping[str, object]) -> Plain:
    """Merge ``above`` into ``below``, section by section. A section with a name or rule replaces the earlier one."""
    merged = dict(deepcopy(below))
    for key, value in above.items():
        earlier = merged.get(key)
        if isinstance(value, Mapping) and isinstance(earlier, Mapping) and not value.keys() & {"name", "rule"}:
            merged[key] = {**earlier, **deepcopy(dict(value))}
        else:
            merged[key] = deepcopy(value)
    return merged


def _columns(file: _File) -> dict[str, Plain]:
    if not file.grid:
        return file.settings or {"": {}}
    columns = {}
    for combination in itertools.product(*file.grid.values()):
        changes = dict(zip(file.grid, combination, strict=True))
        label = ", ".join(f"{key.rpartition('.')[2]}={value}" for key, value in changes.items())
        columns[label] = config.changed({}, changes)
    return columns


def _read(name_or_path: str) -> _File:
    values = _parse(name_or_path)
    try:
        file = _File.model_validate(values)
    except ValidationError as error:
        raise ConfigError(f"{name_or_path}: {config.explain(error, _File)}") from None
    if file.grid and file.settings:
        raise ConfigError(f"{name_or_path}: give settings or grid, not both")
    if file.extends is not None:
        file = _on_top(_read(file.extends), file)
    if unknown := [method for method in file.only if method not in file.methods]:
        raise ConfigError(f"{name_or_path}: only names unknown methods: {', '.join(unknown)}")
    for method, own in file.methods.items():
        if unknown := [label for label in [*own.get("at", {}), *own.get("not_at", [])] if label not in _columns(file)]:
            raise ConfigError(f"{name_or_path}: {method} has changes at {', '.join(unknown)}, which is no setting")
    return file


def _on_top(below: _File, above: _File) -> _File:
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
    """Return a folder name: letters, digits and single dashes."""
    return ".".join(re.sub(r"[^A-Za-z0-9.]+", "-", part).strip("-.").lower() for part in parts if part)
