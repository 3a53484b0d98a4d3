"""docs/performance.md is what the generator makes of the results, and a loss is marked in the cell where it is."""

from __future__ import annotations

from pathlib import Path

import pytest
from bench_rows import row, text

ROOT = Path(__file__).resolve().parents[2]


def report(*arguments):
    import report as script

    return script.main(list(arguments))


def test_the_pages_are_what_the_results_say(capsys):
    assert report("--check") == 0, capsys.readouterr().err


def test_the_page_is_short():
    lines = (ROOT / "docs" / "performance.md").read_text().splitlines()
    assert len(lines) < 150


def test_a_phone_can_show_the_page():
    """No table has a line that is much wider than a phone, and nobody reads that a package is not installed."""
    text = (ROOT / "docs" / "performance.md").read_text()
    assert max(len(one) for one in text.splitlines() if one.startswith("|")) < 80
    assert "unknown" not in text


@pytest.fixture
def made(tmp_path):
    """``made(*rows)``: page, tables and names of pictures."""

    def make(*rows):
        results, out = tmp_path / "results", tmp_path / "docs"
        results.mkdir()
        (results / "a.jsonl").write_text(text(*rows))
        arguments = ["--results", str(results), "--out", str(out)]
        assert report(*arguments) == 0
        assert report("--check", *arguments) == 0
        pages = [(out / name).read_text() for name in ("performance.md", "performance/tables.md")]
        return *pages, {path.name for path in (out / "performance").glob("*.png")}

    return make


def line(page, start):
    return next(one for one in page.splitlines() if one.startswith(start))


def test_a_loss_is_marked_in_its_cell(made):
    page, tables, _ = made(row(), row("torch eager", 0.5), row("NumPy", 2.0), row("the native call alone", 0.1))
    assert line(page, "| amsgrad |") == "| amsgrad |  |  | **0.50** |  |"
    assert "A peer is faster in 1 of 1 on A Processor" in page
    assert "10 ms, 100%; **0.50** torch eager; 2.00 NumPy; 0.10 the native call alone |" in tables


def test_without_a_loss_nothing_is_bold(made):
    page, _, _ = made(row(), row("torch.optim fused", 1.3), row("close", 0.997))
    assert line(page, "| amsgrad |") == "| amsgrad |  |  | 1.00 |  |"
    assert "A peer is faster in 0 of 1" in page


def test_every_processor_has_its_table(made):
    page, tables, pictures = made(
        row(), row("torch eager", 1.5), row(processor="B", median=2e-2), row("torch eager", 0.8, processor="B"),
        row(size=1000, median=1e-5, case="arrival ASGD"),
    )  # fmt: skip
    assert [one for one in page.splitlines() if one.startswith("| amsgrad |")] == [
        "| amsgrad |  |  | 1.50 |  |", "| amsgrad |  |  | **0.80** |  |",
    ]  # fmt: skip
    assert "| ASGD |" not in page  # it has no peer; its time is in the tables
    assert "10 ms, 100%; 1.50 torch eager | 20 ms, 100%; **0.80** torch eager |" in tables
    assert pictures == {"ratios.png"}  # one point is no curve


def test_the_row_beside_most_peers_on_all_cores_counts(made):
    page, tables, _ = made(
        row(size=10_000_000, median=3e-3), row(), row("torch eager", 1.5), row(threads=1, median=5e-2),
        row(size=20_000_000, median=1.0),
    )  # fmt: skip
    assert line(page, "| amsgrad |") == "| amsgrad |  |  | 1.50 |  |"
    assert "| amsgrad | 36 | 11,200,000 | 1 | 50 ms, 100% |" in tables


def test_curves_need_two_sizes(made):
    names = ("amsgrad", "arrival FADAS, M = 1")
    rows = [row(size=size, case=case, median=size * 1e-9) for size in (1000, 10_000_000) for case in names]
    rows += [row("torch eager", 1.2, size=size, case=case) for size in (1000, 10_000_000) for case in names]
    page, _, pictures = made(*rows)
    assert pictures == {"updates.png", "ratios.png"}
    assert all(f"(performance/{name})" in page for name in pictures)


def test_whole_servers_and_runs_have_their_places(made):
    page, tables, _ = made(
        row(case="server, FedAvg of 10 clients", median=400, unit="1/s"),
        row("Flower FedAvg", case="server, FedAvg of 10 clients", median=100, unit="1/s"),
        row("Flower FedAvg", case="server, FedAvg of 10 clients", median=2e8, unit="B"),
        row(case="simulator, MLP", median=1e-3),
        row("plain torch loop", 2.5, case="simulator, MLP", median=2.5e-3),
    )
    assert "| server, FedAvg of 10 clients | fastagg | 400 a second |" in tables
    assert "| server, FedAvg of 10 clients | Flower FedAvg | 100 a second, 200 MB |" in tables
    assert "| MLP | 1 ms | 2.5 ms | 2.50 |" in page


def test_an_installation_that_was_unknown_is_not_said(made):
    page, _, _ = made(row(versions="fastagg unknown (not installed) (avx512), torch 2.13, Python 3.11"))
    assert "- A Processor: avx512, torch 2.13, Python 3.11; commits abc1234;" in page


def test_what_memory_gave_is_in_the_tables(made):
    _, tables, _ = made(row(), row("copy", case="streams", size=1000, median=8e-6))
    assert "| 1,000 | 2 | copy 1 |" in tables


def test_a_page_changed_by_hand_is_stale(made, tmp_path, capsys):
    made(row())
    (tmp_path / "docs" / "performance.md").write_text("Twice as fast as light.")
    assert report("--results", str(tmp_path / "results"), "--out", str(tmp_path / "docs"), "--check") == 1
    assert "run python bench/report.py" in capsys.readouterr().err


def test_rows_of_a_changed_tree_are_refused(tmp_path, capsys):
    (tmp_path / "a.jsonl").write_text(text(row(commit="abc1234-dirty")))
    assert report("--results", str(tmp_path), "--out", str(tmp_path)) == 2
    assert "which is no commit" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("device", "processor", "level2", "name"),
    [
        ("AMD EPYC 9354P (model 17)", ("AuthenticAMD", 25, 17), "1024K", "AMD EPYC 9354P (Zen 4)"),
        ("Intel(R) Xeon(R) Processor (model 167)", ("GenuineIntel", 6, 167), "2048K", "Intel Xeon (model 167)"),
        (
            "Intel(R) Xeon(R) CPU @ 2.1GHz (model 143)",
            ("GenuineIntel", 6, 143),
            "2048K",
            "Intel Xeon (Sapphire Rapids)",
        ),
        ("Neoverse-N1", None, "1024K", "Neoverse-N1"),
    ],
)
def test_processors_have_readable_names(device, processor, level2, name):
    import machine

    said = dict(zip(("vendor", "family", "model"), processor, strict=True)) if processor else {}
    assert machine.label({"device": device, "processor": said, "caches": {"L2": level2}}) == name
