"""`fastagg bench --compare`: what counts as a regression, and what it says of files it cannot read."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fastagg.cli.app import app

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def compare(tmp_path):
    """``compare(old, new)``: exit code and output for two files of one row each."""

    def run(old, new):
        paths = []
        for name, content in (("old", old), ("new", new)):
            path = tmp_path / f"{name}.json"
            path.write_text(content if isinstance(content, str) else json.dumps(content))
            paths.append(str(path))
        command = [sys.executable, str(ROOT / "bench" / "compare.py"), *paths]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert "Traceback" not in done.stderr
        return done.returncode, done.stdout + done.stderr

    return run


def result(seconds, candidate="fastagg", in_place=None, **machine):
    row = {"operation": "amsgrad", "candidate": candidate, "size": 1_000_000, "bytes": 36, "seconds": seconds}
    about = {"threads": 2, "device": "one", "commit": "abc", "date": "today", **machine}
    return {"command": "", "machine": about, "rows": [{**row, "of_in_place": in_place}]}


@pytest.mark.parametrize(
    ("old", "new", "code", "verdict"),
    [
        ([1.0, 1.1, 1.2], [1.3, 1.4, 1.5], 1, "1 slower"),
        ([1.0, 1.1, 1.2], [1.15, 1.4, 1.5], 0, "1 within noise"),  # the spreads overlap
        ([1.0, 1.001, 1.002], [1.01, 1.02, 1.03], 0, "1 within noise"),  # apart, but by 2%
        ([1.3, 1.4, 1.5], [1.0, 1.1, 1.2], 0, "1 faster"),
    ],
)
def test_a_change_counts_beyond_the_spread(compare, old, new, code, verdict):
    status, output = compare(result(old), result(new))
    assert (status, verdict in output) == (code, True), output


def test_a_slower_machine_is_not_blamed_on_the_code(compare):
    old, new = [1.0, 1.01, 1.02], [2.0, 2.02, 2.04]
    assert compare(result(old, in_place=0.9), result(new, in_place=0.9))[0] == 0
    assert compare(result(old, in_place=0.9), result(new, in_place=0.45))[0] == 1
    # And a faster one hides nothing: the streams doubled their speed, this row stayed.
    assert compare(result(old, in_place=0.9), result(old, in_place=0.45))[0] == 1


def test_peers_that_became_slower_are_no_regression(compare):
    status, output = compare(result([1, 1, 1], "torch eager"), result([2, 2, 2], "torch eager"))
    assert status == 2
    assert "no row of fastagg's in common" in output


def test_pytest_benchmarks_own_json_is_read(compare):
    def own(seconds):
        data = result(seconds)
        return {"benchmarks": [{"extra_info": {**data["rows"][0], "machine": data["machine"]}}]}

    assert compare(own([1.0, 1.1, 1.2]), own([1.3, 1.4, 1.5]))[0] == 1
    assert compare(result([1.0, 1.1, 1.2]), own([1.0, 1.1, 1.2]))[0] == 0


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"rows": 3}', '{"benchmarks": [1]}'])
def test_other_files_are_refused_in_one_line(compare, content):
    status, output = compare(content, result([1, 1, 1]))
    assert status == 2
    assert "old.json" in output


def test_the_command_line_hands_on_the_exit_code(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    missing = [str(tmp_path / "old.json"), str(tmp_path / "new.json")]
    assert CliRunner().invoke(app, ["bench", "--compare", *missing]).exit_code == 2
