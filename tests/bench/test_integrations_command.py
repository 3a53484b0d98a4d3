"""bench/integrations.py: rows are kept as everything else's are, and a framework that is missing is named."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest


@pytest.fixture
def command(bench, monkeypatch):
    import integrations
    import results

    monkeypatch.setattr(results, "commit", lambda: "abc1234")
    return integrations


def test_rows_are_printed_and_kept(command, monkeypatch, tmp_path, capsys):
    import integrations_common as common
    import results

    def report(rounds):
        runs = {"theirs": lambda: None, "fastagg": lambda: None}
        return common.compare("Mine", runs, rounds, {"theirs": 2.0, "fastagg": 1.0}, size=1000)

    monkeypatch.setitem(sys.modules, "integrations_nvflare", SimpleNamespace(report=report))
    out = tmp_path / "rows.jsonl"
    assert command.main(["nvflare", "--rounds", "3", "--out", str(out)]) == 0
    rows = {(row.candidate, row.unit): row for row in results.load(out)}
    assert set(rows) == {(name, unit) for name in ("theirs", "fastagg") for unit in ("1/s", "B")}
    assert rows["theirs", "B"].median == 2 * 4 * 1000
    rate = rows["fastagg", "1/s"]
    assert 0 < rate.p20 <= rate.median <= rate.p80
    assert "| server, Mine | fastagg | 1,000 |" in capsys.readouterr().out


def test_a_changed_tree_is_refused_and_a_missing_framework_named(command, monkeypatch, tmp_path, capsys):
    import results

    monkeypatch.setitem(sys.modules, "nvflare", None)
    monkeypatch.delitem(sys.modules, "integrations_nvflare", raising=False)
    assert command.main(["nvflare", "--out", str(tmp_path / "rows.jsonl")]) == 2
    assert "error: nvflare needs nvflare" in capsys.readouterr().err
    monkeypatch.setattr(results, "commit", lambda: "abc1234-dirty")
    assert command.main(["nvflare"]) == 2
    assert "this tree is abc1234-dirty" in capsys.readouterr().err
