"""docs/performance.md is what the generator makes of the results: losses first, every processor in every line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = str(ROOT / "bench" / "report.py")


def test_the_page_is_what_the_results_say():
    done = subprocess.run([sys.executable, SCRIPT, "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture
def page(tmp_path):
    """``page(*files)``: the page of result files, given as lists of rows, oldest first; ``abroad`` is another
    processor's."""

    def make(*files, command="python bench/run.py amsgrad", abroad=None):
        results, out = tmp_path / "results", tmp_path / "docs"
        results.mkdir()
        for number, rows in enumerate(files):
            (results / f"{9 - number}.json").write_text(json.dumps(record(rows, number, command)))
        if abroad is not None:
            (results / "0.json").write_text(json.dumps(record(abroad, 8, command, "AMD EPYC (model 17)")))
        arguments = ["--results", str(results), "--out", str(out)]
        subprocess.run([sys.executable, SCRIPT, *arguments], check=True)
        assert subprocess.run([sys.executable, SCRIPT, "--check", *arguments], check=False).returncode == 0
        return (out / "performance.md").read_text(), {path.name for path in (out / "performance").glob("*.png")}

    return make


def record(rows, day, command, device="A Processor"):
    machine = {
        "date": f"2026-01-0{day + 1}T00:00:00+00:00", "commit": f"c{day}", "device": device, "cores": 2,
        "caches": {"L1": "48K", "L2": "1024K"}, "memory_bytes": 2**34, "huge_pages": "madvise", "load": [0, 0, 0],
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


def lead(text):
    """What stands before the first section."""
    return text.split("\n## ")[0]


def test_a_faster_peer_stands_in_the_lead(page):
    text, _ = page([row(), row("torch eager", 0.5), row("NumPy", 2.0), row("the kernels alone", 0.5)])
    assert "| amsgrad | torch eager | 2.00 times as fast at d = 11,200,000 (2 threads) |" in lead(text)
    assert "NumPy" not in lead(text)
    assert "the kernels alone" not in lead(text)
    assert "**0.50** torch eager" in text


def test_bars_that_are_missed_stand_there_too(page):
    text, _ = page([row(of_roofline=0.5), row("torch.optim fused", 1.1)])
    assert "Below 85% of streaming: on A amsgrad at d = 11,200,000 (50%)." in lead(text)
    assert "less than 1.15 of our time: on A 1.10" in lead(text)


def test_without_losses_it_says_so(page):
    text, pictures = page([row(), row("torch.optim fused", 1.3)])
    assert "No peer is faster" in lead(text)
    assert pictures == set()  # two points are no curve


def test_every_processor_stands_in_every_line(page):
    here = [row(), row("torch eager", 0.5), row(size=10_000), row("NumPy", 0.9, size=10_000)]
    there = [row(of_roofline=0.5), row("torch eager", 1.5), row("plain C++ loop", 0.8)]
    text, _ = page(here, abroad=there)
    assert "in 2 of 2 cases on A, in 1 of 1 cases on AMD EPYC (Zen 4)" in lead(text)
    assert "Below 85% of streaming: on A nowhere; on AMD EPYC (Zen 4) amsgrad at d = 11,200,000 (50%)." in lead(text)
    assert "| step | peer | A | AMD EPYC (Zen 4) |" in lead(text)
    eager = (
        "| amsgrad | torch eager | 2.00 times as fast at d = 11,200,000 (2 threads) | not faster: 1.50 of our time |"
    )
    assert eager in lead(text)
    assert "| amsgrad | plain C++ loop | not measured | 1.25 times as fast" in lead(text)
    assert "| | d | A, 2 threads | AMD EPYC (Zen 4), 2 threads |" in text
    cells = "11.2 ms, 100%; **0.50** torch eager | 11.2 ms, 50%; 1.50 torch eager; **0.80** plain C++ loop |"
    assert f"| amsgrad | 11,200,000 | {cells}" in text
    assert "| amsgrad | 10,000 | 10 µs, 100%; **0.90** NumPy | — |" in text


@pytest.mark.parametrize(
    ("device", "processor", "level2", "name"),
    [
        ("AMD EPYC (model 17)", None, "1024K", "AMD EPYC (Zen 4)"),  # files from before the family was kept
        ("AMD EPYC 9354P (model 17)", ("AuthenticAMD", 25, 17), "1024K", "AMD EPYC 9354P (Zen 4)"),
        ("Intel(R) Xeon(R) Processor (model 167)", None, "2048K", "Intel Xeon (model 167)"),  # not Rocket Lake's cache
        (
            "Intel(R) Xeon(R) CPU @ 2.1GHz (model 143)",
            ("GenuineIntel", 6, 143),
            "2048K",
            "Intel Xeon (Sapphire Rapids)",
        ),
        ("Neoverse-N1", {}, "1024K", "Neoverse-N1"),
    ],
)
def test_processors_have_readable_names(device, processor, level2, name):
    said = dict(zip(("vendor", "family", "model"), processor, strict=True)) if processor else {}
    machine = {"device": device, "processor": said, "caches": {"L2": level2}}
    code = f"import processors; print(processors.label({machine}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT / "bench")
    assert done.stdout.strip() == name


def test_the_newest_result_counts(page):
    text, _ = page([row(), row("torch eager", 0.5)], [row(), row("torch eager", 1.5)])
    assert "No peer is faster" in lead(text)
    assert "c1, 2026-01-02" in text
    assert "c0" not in text


def test_a_sweep_becomes_curves_and_few_lines(page):
    rows = [row(size=size, threads=threads) for size in (10_000, 31_600, 100_000) for threads in (1, 2)]
    rows += [row("copy: best", operation="roofline", size=size) for size in (10_000, 31_600, 100_000)]
    rows += [
        row(f"fastagg, {form} rows", operation="arrivals", clients=clients, per_client=4.0)
        for form in ("fp32", "int8") for clients in (10, 100)
    ]  # fmt: skip
    text, pictures = page(rows, command="python bench/run.py sweep --threads 1 2")
    assert pictures == {f"{name}.png" for name in ("time", "bandwidth", "threads", "clients", "formats")}
    assert all(f"(performance/{name})" in text for name in pictures)
    assert "| amsgrad | 100,000 |" in text  # a size that the tables have
    assert "| amsgrad | 31,600 |" not in text
    assert "`python bench/run.py sweep --threads 1 2`" in text


def test_a_page_changed_by_hand_is_stale(page, tmp_path):
    page([row()])
    (tmp_path / "docs" / "performance.md").write_text("Twice as fast as light.")
    arguments = ["--results", str(tmp_path / "results"), "--out", str(tmp_path / "docs")]
    assert subprocess.run([sys.executable, SCRIPT, "--check", *arguments], check=False).returncode == 1
