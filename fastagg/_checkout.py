"""Loads the compiled extension if Python runs in the folder of a clone, where ``fastagg/`` has only sources.

An extension that was compiled from other C++ sources than the clone's is refused. Only _build.py calls this module.
"""

from __future__ import annotations

import sys
from hashlib import sha256
from importlib.machinery import EXTENSION_SUFFIXES, PathFinder
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from platform import python_version
from types import ModuleType

_ROOT = Path(__file__).parents[1]
_NAME = "fastagg._native"


def extension() -> ModuleType:
    """Load and return the newest extension in this clone's build folders. If there is none, take the installed
    package's. ImportError: there is neither, or the extension is of other sources."""
    built = sorted(_ROOT.glob(f"build/*/_native{EXTENSION_SUFFIXES[0]}"), key=lambda path: path.stat().st_mtime)
    spec = spec_from_file_location(_NAME, built[-1]) if built else _installed()
    if spec is None or spec.loader is None:
        others = [*Path(__file__).parent.glob("_native.*so"), *_ROOT.glob("build/*/_native.*so")]
        named = "".join(f" {path} is of another one." for path in others[:1])
        what = _ROOT if (_ROOT / "pyproject.toml").exists() else "fastagg"
        raise ImportError(
            f"fastagg is not installed for this Python, {python_version()} ({EXTENSION_SUFFIXES[0]}).{named} Run "
            f"`{sys.executable} -m pip install {what}`"
        )
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    if getattr(module, "sources", None) != _sources():
        again = f", or `cmake --build {built[-1].parent}`" if built else ""
        raise ImportError(
            f"{spec.origin} was compiled from other sources than those in {_ROOT / 'csrc'}. "
            f"To compile these, run the line again that installed fastagg (`pip install .`){again}"
        )
    return module


def _installed():  # type: ignore[no-untyped-def]  # the type's name in typeshed is private
    try:
        folder = distribution("fastagg").locate_file("fastagg")
    except PackageNotFoundError:
        return None
    return PathFinder.find_spec(_NAME, [str(folder)])


def _sources() -> str:
    """Return the digest of the clone's C++ sources. cmake/digest.cmake computes the extension's in the same way."""
    suffixes = {".cpp", ".cu", ".cuh", ".h", ".inl"}
    paths = (path for folder in ("csrc", "tests/emulation") for path in (_ROOT / folder).rglob("*"))
    names = sorted(str(path.relative_to(_ROOT)) for path in paths if path.suffix in suffixes)
    lines = (f"{name} {sha256((_ROOT / name).read_bytes()).hexdigest()}\n" for name in names)
    return sha256("".join(lines).encode()).hexdigest()
