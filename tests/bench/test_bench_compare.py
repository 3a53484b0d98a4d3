"""`fastagg bench --compare`: what counts as a regression, and what it says of what it cannot read."""

from __future__ import annotations

import json

import pytest
from bench_rows import row, text
from typer.testing import CliRunner

from fastagg.cli.app import app

LATER = "2026-01-02T00:00:00+00:00"


@pytest.fixture
def compare(tmp_path, capsys):
    """``compare(old, new)``: exit code and output for the text of two files."""
    import compare as script

    def run(old, new):
        paths = []
        for name, content in (("old", old), ("new", new)):
            path = tmp_path / f"{name}.jsonl"
            path.write_text(content)
            paths.append(str(path))
        status, said = script.main(paths), capsys.readouterr()
        return status, said.out + said.err

    return run


def one(p20, median, p80, **more):
    return text(row(median=median, p20=p20, p80=p80, **{"size": 1_000_000, "share": None, **more}))


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
    status, output = compare(one(*old), one(*new, date=LATER))
    assert (status, verdict in output) == (code, True), output


def test_a_slower_machine_is_not_blamed_on_the_code(compare):
    old, new = [1.0, 1.01, 1.02], [2.0, 2.02, 2.04]
    assert compare(one(*old, share=0.9), one(*new, share=0.9))[0] == 0
    assert compare(one(*old, share=0.9), one(*new, share=0.45))[0] == 1
    # And a faster one hides nothing: the streams doubled their speed, this row stayed.
    assert compare(one(*old, share=0.9), one(*old, share=0.45))[0] == 1
    # Below a million parameters the streams show what a call costs.
    assert compare(one(*old, share=0.9, size=1000), one(*new, share=0.9, size=1000))[0] == 1


def test_only_fastaggs_rows_are_compared_and_only_on_one_processor(compare):
    status, output = compare(one(1, 1, 1, candidate="torch"), one(2, 2, 2, candidate="torch"))
    assert status == 2 and "is in both" in output
    status, output = compare(one(1, 1, 1), one(2, 2, 2, processor="Another"))
    assert status == 2 and "A Processor and Another" in output


def test_the_same_rows_are_no_change(compare):
    status, output = compare(one(1, 1, 1), one(1, 1, 1))
    assert status == 0 and "nothing was measured in between" in output


def test_pytest_benchmarks_own_json_is_read(compare):
    def own(median):
        return json.dumps(
            {"benchmarks": [{"extra_info": row(median=median, share=None, size=1000)}, {"extra_info": {}}]}
        )

    assert compare(own(1.0), own(1.5))[0] == 1
    assert compare(text(row(median=1.0, share=None, size=1000)), own(1.0))[0] == 0


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"rows": 3}', '{"benchmarks": [1]}'])
def test_other_files_are_refused_in_one_line(compare, content):
    status, output = compare(content, one(1, 1, 1))
    assert status == 2
    assert "old.jsonl" in output


def test_commits_are_compared(monkeypatch):
    import compare as script
    import results

    old = {"before": results.parse(one(1, 1, 1)), "after": results.parse(one(2, 2, 2))}
    monkeypatch.setattr(results, "load_commit", old.__getitem__)
    assert script.main(["before", "after"]) == 1
    assert script.main(["before", "before"]) == 0


def test_the_command_line_hands_on_the_exit_code(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    missing = [str(tmp_path / "old.json"), str(tmp_path / "new.json")]
    assert CliRunner().invoke(app, ["bench", "--compare", *missing]).exit_code == 2
