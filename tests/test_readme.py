"""What the README shows works as it stands there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import fastagg
from fastagg import registry

README = (Path(__file__).parents[1] / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def test_the_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    scope: dict[str, object] = {}
    for block in BLOCKS:
        exec(block, scope)
    assert fastagg.load("server.pt").version == 40  # 200 updates, 5 to a step
    assert len(BLOCKS) == 2


def test_every_preset_is_in_the_tables() -> None:
    algorithms = (Path(__file__).parents[1] / "docs" / "algorithms.md").read_text()
    assert len(registry.presets()) >= 17
    for name in registry.presets():
        assert f"`{name}`" in README, name
        assert f"`{name}`" in algorithms, name
