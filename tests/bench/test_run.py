"""bench/run.py: what it prints, keeps and refuses."""

from __future__ import annotations

import pytest

SMALL = ["--sizes", "1000", "--rounds", "2", "--threads", "1", "--only", "add_"]


@pytest.fixture
def run(bench, monkeypatch):
    import results
    import run

    monkeypatch.setattr(results, "commit", lambda: "abc1234")
    return run


def test_a_run_prints_and_keeps_rows(run, tmp_path, capsys):
    import results

    out = tmp_path / "rows.jsonl"
    assert run.main(["accumulate", *SMALL, "--out", str(out)]) == 0
    assert "### accumulate, d = 1,000, 1 thread" in capsys.readouterr().out
    rows = results.load(out)
    assert {(row.case, row.size, row.threads, row.commit) for row in rows} == {
        ("accumulate", 1000, 1, "abc1234"), ("streams", 1000, 1, "abc1234"),
    }  # fmt: skip
    assert {row.candidate for row in rows if row.case == "accumulate"} == {
        "fastagg",
        "torch add_",
        "torch _foreach_add_",
    }


def test_a_changed_tree_is_refused_before_anything_is_measured(run, monkeypatch, capsys):
    import results

    monkeypatch.setattr(results, "commit", lambda: "abc1234-dirty")
    monkeypatch.setattr(run, "measure", lambda *_, **__: pytest.fail("measured"))
    assert run.main(["accumulate", *SMALL]) == 2
    assert "this tree is abc1234-dirty" in capsys.readouterr().err


def test_groups_name_their_cases(run):
    assert {case.group for case in run.wanted(["arrival"])} == {"arrival"}
    assert [case.name for case in run.wanted(["ace int8", "ace int8"])] == ["ace int8"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing"], "invalid choice: 'nothing'"),
        (["--sizes", "1.5"], "expected a whole number, got 1.5"),
        (["--threads", "0"], "expected a whole number, got 0"),
    ],
)
def test_wrong_arguments_are_named(run, capsys, arguments, message):
    with pytest.raises(SystemExit) as stopped:
        run.main(arguments)
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err


def test_wrong_results_are_said_and_the_others_kept(run, monkeypatch, capsys):
    def measure(case, size, **_):
        raise AssertionError("torch eager: its result differs")

    monkeypatch.setattr(run, "measure", measure)
    assert run.main(["accumulate", *SMALL, "--no-save"]) == 1
    assert "wrong result, not timed: accumulate, d = 1,000" in capsys.readouterr().err
