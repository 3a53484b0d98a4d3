"""docs/performance.md is what the generator makes of the results, and a loss is marked in the cell where it is."""

from __future__ import annotations

from pathlib import Path

import pytest
from bench_runs import benchmark, run

ROOT = Path(__file__).resolve().parents[2]
SERVERS = [
    benchmark(case="server, Flower FedAvg", median=0.005, memory=1.0),
    benchmark("Flower", 4.0, case="server, Flower FedAvg", median=0.02, memory=2.5),
]


def report(*arguments):
    import report as script

    return script.main(list(arguments))


def test_the_pages_are_what_the_results_say(capsys):
    assert report("--check") == 0, capsys.readouterr().err


def test_the_page_is_read_in_a_minute_on_a_phone():
    """It is short, and no table has a line that is much wider than a phone."""
    text = (ROOT / "docs" / "performance.md").read_text()
    assert len(text.split("<details>")[0].splitlines()) < 60
    table = text.split("## Twelve steps")[1].split("<details>")[0]
    assert table.count("\n| ") == 13
    assert "unknown" not in text


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


def line(page, start):
    return next(one for one in page.splitlines() if one.startswith(start))


def test_a_loss_is_marked_in_its_cell_and_has_a_reason(made):
    rows = [
        benchmark(),
        benchmark("torch eager", 0.5),
        benchmark("NumPy", 2.0),
        benchmark("the native call alone", 0.1),
    ]
    page, tables = made(*rows, *SERVERS)
    assert line(page, "| amsgrad |") == "| amsgrad | **0.50**† | unexplained |"
    assert "10 ms†; **0.50** torch eager |" in tables
    assert "- A Processor: 2026-01-01, fastagg 1, abc1234" in page


def test_a_peer_that_keeps_no_version_is_said_to_and_memory_limits_both(made):
    case = "arrival ASGD"
    rows = [benchmark(case=case), benchmark("torch eager", 0.8, case=case)]
    page, _ = made(*rows, benchmark("torch eager, a version kept", 2.5, case=case), benchmark(), benchmark("t", 0.95))
    assert line(page, "| ASGD, whole") == (
        "| ASGD, whole update | **0.80**† | keeps the version; torch in place. A torch that keeps it: 2.50 |"
    )
    assert line(page, "| amsgrad |") == "| amsgrad | **0.95**† | memory limits both |"


def test_without_a_loss_nothing_is_bold_and_every_processor_has_a_column(made):
    made(benchmark(), benchmark("torch eager", 1.3), benchmark("close", 0.997))
    page, tables = made(benchmark(median=2e-2), benchmark("torch eager", 0.8), processor="B", commit="def5678")
    assert line(page, "| amsgrad |") == "| amsgrad | 1.00† | **0.80**† | unexplained |"
    assert "| amsgrad | 10,000,000 | 10 ms†; 1.00 close | 20 ms†; **0.80** torch eager |" in tables


def test_whole_servers_come_first(made):
    page, _ = made(*SERVERS)
    assert line(page, "| Flower FedAvg†") == "| Flower FedAvg† | 200 | 50 | 1.0 | 2.5 | A Processor |"


def test_a_page_changed_by_hand_is_stale(made, tmp_path, capsys):
    made(benchmark())
    (tmp_path / "docs" / "performance.md").write_text("Twice as fast as light.")
    assert report("--results", str(tmp_path / "results"), "--out", str(tmp_path / "docs"), "--check") == 1
    assert "run python bench/report.py" in capsys.readouterr().err


def test_rows_of_a_changed_tree_are_refused(tmp_path, capsys):
    (tmp_path / "a.json").write_text(run(benchmark(), dirty=True))
    assert report("--results", str(tmp_path), "--out", str(tmp_path)) == 2
    assert "commit first" in capsys.readouterr().err
