"""Defines Config, the settings of a run, and reads a Config from a recipe's TOML file."""

from __future__ import annotations

import re
import reprlib
import tomllib
from collections.abc import Mapping
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import Field, PrivateAttr, ValidationError, model_validator
from pydantic_core import ErrorDetails

from fastagg import _checks, _keywords, registry
from fastagg._types import Plain
from fastagg.errors import ConfigError
from fastagg.sim.clock.delays import AnyDelay
from fastagg.sim.data.sections import AnyData, Section, kinds_of, tag_of
from fastagg.sim.functions import find, fits, is_function, parameters
from fastagg.sim.recipes import sections

_OUTPUTS = ("outputs", "labels")
# The arguments of the user's functions, by the functions' keys. A function at a key in VIEWED may also take ``view``.
ARGUMENTS = {
    "own.train": ("model", "data", "task", "state"), "own.change": ("update", "task"),
    "own.personal": ("model", "state"), "own.loss": _OUTPUTS, "own.metric": _OUTPUTS,
    "delay.name": ("client", "number", "steps", "rng"), "participation.sampling": ("idle", "time", "rng"),
}  # fmt: skip
VIEWED = ("delay.name", "participation.sampling")


class Config(Section):
    """The settings of one run. All random numbers of the run come from ``seed``. ``name`` is the name of the run's
    folder. ``label`` is the run's name in plots and tables. Empty: ``name``. ``about`` is a text for people. ``folder``
    is searched for the modules of the user's functions, besides the current folder. If a recipe's file names such
    functions, the default of ``folder`` is the file's folder. An unknown key is an error."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    label: str = ""
    about: str = ""
    folder: str | None = None
    seed: int = Field(0, ge=0, lt=2**63)
    algorithm: sections.Algorithm
    data: AnyData
    model: sections.AnyModel = sections.Model()
    client: sections.Client
    delay: AnyDelay
    dropout: sections.Dropout = sections.Dropout()
    attack: sections.Attack = sections.Attack()
    encoding: sections.Encoding = sections.Encoding()
    participation: sections.Participation = sections.Participation()
    unlabelled: sections.UnlabelledData = sections.UnlabelledData()
    distill: sections.Distill = sections.Distill()
    own: sections.UserFunctionNames = sections.UserFunctionNames()
    run: sections.RunSettings
    _held: Plain = PrivateAttr(default_factory=dict)

    @property
    def held(self) -> Plain:
        """The objects that a program passes: functions by their keys, and a FederatedData by the key "data"."""
        return self._held

    @property
    def functions(self) -> dict[str, str]:
        """The names of the user's functions in this run, by their keys: "module:function", or "given" if passed."""
        names = {"algorithm.name": self.algorithm.name, "data.name": self.data.name, "model.name": self.model.name,
                 "delay.name": self.delay.name, "participation.sampling": self.participation.sampling}  # fmt: skip
        names |= {f"own.{name}": value for name, value in self.own if name != "keywords"}
        return {key: name for key, name in names.items() if name is not None and is_function(name)}

    def function(self, key: str) -> Any:
        """Return the user's function at a key. None: the key has no function. The keywords of ``own.train`` and of a
        delay law are bound. ConfigError: the function cannot be found, or does not take its ARGUMENTS."""
        if (name := self.functions.get(key)) is None:
            return None
        function = self.passed(key) if name == "given" else find(name, key)
        if key not in ARGUMENTS:
            return function
        keywords = {"own.train": self.own.keywords, "delay.name": getattr(self.delay, "keywords", {})}.get(key, {})
        views = {"view": None} if key in VIEWED and "view" in parameters(function) else {}
        fits(function, key, *ARGUMENTS[key], **views, **keywords)
        return partial(function, **keywords) if keywords else function

    def passed(self, key: str) -> Any:
        """Return the object that a program passes for ``key``. ConfigError: no object was passed for ``key``."""
        if key not in self._held:
            argument = key.removeprefix("participation.").partition(".")[0]
            raise ConfigError(f'{key} "given" is what a program passes: fastagg.sim.run(config, {argument}=...)')
        return self._held[key]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Config) and self.model_dump() == other.model_dump()

    def holding(self, held: Plain) -> Config:
        """Return a copy of the config with the further objects ``held``, by their keys."""
        config = self.model_copy()
        config._held = {**self._held, **held}
        return config

    @model_validator(mode="after")
    def _fits_together(self) -> Config:
        clients, concurrency, rule = self.data.clients, self.participation.concurrency, self.participation.rule
        if concurrency is not None and concurrency > clients:
            raise ValueError(f"participation.concurrency is {concurrency}, more than the data's {clients} clients")
        self.delay.check(clients)
        if getattr(self.delay, "counting", "arrival") == "authors" and rule != "concurrency":
            raise ValueError('delay.counting "authors" needs participation.rule "concurrency"')
        if self.delay.in_versions and (rule != "all" or self.participation.file):
            raise ValueError('delay "version" draws each arriving client from all: participation.rule must be "all"')
        return self


