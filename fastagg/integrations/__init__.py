"""Other frameworks on fastagg's servers. Each room imports its framework, and nothing else in the package does."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, version

from fastagg.errors import MissingDependency


def require(package: str, least: str, extra: str) -> None:
    """Whether ``package`` is installed and new enough.

    Raises:
        MissingDependency: it is not, and what to install.
    """
    advice = f"fastagg's {extra} integration needs {package} {least} or newer: pip install 'fastagg[{extra}]'"
    try:
        found = version(package)
    except PackageNotFoundError:
        raise MissingDependency(f"{package} is not installed. {advice}") from None
    if _numbers(found) < _numbers(least):
        raise MissingDependency(f"{package} {found} is too old. {advice}")


def _numbers(release: str) -> tuple[int, ...]:
    found = re.match(r"\d+(\.\d+)*", release)
    return tuple(int(part) for part in found.group().split(".")) if found else ()
