"""Adapters from other frameworks to fastagg. Each imports its framework; no other part of the package does."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from fastagg import _checks, registry
from fastagg.errors import ConfigError, MissingDependency
from fastagg.integrations.goals import Best, Stop
from fastagg.server.server import Server

__all__ = ["Best", "Stop", "preset", "require"]


def require(package: str, least: str, extra: str) -> None:
    """Whether ``package`` is installed and new enough.

    Raises:
        MissingDependency: it is not. The message says what to install.
    """
    advice = f"fastagg's {extra} integration needs {package} {least} or newer: pip install 'fastagg[{extra}]'"
    try:
        found = version(package)
    except PackageNotFoundError:
        raise MissingDependency(f"{package} is not installed. {advice}") from None
    if _numbers(found) < _numbers(least):
        raise MissingDependency(f"{package} {found} is too old. {advice}")


def preset(name: object) -> Callable[..., Server]:
    """The preset with this ``name``, for configuration files; or a function of your own, ``"module:function"``, which
    makes a server of a model and the settings.

    Raises:
        ConfigError: there is no such preset or function.
    """
    known = registry.presets()
    if isinstance(name, str) and ":" in name:
        made: Callable[..., Server] = imported("algorithm", name)
        return made
    if not isinstance(name, str) or name not in known:
        meant = _checks.meant(name, known)
        raise ConfigError(f"algorithm: expected one of fastagg's presets, as 'FADAS', got {name!r}{meant}")
    return known[name]


def imported(setting: str, name: str) -> Any:
    """What ``module:function`` names.

    Raises:
        ConfigError: there is no such function.
    """
    module, _, function = name.partition(":")
    try:
        return getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"{setting}: expected 'module:function', got {name!r}: {error}") from None


def _numbers(release: str) -> tuple[int, ...]:
    found = re.match(r"\d+(\.\d+)*", release)
    return tuple(int(part) for part in found.group().split(".")) if found else ()
