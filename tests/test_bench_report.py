"""docs/performance.md is what the generator makes of the committed results, and says first where fastagg loses."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = str(ROOT / "bench" / "report.py")


def test_the_page_is_what_the_results_say():
    done = subprocess.run([sys.executable, SCRIPT, "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture
def page(tmp_path):
    """``page(*files)``: the page of result files, given as lists of rows, oldest first."""

    def make(*files, command="python bench/run.py amsgrad"):
        results, out = tmp_path / "results", tmp_path / "docs"
        results.mkdir()
        for number, rows in enumerate(files):
            (results / f"{9 - number}.json").write_text(json.dumps(record(rows, number, command)))
        arguments = ["--results", str(results), "--out", str(out)]
        subprocess.run([sys.executable, SCRIPT, *arguments], check=True)
        assert subprocess.run([sys.executable, SCRIPT, "--check", *arguments], check=False).returncode == 0
        return (out / "performance.md").read_text(), {path.name for path in (out / "performance").glob("*.png")}

    return make


def record(rows, day, command):
    machine = {
        "date": f"2026-01-0{day + 1}T00:00:00+00:00", "commit": f"c{day}", "device": "A Processor", "cores": 2,
        "caches": {"L1": "48K", "L2": "2048K"}, "memory_bytes": 2**34, "huge_pages": "madvise", "load": [0, 0, 0],
        "system": "Linux", "python": "3", "torch": "2", "numpy": "2", "fastagg": "0", "isa": "avx2", "threads": 2,
        "torch_threads": 2,
    }  # fmt: skip
    return {"format": 2, "command": command, "machine": machine, "rows": rows}


def row(candidate="fastagg", slower=1.0, size=11_200_000, **more):
    seconds = size * 1e-9 * slower
    return {
        "operation": "amsgrad", "candidate": candidate, "size": size, "bytes": 36, "gbps": 36.0,
        "seconds": [0.9 * seconds, seconds, 1.1 * seconds], "slower": [0.99 * slower, slower, 1.01 * slower],
        "of_roofline": 1.0, "of_in_place": 0.9, "threads": 2, **more,
    }  # fmt: skip


def first_paragraph(text):
    return text.split("\n\n")[1]


def test_a_faster_peer_stands_in_the_first_paragraph(page):
    text, _ = page([row(), row("torch eager", 0.5), row("NumPy", 2.0), row("the kernels alone", 0.5)])
    assert "torch eager is 2.00 times as fast at d = 11,200,000" in first_paragraph(text)
    assert "NumPy" not in first_paragraph(text)
    assert "the kernels alone" not in first_paragraph(text)


def test_bars_that_are_missed_stand_there_too(page):
    text, _ = page([row(of_roofline=0.5), row("torch.optim fused", 1.1)])
    assert "Below 85% of streaming: amsgrad at d = 11,200,000 (50%)" in first_paragraph(text)
    assert "less than 1.15 of our time: 1.10" in first_paragraph(text)


def test_without_losses_it_says_so(page):
    text, pictures = page([row(), row("torch.optim fused", 1.3)])
    assert "No peer is faster" in first_paragraph(text)
    assert pictures == set()  # two points are no curve


def test_the_newest_result_counts(page):
    text, _ = page([row(), row("torch eager", 0.5)], [row(), row("torch eager", 1.5)])
    assert "No peer is faster" in first_paragraph(text)
    assert "c1, 2026-01-02" in text
    assert "c0" not in text


def test_a_sweep_becomes_curves_and_no_tables(page):
    rows = [row(size=size, threads=threads) for size in (10_000, 100_000, 1_000_000) for threads in (1, 2)]
    rows += [row("copy: best", operation="roofline", size=size) for size in (10_000, 100_000, 1_000_000)]
    rows += [
        row(f"fastagg, {form} rows", operation="arrivals", clients=clients, per_client=4.0)
        for form in ("fp32", "int8") for clients in (10, 100)
    ]  # fmt: skip
    text, pictures = page(rows, command="python bench/run.py sweep --threads 1 2")
    assert pictures == {f"{name}-a-processor.png" for name in ("time", "bandwidth", "threads", "clients", "formats")}
    assert all(f"(performance/{name})" in text for name in pictures)
    assert "### amsgrad" not in text
    assert "`python bench/run.py sweep --threads 1 2`" in text


def test_a_page_changed_by_hand_is_stale(page, tmp_path):
    page([row()])
    (tmp_path / "docs" / "performance.md").write_text("Twice as fast as light.")
    arguments = ["--results", str(tmp_path / "results"), "--out", str(tmp_path / "docs")]
    assert subprocess.run([sys.executable, SCRIPT, "--check", *arguments], check=False).returncode == 1
