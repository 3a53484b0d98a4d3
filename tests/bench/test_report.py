"""docs/performance.md is what the generator makes of the results, and a loss is marked in the cell where it is."""

import subprocess

import pytest
from bench_runs import benchmark, run


def report(*arguments):
    import report as script

    return script.main(list(arguments))


def test_the_pages_are_what_the_results_say(capsys):
    assert report("--check") == 0, capsys.readouterr().err


@pytest.fixture
def made(tmp_path):
    """``made(*benchmarks)``: page and tables."""

    def make(*benchmarks, **more):
        results, out = tmp_path / "results", tmp_path / "docs"
        results.mkdir(exist_ok=True)
        (results / f"{len(list(results.iterdir()))}.json").write_text(run(*benchmarks, **more))
        arguments = ["--results", str(results), "--out", str(out)]
        assert report(*arguments) == 0
        assert report("--check", *arguments) == 0
        assert (out / "performance" / "arrivals.png").is_file()
        return [(out / name).read_text() for name in ("performance.md", "performance/tables.md")]

    return make


def test_a_page_changed_by_hand_is_stale(made, tmp_path, capsys):
    made(benchmark())
    (tmp_path / "docs" / "performance.md").write_text("Twice as fast as light.")
    assert report("--results", str(tmp_path / "results"), "--out", str(tmp_path / "docs"), "--check") == 1
    assert "run python bench/report.py" in capsys.readouterr().err


def measured(*ratios: float):
    from quick import Measured

    return Measured("rule", "torch", 1000, 1.0, ratios[1], ratios, 0.25)


def test_every_rule_is_compared_with_torch_and_has_a_line(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    import quick

    taken = []
    monkeypatch.setattr(quick.measure, "__defaults__", ((1000,), 2, lambda: None))
    monkeypatch.setattr(quick, "show", taken.append)
    quick.main()
    (sheet,) = taken
    assert [row[0] for row in sheet.rows] == list(quick.RULES)
    for rule, size, ours, ratio, spread, _, place in sheet.rows:
        low, high = spread.split(" to ")
        assert size == "1 k" and float(ours) > 0 < float(place) and float(low) <= float(ratio) <= float(high), rule


def test_a_loss_is_called_one_and_noise_is_not_called_a_win() -> None:
    from quick import quick_table, verdict

    assert verdict(measured(0.6, 0.7, 0.8)) == "SLOWER"
    assert verdict(measured(0.6, 1.7, 1.8)) == "even"
    assert verdict(measured(1.6, 1.7, 1.8)) == "faster"
    (row,) = quick_table([measured(0.5, 0.5, 0.5)], 0).rows
    assert row == ["rule", "1 k", "1000.000", "0.50", "0.50 to 0.50", "SLOWER", "0.25"]


@pytest.fixture
def add(tmp_path):
    import results

    def one(text):
        path = tmp_path / "run"
        path.write_text(text)
        results.add(path, tmp_path)
        return {(row.processor, row.candidate, row.size): row.median for row in results.load(tmp_path)}

    return one


def test_a_newer_row_replaces_the_one_of_the_same_place_and_processor(add, tmp_path):
    assert add(run(benchmark(), benchmark("torch", 1.5))) == {
        ("A Processor", "fastagg", 10_000_000): 1e-2, ("A Processor", "torch", 10_000_000): 1e-2,
    }  # fmt: skip
    add(run(benchmark(median=3e-2), processor="AMD EPYC (Zen 4)"))
    found = add(run(benchmark(median=2e-2), benchmark(size=1000)))
    assert found == {
        ("A Processor", "fastagg", 10_000_000): 2e-2, ("A Processor", "torch", 10_000_000): 1e-2,
        ("A Processor", "fastagg", 1000): 1e-2, ("AMD EPYC (Zen 4)", "fastagg", 10_000_000): 3e-2,
    }  # fmt: skip
    kept = [path.read_text() for path in tmp_path.glob("*.json")]
    assert {path.name for path in tmp_path.glob("*.json")} == {"a-processor.json", "amd-epyc-zen-4.json"}
    assert not any("a host's name" in text or '"data"' in text for text in kept)


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"benchmarks": [1]}', run(benchmark(), dirty=True), run(benchmark(), commit="unversioned")],
)
def test_other_files_and_changed_trees_leave_nothing(add, tmp_path, text):
    with pytest.raises(ValueError, match=r"run: no results that can be kept"):
        add(text)
    assert list(tmp_path.glob("*.json")) == []


