"""bench/arrivals.py: every section runs, what it compares agrees, and its figures are ratios within a round."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "bench" / "arrivals.py"
SMALL = (
    "--impatient", "--rounds", "2", "--sizes", "1000", "--threads", "1", "--few", "20", "--clients", "200",
    "--warm", "30", "--sample", "20", "--tail-size", "5000", "--tail-clients", "10", "--tail-arrivals", "50",
)  # fmt: skip


def run(*arguments):
    command = [sys.executable, str(SCRIPT), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """The command's output, and the file it wrote."""
    out = tmp_path_factory.mktemp("arrivals") / "rows.json"
    done = run(*SMALL, "--out", out)
    assert done.returncode == 0, done.stderr
    return done.stdout, json.loads(out.read_text())


def test_every_section_has_its_rules(measured):
    _, written = measured
    found = {}
    for row in written["rows"]:
        found.setdefault(row["section"], []).append(row["what"])
    assert sorted(set(found["eager"])) == ["ACE fp32", "ACE int8", "ASGD", "FADAS, M = 1", "FedBuff, M = 10"]
    assert found["many"] == ["FedBuff, M = 10", "ASGD"]
    assert len(found["kernels"]) == 5
    assert {"FedBuff", "FedAsync", "AsyncFedED", "ACE", "CA2FL"} < set(found["clients"])
    assert sum(what.startswith("ACED") for what in found["clients"]) == 2
    assert found["tail"] == ["ACE int8", "torch add_"]


def test_every_row_was_measured(measured):
    output, written = measured
    for row in written["rows"]:
        assert len(row["seconds"]) == len(row["ratio"]) == 3, row
        assert 0.0 < row["seconds"][0] <= row["seconds"][1] <= row["seconds"][2]
        assert 0.0 < row["ratio"][0] <= row["ratio"][1] <= row["ratio"][2]
        assert f"| {row['what']} | {row['size']:,} |" in output
    assert "not measured" not in output


def test_it_says_what_was_run_on_what(measured):
    output, written = measured
    assert written["command"].startswith("python bench/arrivals.py --impatient")
    assert f"`{written['command']}`" in output
    assert written["machine"]["processor_name"] in output
    assert written["machine"]["torch"] in output


def test_a_peer_that_computes_something_else_is_not_timed(monkeypatch):
    monkeypatch.syspath_prepend(SCRIPT.parent)
    import arrival_sections
    import torch

    with pytest.raises(AssertionError, match="ASGD"):
        arrival_sections._same("ASGD", torch.ones(3), torch.ones(3) * 1.01, 1e-4)
