"""The settings of a run: the checked contents of a recipe's TOML, with all defaults written out.

Sections: ``algorithm`` (a preset's name and its keywords), ``data``, ``model``, ``client`` (local
training), ``delay``, ``dropout``, ``participation``, ``run`` (when to stop, how often to evaluate). Unknown keys are
errors.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path

import tomli_w
from pydantic import Field, ValidationError, model_validator

from fastagg._types import Plain
from fastagg.errors import ConfigError
from fastagg.sim.data.sections import AnyData, named_function
from fastagg.sim.recipes.delays import AnyDelay, ThreeClassDelay, TimedDelay, VersionDelay
from fastagg.sim.recipes.explain import explain, on_one_line
from fastagg.sim.recipes.sections import Algorithm, Client, Distill, Dropout, Model, Own, Participation, Run, Unlabelled
from fastagg.sim.section import Section


class Config(Section):
    """One run. ``name`` names its folder and ``label`` its line in plots and tables."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    label: str = ""
    about: str = ""
    seed: int = Field(0, ge=0)
    algorithm: Algorithm
    data: AnyData
    model: Model = Model()
    client: Client
    delay: AnyDelay
    dropout: Dropout = Dropout()
    participation: Participation = Participation()
    unlabelled: Unlabelled = Unlabelled()
    distill: Distill = Distill()
    own: Own = Own()
    run: Run

    @model_validator(mode="before")
    @classmethod
    def _data_by_function(cls, values: object) -> object:
        return (
            {**values, "data": named_function(values["data"])}
            if isinstance(values, dict) and "data" in values
            else values
        )

    @model_validator(mode="after")
    def _fits_together(self) -> Config:
        concurrency = self.participation.concurrency
        if concurrency is not None and concurrency > self.data.clients:
            raise ValueError(f"participation.concurrency is {concurrency}, more than data.clients, {self.data.clients}")
        counts = self.delay.counts if isinstance(self.delay, ThreeClassDelay) else None
        if counts is not None and sum(counts) != self.data.clients:
            raise ValueError(f"delay.counts are {sum(counts)} clients, data.clients is {self.data.clients}")
        counting = self.delay.counting if isinstance(self.delay, TimedDelay) else "arrival"
        if counting == "authors" and self.participation.rule != "concurrency":
            raise ValueError('delay.counting "authors" needs participation.rule "concurrency"')
        if getattr(self.delay, "start", "sent") == "before" and counting != "authors":
            raise ValueError('delay.start "before" needs delay.counting "authors"')
        if isinstance(self.delay, VersionDelay) and self.participation.rule != "all":
            raise ValueError('delay "version" draws each arriving client from all: participation.rule must be "all"')
        return self


def from_dict(values: Plain, source: str) -> Config:
    """Check ``values``. ConfigError if something is wrong: one line that begins with ``source`` and names the key."""
    try:
        return Config.model_validate(values)
    except ValidationError as error:
        raise ConfigError(f"{source}: {explain(error, Config)}") from None


def from_toml(text: str, source: str, changes: Plain | None = None) -> Config:
    """Read a TOML document; ``changes`` maps dotted keys ("client.lr") to new values."""
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{source} is not valid TOML: {error}") from None
    return from_dict(changed(values, changes or {}), source)


def changed(values: Mapping[str, object], changes: Mapping[str, object]) -> Plain:
    """Return a copy of ``values`` with ``changes`` to dotted keys ("client.lr") made in it."""
    copy = deepcopy(dict(values))
    for key, value in changes.items():
        _put(copy, key, value)
    return copy


def to_toml(config: Config) -> str:
    """Write ``config`` with all defaults. ``from_toml`` reads an equal Config from it."""
    return tomli_w.dumps(config.model_dump(exclude_none=True))


def differences(a: Config, b: Config) -> list[str]:
    """Return the dotted keys in which the two differ, in order."""
    return sorted(dict(_leaves(a.model_dump()).items() ^ _leaves(b.model_dump()).items()))


def _leaves(values: Plain, prefix: str = "") -> dict[str, str]:
    leaves: dict[str, str] = {}
    for key, value in values.items():
        leaves |= _leaves(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: repr(value)}
    return leaves


def load(path: Path, changes: Plain | None = None) -> Config:
    """Read a recipe from a file. ConfigError when it cannot be read."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ConfigError(f"cannot read the recipe {path}: expected TOML in UTF-8, got other bytes") from None
    except OSError as error:
        more = "; `fastagg recipes` lists those in the package" if isinstance(error, FileNotFoundError) else ""
        raise ConfigError(f"cannot read the recipe {path}: {error.strerror or error}{more}") from None
    return from_toml(text, str(path), changes)


def parse_change(text: str) -> tuple[str, object]:
    """Split "client.lr=0.1" into its key and its value. The value is read as TOML; if that fails, it is plain text."""
    key, equals, value = text.partition("=")
    key, value = key.strip(), value.strip()
    if not equals or not key or not all(key.split(".")):
        raise ConfigError(f"expected key=value such as client.lr=0.1, got {text!r}")
    try:
        return key, tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return key, value


def parse_choices(text: str) -> tuple[str, list[object]]:
    """Split "client.lr=0.1,0.3" into its key and its values. A comma inside brackets or quotes does not separate."""
    key, equals, values = text.partition("=")
    parts, depth, quote = [""], 0, ""
    for letter in values:
        if letter in "\"'":
            quote = "" if quote == letter else quote or letter
        elif not quote:
            depth += (letter in "[{") - (letter in "]}")
        if letter == "," and not quote and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    parsed = [parse_change(f"{key}{equals}{part}") for part in parts]
    if len(parts) > 1 and not all(part.strip() for part in parts):
        raise ConfigError(f"expected key=value,value such as client.lr=0.1,0.3, got {text!r}")
    return parsed[0][0], [value for _, value in parsed]


def _put(values: Plain, dotted: str, value: object) -> None:
    *parents, last = dotted.split(".")
    here = values
    for parent in parents:
        here = here.setdefault(parent, {})
        if not isinstance(here, dict):
            raise ConfigError(f"{on_one_line(dotted)}: {on_one_line(parent)} is a value, not a section")
    here[last] = value
