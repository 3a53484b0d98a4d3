"""Adapters that run fastagg in other frameworks. Only an adapter imports its framework.

Users import :class:`Best` and :class:`Stop` from here. Adapters call the functions, which check that a framework is
installed, find the presets and functions that a configuration file names, and return a client's id for the server.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from fastagg import _checks, registry
from fastagg._types import Plain
from fastagg.distill import Distillation
from fastagg.errors import ConfigError, MissingDependency, UnknownClient
from fastagg.integrations.goals import Best, Stop
from fastagg.server.server import Server

__all__ = ["Best", "Stop", "preset", "require"]


def require(package: str, least: str, extra: str) -> None:
    """Check that ``package`` is installed, in version ``least`` or newer. ``extra``: fastagg's extra that installs it.

    Raises:
        MissingDependency: the package is missing or too old. The message says what to install.
    """
    advice = f"fastagg's {extra} integration needs {package} {least} or newer: pip install 'fastagg[{extra}]'"
    try:
        installed = version(package)
    except PackageNotFoundError:
        raise MissingDependency(f"{package} is not installed. {advice}") from None
    if _numbers(installed) < _numbers(least):
        raise MissingDependency(f"{package} {installed} is too old. {advice}")


def preset(name: object, setting: str = "algorithm") -> Callable[..., Server]:
    """Return the preset with this ``name``, or your own function ``"module:function"``, for a configuration file. The
    function gets a model and settings, and returns a server. ``setting``: the name's key in the file, for errors.

    Raises:
        ConfigError: there is no such preset or function.
    """
    known = registry.presets()
    if isinstance(name, str) and ":" in name:
        made: Callable[..., Server] = imported(setting, name)
        return made
    if not isinstance(name, str) or name not in known:
        meant = _checks.meant(name, known)
        raise ConfigError(f"{setting}: expected one of fastagg's presets, as 'FADAS', got {name!r}{meant}")
    return known[name]


def imported(setting: str, name: str) -> Any:
    """Return the object that ``name`` (``module:function``) names. ``setting``: the name's key, for errors.

    Raises:
        ConfigError: there is no such function.
    """
    module, _, function = name.partition(":")
    try:
        return getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"{setting}: expected 'module:function', got {name!r}: {error}") from None


def check_names(names: Iterable[str], known: Iterable[str], refused: Mapping[str, str]) -> None:
    """Raise ConfigError for a name that is in ``refused`` or not in ``known``. ``refused`` has, by name, the reason why
    a setting would have no effect."""
    for name in names:
        if name in refused:
            raise ConfigError(f"{name}: {refused[name]}")
        if name not in known:
            raise ConfigError(_checks.unknown("setting", name, known))


def resolved(settings: Mapping[str, object] | None) -> Plain:
    """Return a preset's settings. For FedEcho, a function's name in ``distill`` is replaced by the function's result.
    Raises ConfigError if there is no such function, or the result is no Distillation."""
    plain = dict(settings or {})
    name = plain.get("distill")
    if isinstance(name, str):
        plain["distill"] = made = imported("distill", name)()
        if not isinstance(made, Distillation):
            raise ConfigError(f"distill: {name} returned a {type(made).__name__}, no fastagg.Distillation")
    return plain


def number_of(server: Server, client: int | str, names: Sequence[int | str] | None, setting: str) -> int | str:
    """Return a client's id for the server: the client's name. If the rule keeps data for each of n clients, the id is
    instead the index of the name in ``names``. ``setting``: the setting that holds ``names``, for errors.
    """
    if server.num_clients is None:
        return client
    if names is None or client not in names:
        raise UnknownClient(f"client {client!r}: this rule needs the names of all clients, and {setting} is {names}")
    return list(names).index(client)


def _numbers(release: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", re.sub(r"[^\d.].*", "", release))]
