"""All cases, by name. Each module here has a list ``CASES``, so a new case needs only a new file."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from problem import Case

MODULES = sorted(path.stem for path in Path(__file__).parent.glob("[a-z]*.py"))
CASES: dict[str, Case] = {case.name: case for name in MODULES for case in import_module(f"cases.{name}").CASES}