def test_a_row_is_old_when_its_code_has_changed_since_or_nobody_knows(bench, monkeypatch):
    import results

    def row(commit, case="amsgrad"):
        (found,) = results.rows(results.parse(run(benchmark(case=case), commit=commit), "a"))
        return found

    assert row("0000000").old
    paths = [f":/{path}" for path in results.CODE[""]]
    command = ["git", "-C", str(bench), "log", "-2", "--format=%H", "--", *paths]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == 0 and len(commits := done.stdout.split()) == 2:  # no archive and no shallow clone
        assert not row(commits[0]).old
        assert row(commits[1]).old
    monkeypatch.setenv("PATH", "")
    results._changed.cache_clear()
    assert row("abc1234").old
    results._changed.cache_clear()


def test_what_is_committed_is_of_known_cases_and_no_share_is_more_than_all():
    import results
    from cases import CASES

    rows = results.load()
    assert len({(*row[:4], row.processor) for row in rows}) == len(rows) > 200
    assert {row.case for row in rows} <= set(CASES)
    for row in rows:
        assert 0 < row.info["p20"] <= row.median <= row.info["p80"]
        assert row.info.get("share", 0) <= 1, row


@pytest.fixture
def compare(tmp_path, capsys):
    """``compare(old, new)``: exit code and output for the text of two files."""
    import compare as script

    def both(old, new):
        paths = [tmp_path / "old.json", tmp_path / "new.json"]
        for path, text in zip(paths, (old, new), strict=True):
            path.write_text(text)
        status, said = script.main(list(map(str, paths))), capsys.readouterr()
        return status, said.out + said.err

    return both


def one(p20, median, p80, streams=None, **more):
    more |= {"streams": {"copy": streams, "read": 2 * streams}} if streams else {}
    return run(benchmark(median=median, p20=p20, p80=p80, **more), dirty=True)


@pytest.mark.parametrize(
    ("old", "new", "code", "verdict"),
    [
        ([1.0, 1.1, 1.2], [1.3, 1.4, 1.5], 1, "1 slower"),
        ([1.0, 1.1, 1.2], [1.15, 1.4, 1.5], 0, "1 within noise"),  # the spreads overlap
        ([1.0, 1.001, 1.002], [1.01, 1.02, 1.03], 0, "1 within noise"),  # apart, but by 2%
        ([1.3, 1.4, 1.5], [1.0, 1.1, 1.2], 0, "1 faster"),
        ([1.0, 1.01, 1.02, 1e9], [2.0, 2.02, 2.04, 0.5e9], 0, "1 within noise"),  # a slower machine
        ([1.0, 1.01, 1.02, 1e9], [2.0, 2.02, 2.04, 1e9], 1, "1 slower"),
        ([1.0, 1.01, 1.02, 1e9], [1.0, 1.01, 1.02, 2e9], 1, "1 slower"),  # a faster one hides nothing
        ([1.0, 1.1, 1.2], [1.0, 1.1, 1.2], 0, "0 slower"),
    ],
)
def test_a_change_counts_beyond_the_spread_and_the_machines_own(compare, old, new, code, verdict):
    status, output = compare(one(*old), one(*new))
    assert (status, verdict in output) == (code, True), output


def test_only_fastaggs_rows_are_compared_and_only_on_one_processor(compare):
    status, output = compare(run(benchmark("torch")), run(benchmark("torch", median=1)))
    assert status == 2 and "no row of fastagg's is in both" in output
    status, output = compare(run(benchmark()), run(benchmark(), processor="Another"))
    assert status == 2 and "A Processor in the old one, Another in the new one" in output
    status, output = compare("[]", run(benchmark()))
    assert status == 2 and "old.json" in output
