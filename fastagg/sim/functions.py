"""Functions that a recipe names as "module:function": your own data and models."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable
from pathlib import Path

from fastagg.errors import ConfigError


def find(name: str, key: str) -> Callable[..., object]:
    """Return the function ``name`` ("module:function"), which a recipe names in ``key``. Modules in the current folder
    are found, too. ConfigError if there is no such function."""
    module, _, function = name.partition(":")
    here = str(Path.cwd())
    added = here not in sys.path
    if added:
        sys.path.append(here)
    try:
        found = importlib.import_module(module)
        for part in function.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"{key}: {name!r} cannot be found: {error}") from None
    finally:
        if added:
            sys.path.remove(here)
    if not callable(found):
        raise ConfigError(f"{key}: {name!r} is a {type(found).__name__}, expected a function")
    return found


def call(function: Callable[..., object], key: str, *positional: object, **keywords: object) -> object:
    """Call the function. ConfigError that names ``key`` if it takes other arguments."""
    try:
        inspect.signature(function).bind(*positional, **keywords)
    except TypeError as error:
        raise ConfigError(f"{key}: the function does not take these arguments: {error}") from None
    except ValueError:  # some built-in functions have no signature
        pass
    return function(*positional, **keywords)
