"""The README is short and complete. tests/docs/test_snippets.py runs its code."""

from __future__ import annotations

import re
from pathlib import Path

from fastagg import registry

README = (Path(__file__).parents[1] / "README.md").read_text()


def test_it_is_short_and_says_what_ci_runs() -> None:
    assert len(README.splitlines()) < 120
    for words in ("fastagg demo", "pytest"):  # noxfile.py takes the lines from here
        assert len(re.findall(rf"^pip install .*{words}", README, re.MULTILINE)) == 1


def test_every_preset_is_in_the_tables() -> None:
    algorithms = (Path(__file__).parents[1] / "docs" / "algorithms.md").read_text()
    assert len(registry.presets()) >= 17
    for page in README, algorithms:
        lines = re.search(r"^\| preset \|.*\n\|[-|]+\n((?:\|.*\n)+)", page, re.MULTILINE)
        assert lines is not None
        first = "".join(line.split("|")[1] for line in lines[1].splitlines())
        assert set(re.findall(r"`(\w+)`", first)) == set(registry.presets())
