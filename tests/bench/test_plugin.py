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


PLANT = """
from dataclasses import replace

import pytest


@pytest.fixture(autouse=True)
def changed(monkeypatch):
    from cases import CASES
    from problem import Built, Skip

    def wrong(problem):
        acc = problem.vector('acc')
        return Built(lambda: acc.add_(problem.update, alpha=1.01), lambda: acc)

    def missing(problem):
        raise Skip('not installed')

    case = CASES['accumulate']
    made = {one.name: one for one in case.candidates()}
    made |= {name: replace(made[name], build=build) for name, build in (CHANGES).items()}
    monkeypatch.setitem(CASES, 'accumulate', replace(case, candidates=lambda: list(made.values())))
"""


def planted(tmp_path, name, changes):
    """The options that put other candidates in the place of those of a case."""
    (tmp_path / f"{name}.py").write_text(PLANT.replace("CHANGES", changes))
    return ["-p", name, "-o", f"pythonpath={tmp_path}"]


@pytest.mark.parametrize(
    ("changes", "code", "said"),
    [
        ("{'torch add_': wrong}", 1, "torch add_: its result differs from fastagg's"),
        ("{'torch _foreach_add_': missing}", 0, "1 skipped"),
    ],
)
def test_a_wrong_result_fails_and_a_candidate_that_cannot_run_is_skipped(bench, tmp_path, changes, code, said):
    done = measured(bench, *SMALL, "--only", "add_", *planted(tmp_path, "plant", changes))
    assert done.returncode == code and said in done.stdout, done.stdout
