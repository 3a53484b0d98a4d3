"""Finds recipes and tables of runs by name. Recipes are ``NAME.toml`` in this folder, tables in the folder ``tables``.

Tables whose data is in files, and the tables that extend them, are in ``reproduction/`` of the repository."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

from fastagg import _checks
from fastagg._types import Plain
from fastagg.errors import ConfigError
from fastagg.sim.recipes import config


def names(folder: str = ".") -> list[str]:
    """Return the sorted names of the recipes. For the folder "tables", return the sorted names of the tables."""
    entries = (entry.name for place in _places(folder) for entry in place.iterdir())
    return sorted(name.removesuffix(".toml") for name in entries if name.endswith(".toml"))


def text(name: str, folder: str = ".") -> str:
    return file(name, folder).read_text(encoding="utf-8")


def file(name: str, folder: str = ".") -> Traversable:
    paths = (place.joinpath(f"{name}.toml") for place in _places(folder))
    return next(path for path in paths if path.is_file())


def _places(folder: str) -> Iterator[Traversable]:
    """Yield the package's folder. For tables, also yield the folder ``reproduction`` of the checkout that has this
    package, or else of a checkout in the current folder. If neither exists, only the package's folder is yielded."""
    yield files(__name__).joinpath(folder)
    if folder == "tables":
        roots = (root for root in (Path(__file__).parents[3], Path.cwd()) if (root / "fastagg" / "sim").is_dir())
        yield from [root / "reproduction" for root in roots if (root / "reproduction").is_dir()][:1]


def load(name_or_path: str, changes: Plain | None = None) -> config.Config:
    """Return a recipe by its name in the package or by a path. ``changes`` has new values by dotted key.

    A text that ends in .toml or contains a slash is a path. Any other text is the name of a recipe in the package.
    ConfigError: there is no such recipe, or the recipe is invalid.
    """
    if name_or_path.endswith(".toml") or Path(name_or_path).name != name_or_path:
        return config.load(Path(name_or_path).expanduser(), changes)
    if name_or_path in names("tables"):
        raise ConfigError(f"{name_or_path!r} is a table of several runs: fastagg compare {name_or_path}")
    if name_or_path not in names():
        raise ConfigError(unknown(name_or_path, names(), names("tables")))
    return config.from_toml(text(name_or_path), name_or_path, changes)


def unknown(name: str, *known: list[str]) -> str:
    """Return the message that there is no recipe ``name``, with similar names from ``known`` or another hint."""
    like = next(filter(None, ([entry for entry in entries if name.lower() in entry] for entries in known)), [])
    if like:
        more = f" and {len(like) - 8} more" if len(like) > 8 else ""
        return f"no recipe {name!r}; there are {', '.join(like[:8])}{more} (`fastagg recipes {name}` describes them)"
    if Path(name).is_dir():
        return f"no recipe {name!r}; it is a folder: `fastagg run --resume {name}` goes on with the run in it"
    near = (
        _checks.meant(name, [entry for entries in known for entry in entries]) or "; `fastagg recipes` lists them all"
    )
    papers = "; the papers' tables on data in files are in reproduction/ of fastagg's repository"
    elsewhere = papers if len(list(_places("tables"))) == 1 else ""
    return f"no recipe {name!r}{near} (a file's name ends in .toml{elsewhere})"
