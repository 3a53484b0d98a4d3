from pathlib import Path

import pytest


@pytest.fixture
def bench() -> Path:
    """The folder of the benchmarks."""
    return Path(__file__).resolve().parents[2] / "bench"