# The classes that a section of a recipe may have, by the section's key.
KINDS = {key: kinds for key, field in Config.model_fields.items() if (kinds := kinds_of(field.annotation))}
_TAGGED = {tag_of(kind): kind for kinds in KINDS.values() if len(kinds) > 1 for kind in kinds}
# Hints for names that are not keys, but that users take for keys.
ELSEWHERE = {"seeds": "a run has one seed; `fastagg compare RECIPE --seeds 3` runs several"}
_MOST = 8  # the most problems that a message lists


def explain(error: ValidationError, top: type[Section] = Config) -> str:
    """Return one line with pydantic's problems, each as "key: problem". ``top``: the class of the checked values."""
    problems = error.errors(include_url=False)
    shown = [_problem(item, top) for item in problems[:_MOST]]
    return "; ".join([*shown, f"and {len(problems) - _MOST} more"] if len(problems) > _MOST else shown)


def _problem(item: ErrorDetails, top: type[Section]) -> str:
    kind, got, path = item["type"], reprlib.repr(item["input"]), [str(part) for part in item["loc"]]
    # pydantic's location of a tagged section contains the tag (data, digits, alpha), but the user's key does not.
    where = ".".join(_on_one_line(part) for part in path if part not in _TAGGED)
    if kind == "extra_forbidden":
        section = next((_TAGGED[part] for part in path if part in _TAGGED), KINDS.get(path[0], [top])[0])
        known = list((section if len(path) > 1 else top).model_fields)
        keys = " or ".join([full for full in full_keys(path[-1]) if full != where][:4])
        if keys and len(path) == 1:
            return f"unknown key {where}, got {got}; did you mean {keys}?"
        near = _checks.meant(path[-1], known) or (keys and f"; there is {keys}")
        near = f"; {ELSEWHERE[where]}" if where in ELSEWHERE else near
        return f"unknown key {where} (known here: {', '.join(known)}){near}"
    message = item["msg"].removeprefix("Value error, ")
    if kind == "missing":
        message = "this key is missing"
    elif kind == "union_tag_not_found" and isinstance(item["input"], Mapping):
        message = "the key name is missing"
    elif kind in ("model_type", "model_attributes_type", "dict_type", "union_tag_not_found"):
        message = f"expected a section with keys, got {got}"
    elif kind == "union_tag_invalid":
        known_names = item["ctx"]["expected_tags"]
        message = f"unknown name {item['ctx']['tag']!r} (known: {known_names}){_meant(item['ctx']['tag'], known_names)}"
    elif not kind.startswith("value_error"):
        message = f"{message[:1].lower()}{message[1:]}, got {got}{_meant(item['input'], message)}"
    return f"{where}: {message}" if where else message


def _on_one_line(text: str) -> str:
    """Return ``text``, or its repr if ``text`` would break the line of a message."""
    return text if text.isprintable() else repr(text)


def _meant(value: object, message: str) -> str:
    """Return a hint at the quoted name in ``message`` that is most similar to ``value``. Empty: no name is similar."""
    return _checks.meant(value, re.findall(r"'([^']+)'", message))


