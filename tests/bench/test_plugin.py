"""pytest-benchmark with the plugin that lets candidates take turns: what it measures, writes and refuses."""

from __future__ import annotations

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


def test_a_wrong_result_fails_and_a_candidate_that_cannot_run_is_skipped(bench, tmp_path):
    wrong = tmp_path / "wrong.py"
    wrong.write_text(
        "import pytest\n"
        "@pytest.fixture(autouse=True)\n"
        "def changed(monkeypatch):\n"
        "    import peers.native\n"
        "    import cases.accumulate as one\n"
        "    from problem import Built, Skip\n"
        "    def torch(problem):\n"
        "        acc = problem.vector('acc')\n"
        "        return Built(lambda: acc.add_(problem.update, alpha=1.01), lambda: acc)\n"
        "    def missing(problem):\n"
        "        raise Skip('not installed')\n"
        "    monkeypatch.setattr(one, '_foreach', missing)\n"
        "    if WRONG: monkeypatch.setattr(one, '_torch', torch)\n"
    )
    for is_wrong, codes in ((True, "torch add_: its result differs from fastagg's"), (False, "1 skipped")):
        (tmp_path / f"plant{is_wrong}.py").write_text(f"WRONG = {is_wrong}\n{wrong.read_text()}")
        own = ["-p", f"plant{is_wrong}", "--only", "add_", "-o", f"pythonpath={tmp_path}"]
        done = measured(bench, *SMALL, *own)
        assert (done.returncode == 1) == is_wrong, done.stdout
        assert codes in done.stdout, done.stdout


def test_a_kernel_below_its_floor_fails(bench, tmp_path):
    """Sixteen passes for one have a sixteenth of the share and of the ratio."""
    (tmp_path / "plant.py").write_text(
        "import pytest\n"
        "@pytest.fixture(autouse=True)\n"
        "def changed(monkeypatch):\n"
        "    import dataclasses\n"
        "    import cases.accumulate as one\n"
        "    build = one._ours\n"
        "    def slow(problem):\n"
        "        built = build(problem)\n"
        "        passes = [built.run]\n"
        "        def run():\n"
        "            for _ in passes: built.run()\n"
        "            passes[:] = 16 * [built.run]\n"
        "        return dataclasses.replace(built, run=run)\n"
        "    monkeypatch.setattr(one, '_ours', slow)\n"
    )
    own = ["--floors", "--case", "accumulate", "--sizes", "3e5", "--rounds", "9"]
    done = measured(bench, *own)
    assert done.returncode == 0 and "of streaming" in done.stdout, done.stdout
    done = measured(bench, *own, "-p", "plant", "-o", f"pythonpath={tmp_path}")
    assert done.returncode == 1 and "accumulate: TOO LITTLE" in done.stdout, done.stdout


@pytest.mark.parametrize("arguments", [["--sizes", "1.5"], ["--threads", "0"], ["--device", "tpu"]])
def test_wrong_arguments_are_named(bench, arguments):
    done = measured(bench, *arguments)
    assert done.returncode == 4 and f"argument {arguments[0]}: invalid" in done.stderr


def test_groups_and_patterns_name_their_cases(bench):
    def cases(word):
        done = measured(bench, "--case", word, "--sizes", "1e3", "--collect-only")
        return {
            line.split("[")[1].rsplit("-", 3)[0] for line in done.stdout.splitlines() if line.startswith("bench.py")
        }

    assert "ace fp32" in cases("ace *") and "accumulate" not in cases("ace *")
    assert all(name.startswith("server, ") for name in cases("server")) and cases("server")
    done = measured(bench, "--case", "nothing")
    assert done.returncode == 4 and "--case nothing: no case, pattern or group" in done.stderr
