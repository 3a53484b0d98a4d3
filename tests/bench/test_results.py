"""Rows are kept by processor, the newest of each, from unchanged commits only; and other files are refused."""

from __future__ import annotations

import subprocess

import pytest
from bench_rows import row, text


@pytest.fixture
def results():
    import results

    return results


def test_a_row_comes_back_as_it_was(results, tmp_path):
    path = tmp_path / "rows.jsonl"
    rows = results.parse(text(row(), row("torch eager", 1.5)))
    assert results.save(rows, path) == [path]
    assert [one.key for one in results.load(path)] == [one.key for one in rows]
    assert [one.line() for one in results.load(path)] == [one.line() for one in rows]  # four digits
    assert rows[1].ratio == (0.99 * 1.5, 1.5, 1.01 * 1.5)


def test_a_newer_row_replaces_the_one_of_the_same_place(results):
    old = results.parse(text(row(), row(size=1000)))
    new = results.parse(text(row(median=2e-2, date="2026-01-02T00:00:00+00:00")))
    for merged in (results.merged(old, new), results.merged(new, old)):
        assert {one.size: one.median for one in merged} == {1000: 1e-2, 11_200_000: 2e-2}


def test_each_processor_has_a_file(results, monkeypatch, tmp_path):
    monkeypatch.setattr(results, "RESULTS", tmp_path)
    results.save(results.parse(text(row(), row(processor="AMD EPYC (Zen 4)"))))
    assert {path.name for path in tmp_path.iterdir()} == {"a-processor.jsonl", "amd-epyc-zen-4.jsonl"}
    assert len(results.load_all(tmp_path)) == 2


@pytest.mark.parametrize("commit", ["abc1234-dirty", "unknown"])
def test_a_changed_tree_leaves_nothing(results, monkeypatch, tmp_path, commit):
    monkeypatch.setattr(results, "RESULTS", tmp_path)
    rows = results.parse(text(row(), row(size=10, commit=commit)))
    with pytest.raises(ValueError, match=f"results of {commit} are not kept"):
        results.save(rows)
    assert list(tmp_path.iterdir()) == []
    results.save(rows, tmp_path / "elsewhere.jsonl")
    with pytest.raises(ValueError, match="which is no commit"):
        results.load_all(tmp_path)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"case": 3}', '{"benchmarks": [1]}', '{"case": "a"}\nno'])
def test_other_files_are_refused(results, tmp_path, content):
    path = tmp_path / "old.jsonl"
    path.write_text(content)
    with pytest.raises(ValueError, match=r"old\.jsonl: no results of this suite"):
        results.load(path)
    with pytest.raises(ValueError, match=r"none\.jsonl: No such file"):
        results.load(tmp_path / "none.jsonl")


def test_a_tree_is_changed_when_a_tracked_file_is_and_results_do_not_count(results, monkeypatch, tmp_path):
    def git(*arguments):
        command = ["git", "-c", "user.name=a", "-c", "user.email=a@b", *arguments]
        subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)

    monkeypatch.setattr(results, "ROOT", tmp_path)
    assert results.commit() == "unknown"
    for folder in ("bench/results", "docs/performance", "csrc"):
        (tmp_path / folder).mkdir(parents=True)
    kept, source = tmp_path / "bench" / "results" / "a.jsonl", tmp_path / "csrc" / "a.cpp"
    kept.write_text(text(row()))
    source.write_text("int a;")
    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "first")
    clean = results.commit()
    assert clean.isalnum()
    kept.write_text(text(row(median=2e-2)))
    (tmp_path / "untracked").write_text("")
    assert results.commit() == clean
    assert results.load_commit("HEAD")[0].median == 1e-2
    source.write_text("int b;")
    assert results.commit() == f"{clean}-dirty"
    with pytest.raises(ValueError, match="neither a file nor a commit"):
        results.load_commit("nowhere")
    git("rm", "-qf", "bench/results/a.jsonl")
    git("commit", "-qam", "second")
    with pytest.raises(ValueError, match="a commit without results"):
        results.load_commit("HEAD")


def test_what_is_committed_is_of_commits_and_of_known_cases(results):
    from cases import CASES

    rows = results.load_all()
    assert len({one.key for one in rows}) == len(rows) > 500
    known = {*CASES, "streams"}
    assert {one.case for one in rows if not one.case.startswith(("server, ", "simulators, "))} <= known
    for one in rows:
        assert 0 < one.p20 <= one.median <= one.p80, one
