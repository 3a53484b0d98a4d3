"""The benchmarks are scripts in one folder that import each other. This makes them importable for tests."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"


@pytest.fixture(autouse=True)
def bench(monkeypatch):
    """Make the benchmarks' folder importable. On a busy machine nothing waits for quiet."""
    monkeypatch.syspath_prepend(str(BENCH))
    import timing

    for name, value in {"DISTURBED": float("inf"), "PATIENCE": 0.0, "SETTLE": 0.0}.items():
        monkeypatch.setattr(timing, name, value)
    yield BENCH
    sys.path_importer_cache.pop(str(BENCH), None)
