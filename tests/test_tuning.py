"""Settings that depend on the processor: their sources, and refused values."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

import fastagg
from fastagg import tuning
from fastagg._build import native
from fastagg.cli.app import app

CACHES = [*Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")]


@pytest.fixture(autouse=True)
def _restored(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The settings are what they were afterwards."""
    monkeypatch.delenv("FASTAGG_TUNE", raising=False)
    before, source = tuning.current(), tuning._source
    yield
    native.set_tuning(before)
    tuning._source = source


def test_the_table_knows_what_it_says_and_info_shows_it() -> None:
    info = fastagg.build_info()
    assert info["tuning"] == tuning.current() and set(info["tuning"]) == set(native.default_tuning())
    assert info["processor"] == tuning.processor()
    assert "tuning.prefetch" in CliRunner().invoke(app, ["info"]).stdout


@pytest.mark.skipif(not CACHES, reason="the system does not tell caches")
def test_the_last_cache_is_the_systems() -> None:
    largest = max(int(path.read_text().strip().removesuffix("K")) << 10 for path in CACHES)
    assert native.default_tuning()["cache"] in (largest, 0)


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"FASTAGG_ISA": "baseline", "FASTAGG_NUM_THREADS": "3", "FASTAGG_TUNE": "prefetch=64,cache=never"},
         "baseline 3 64 0 FASTAGG_TUNE"),
        ({"FASTAGG_ISA": "mmx"}, "not available here"),
        ({"FASTAGG_NUM_THREADS": "none"}, "FASTAGG_NUM_THREADS"),
        ({"FASTAGG_TUNE": "prefetch=fast"}, "FASTAGG_TUNE: expected"),
    ],
)  # fmt: skip
def test_the_environment_comes_before_the_table(environment: dict[str, str], words: str) -> None:
    """In a process that imports the installed package, not the source folder (-P): only one of them is built."""
    code = (
        "import fastagg; from fastagg import tuning; i, c = fastagg.build_info(), tuning.current(); "
        "print(i['isa'], i['threads'], c['prefetch'], c['cache'], tuning.source())"
    )
    given = {**os.environ, **environment}
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], env=given, capture_output=True, text=True, check=False
    )  # fmt: skip
    assert words in done.stdout + done.stderr
