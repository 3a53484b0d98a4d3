"""pytest-benchmark with the plugin that lets candidates take turns: what it measures, writes and refuses."""

import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("pytest_benchmark")
SMALL = ["--case", "accumulate", "--sizes", "1e3", "--rounds", "3", "--threads", "1", "--impatient"]


def measured(bench, *arguments):
    command = [sys.executable, "-P", "-m", "pytest", str(bench), "-q", "-p", "no:cacheprovider", *arguments]
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=own)


def test_a_run_writes_what_the_report_reads(bench, tmp_path):
    import results

    path = tmp_path / "run.json"
    done = measured(bench, *SMALL, "--only", "add_", f"--benchmark-json={path}")
    assert done.returncode == 0, done.stdout
    assert "times fastagg's time: torch add_" in done.stdout and "others took" in done.stdout
    rows = results.rows(results.parse(path.read_text(), "run", committed=False))
    assert {row[:4] for row in rows} == {
        ("accumulate", name, 1000, 1) for name in ("fastagg", "torch add_", "torch _foreach_add_")
    }
    for row, raw in zip(rows, json.loads(path.read_text())["benchmarks"], strict=True):
        assert (row.ratio is None) == (row.candidate == "fastagg")
        assert raw["stats"]["rounds"] == 3 and raw["stats"]["median"] == pytest.approx(sorted(raw["stats"]["data"])[1])
        assert 0 < row.info["p20"] <= row.median <= row.info["p80"]
        assert row.info["processor"] and "torch" in row.info["versions"] and len(row.info["commit"]) == 7