def full_keys(key: str) -> list[str]:
    """Return all dotted keys whose last part is ``key``: "client.lr", "algorithm.lr" and others for "lr"."""
    held = {name: {field for kind in kinds for field in kind.model_fields} for name, kinds in KINDS.items()}
    settings = {name for preset in registry.presets().values() for name in _keywords.of(preset).settings}
    held["algorithm"] = settings - {"seed", "num_clients", "distill"}  # other keys of a recipe set these
    return [
        f"{name}.{key}" for name in dict.fromkeys(("client", "algorithm", "data", "run", *held)) if key in held[name]
    ]


def from_dict(values: Plain, source: str) -> Config:
    """Return the Config of ``values``. ConfigError: a value is invalid. The message is one line that begins with
    ``source``."""
    try:
        return Config.model_validate(values)
    except ValidationError as error:
        raise ConfigError(f"{source}: {explain(error)}") from None


def from_toml(text: str, source: str, changes: Plain | None = None) -> Config:
    """Return the Config of a TOML document, with new values ``changes`` by dotted key. ``source`` is the document's
    name in messages. ConfigError: ``text`` is not TOML, or a value is invalid."""
    return from_dict(changed(parse(text, source), changes or {}), source)


def parse(text: str, source: str) -> Plain:
    """Return the contents of a TOML document. ConfigError, with the name ``source``: ``text`` is not TOML."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{source} is not valid TOML: {error}") from None


def read(path: Path, what: str) -> Plain:
    """Return the contents of a TOML file. ``what`` is "recipe" or "table", for messages. ConfigError: the file cannot
    be read, or is not TOML."""
    try:
        return parse(path.read_text(encoding="utf-8-sig"), str(path))
    except UnicodeDecodeError:
        raise ConfigError(f"cannot read the {what} {path}: expected TOML in UTF-8, got other bytes") from None
    except OSError as error:
        more = "; `fastagg recipes` lists those in the package" if isinstance(error, FileNotFoundError) else ""
        raise ConfigError(f"cannot read the {what} {path}: {error.strerror or error}{more}") from None


def changed(values: Mapping[str, object], changes: Mapping[str, object]) -> Plain:
    """Return a copy of ``values`` with ``changes``, which maps dotted keys ("client.lr") to new values. ConfigError: a
    part of a key that should be a section is a value."""
    copy: Plain = deepcopy(dict(values))
    for dotted, value in changes.items():
        *parents, last = dotted.split(".")
        here = copy
        for parent in parents:
            here = here.setdefault(parent, {})
            if not isinstance(here, dict):
                raise ConfigError(f"{_on_one_line(dotted)}: {_on_one_line(parent)} is a value, not a section")
        here[last] = value
    return copy


def to_toml(config: Config) -> str:
    """Return ``config`` as TOML with all defaults. ``from_toml`` makes an equal Config from this text."""
    return tomli_w.dumps(config.model_dump(exclude_none=True))


def differences(a: Config, b: Config) -> list[str]:
    """Return the sorted dotted keys in which two configs differ. ``folder`` is not compared, because it only says where
    the user's modules are: :mod:`fastagg.sim.runs.inputs` compares their code."""
    first, second = (_leaves(config.model_dump(exclude={"folder"})) for config in (a, b))
    return sorted(dict(first.items() ^ second.items()))


def _leaves(values: Plain, prefix: str = "") -> dict[str, str]:
    leaves: dict[str, str] = {}
    for key, value in values.items():
        leaves |= _leaves(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: repr(value)}
    return leaves


def load(path: Path, changes: Plain | None = None) -> Config:
    """Read a recipe from a file. ConfigError: the file cannot be read, or is no recipe."""
    return placed(from_dict(changed(read(path, "recipe"), changes or {}), str(path)), path)


def placed(config: Config, path: Path) -> Config:
    """Return ``config`` with the folder of its file ``path`` as ``folder``, so that the modules of its functions are
    found there. A ``config`` that has a ``folder``, or names no functions, is returned unchanged."""
    if config.folder is not None or not any(name != "given" for name in config.functions.values()):
        return config
    return config.model_copy(update={"folder": str(path.parent.absolute())})
