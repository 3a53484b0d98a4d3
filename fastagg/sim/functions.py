"""Finds and calls the user's functions that a recipe names as "module:function"."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from importlib.machinery import PathFinder
from pathlib import Path

from fastagg.errors import ConfigError


@contextmanager
def beside(folder: str | None) -> Iterator[None]:
    """In a ``with`` block, let Python also import modules from the current folder and, if not None, ``folder``."""
    added = [here for here in (folder, str(Path.cwd())) if here is not None and here not in sys.path]
    sys.path += added
    try:
        yield
    finally:
        for here in added:
            sys.path.remove(here)


def is_function(name: str) -> bool:
    """Return whether a recipe's value is "module:function", or "given" for a function that a program passes."""
    return name == "given" or ":" in name


def find(name: str, key: str) -> Callable[..., object]:
    """Return the function ``name`` ("module:function") that a recipe has at ``key``. ConfigError: there is no such
    function, or a module with the same name but from another file is already imported."""
    module, _, function = name.partition(":")
    try:
        with beside(None):
            thing, top = importlib.import_module(module), module.partition(".")[0]
            specs = PathFinder.find_spec(top), sys.modules[top].__spec__
            meant, there = (getattr(spec, "origin", None) for spec in specs)
        for part in function.split("."):
            thing = getattr(thing, part)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"{key}: {name!r} cannot be found: {error}") from None
    if meant and there and Path(meant).resolve() != Path(there).resolve():
        raise ConfigError(f"{key}: {name!r} is in {meant}, but another module of this name is imported: {there}")
    if not callable(thing):
        raise ConfigError(f"{key}: {name!r} is a {type(thing).__name__}, expected a function")
    return thing


def fits(function: object, key: str, *positional: object, **keywords: object) -> None:
    """Raise a ConfigError that names ``key`` unless ``function`` is a function that takes these arguments."""
    if not callable(function):
        raise ConfigError(f"{key}: expected a function, got a {type(function).__name__}")
    try:
        inspect.signature(function).bind(*positional, **keywords)
    except TypeError as error:
        raise ConfigError(f"{key}: the function does not take these arguments: {error}") from None
    except ValueError:  # some built-in functions have no signature, so their arguments are not checked
        pass


def parameters(function: object) -> Collection[str]:
    """Return the names of the parameters of ``function``. Empty: there are none, or ``function`` has no signature."""
    try:
        return inspect.signature(function).parameters if callable(function) else ()
    except ValueError:
        return ()


def call(function: Callable[..., object], key: str, *positional: object, **keywords: object) -> object:
    """Call ``function`` and return its result. A ConfigError that names ``key``: ``function`` takes other arguments."""
    fits(function, key, *positional, **keywords)
    return function(*positional, **keywords)
