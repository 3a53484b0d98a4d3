"""Adapters from other frameworks to fastagg. Each imports its framework; no other part of the package does."""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version

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
    """The preset with this ``name``, for configuration files.

    Raises:
        ConfigError: there is no such preset.
    """
    known = registry.presets()
    if not isinstance(name, str) or name not in known:
        meant = _checks.meant(name, known)
        raise ConfigError(f"algorithm: expected one of fastagg's presets, as 'FADAS', got {name!r}{meant}")
    return known[name]


def _numbers(release: str) -> tuple[int, ...]:
    found = re.match(r"\d+(\.\d+)*", release)
    return tuple(int(part) for part in found.group().split(".")) if found else ()
