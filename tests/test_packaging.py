"""What pyproject.toml promises and what is tested are the same."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from fastagg import _extras
from fastagg.errors import MissingDependency

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
IMPORTED_AS = {"tomli-w": "tomli_w", "scikit-learn": "sklearn", "prometheus-client": "prometheus_client"}


def floors(requirements: list[str]) -> dict[str, tuple[int, ...]]:
    found = {}
    for requirement in requirements:
        if match := re.fullmatch(r"([\w.-]+)>=([\d.]+)", requirement):
            found[match[1]] = numbers(match[2])
    return found


def numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def test_the_core_needs_torch_and_numpy_alone() -> None:
    assert set(floors(PROJECT["dependencies"])) == {"torch", "numpy"}
    assert len(PROJECT["dependencies"]) == 2


def test_what_ci_installs_as_floors_are_the_floors() -> None:
    extras = PROJECT["optional-dependencies"]
    promised = floors(PROJECT["dependencies"] + extras["cli"] + extras["sim"] + extras["metrics"])
    lines = [line for line in (ROOT / ".ci" / "floors.txt").read_text().splitlines() if not line.startswith("#")]
    tested = {name: numbers(version) for name, version in (line.split("==") for line in lines)}
    assert set(tested) == set(promised)
    for name, version in promised.items():
        assert tested[name][: len(version)] == version and not any(tested[name][len(version) :]), name


def test_the_extras_that_are_checked_are_the_extras_that_are_installed() -> None:
    extras = PROJECT["optional-dependencies"]
    sim = extras["cli"] + extras["sim"]
    parts = ((_extras.CLI, extras["cli"]), (_extras.METRICS, extras["metrics"]), (_extras.RAY, extras["ray"]))
    for names, extra in ((_extras.SIM, sim), *parts):
        assert set(names) == {IMPORTED_AS.get(name, name) for name in floors(extra)}


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_extras, "find_spec", lambda name: None if name == "pydantic" else object())
    with pytest.raises(MissingDependency, match=r'the simulator needs pydantic,.*pip install "fastagg\[sim\]"'):
        _extras.require("the simulator", "sim", _extras.SIM)
    _extras.require("the command line", "cli", _extras.CLI)
