"""A disk that takes no more: one line, no traceback, nothing half-written, and with room again the run goes on.

A limit on the size of files (RLIMIT_FSIZE, with its signal ignored) makes the operating system itself refuse to write.
"""

import os
import signal
import subprocess
import sys

import pytest
from support.stderr import said

from fastagg.sim.recipes.config import to_toml

from .test_resume import EVERY

resource = pytest.importorskip("resource")

KB = 1000


def fastagg(folder, *arguments, limit=None):
    """Run the command in ``folder``, where no file can grow past ``limit`` bytes."""

    def full():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    path = os.pathsep.join(filter(None, sys.path))
    return subprocess.run(
        [sys.executable, "-m", "fastagg", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", "MPLBACKEND": "Agg"},
        preexec_fn=None if limit is None else full,
        capture_output=True,
        text=True,
        check=False,
    )


def check_refusal(done, *parts):
    """One line that says what could not be written and why, and nothing else."""
    assert done.returncode == 2, done.stderr
    lines = said(done.stderr)
    assert len(lines) == 1 and lines[0].startswith("error: "), done.stderr
    for part in (*parts, "File too large"):
        assert part in lines[0]


def names(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize(
    ("changes", "limit", "part", "left"),
    [
        (EVERY, 100, "cannot write results to out", []),
        (EVERY, 2 * KB, "checkpoint.pt", ["config.toml", "metrics.csv"]),
        (EVERY, 10 * KB, "checkpoint.pt", ["config.toml", "metrics.csv"]),  # torch closes its archive, and complains
        ({"run": {"uploads": 240, "evaluate_every": 1}}, 2 * KB, "cannot write results to out", ["config.toml"]),
    ],
    ids=["config.toml", "checkpoint.pt", "checkpoint.pt, later", "metrics.csv"],
)
def test_a_new_run(tiny, tmp_path, changes, limit, part, left):
    (tmp_path / "mine.toml").write_text(to_toml(tiny(changes)))
    check_refusal(fastagg(tmp_path, "run", "mine.toml", "--out", "out", limit=limit), part)
    assert names(tmp_path / "out") == left


@pytest.mark.slow
@pytest.mark.parametrize("jobs", ["1", "2"])
def test_a_comparison(tiny, tmp_path, jobs):
    (tmp_path / "mine.toml").write_text(to_toml(tiny(EVERY)))
    command = ["compare", "mine.toml", "--seeds", "2", "-j", jobs, "--out", "out"]
    done = fastagg(tmp_path, *command, limit=10 * KB)
    assert done.returncode == 2 and "Traceback" not in done.stderr, done.stderr
    *cells, last = said(done.stderr)
    assert sorted(line.partition(":")[0] for line in cells) == ["tiny/seed0", "tiny/seed1"]
    assert all(line.endswith("checkpoint could not be written: [Errno 27] File too large") for line in cells)
    assert last.startswith("error: 2 of 2 runs failed")
    left = [f"tiny/seed{seed}/{name}" for seed in (0, 1) for name in ("config.toml", "metrics.csv")]
    assert names(tmp_path / "out") == left
    done = fastagg(tmp_path, *command)
    assert done.returncode == 0, done.stderr
    assert {"comparison.csv", "table.md", "accuracy.png"} <= set(names(tmp_path / "out"))


def test_where_not_even_a_temporary_file_fits(tiny, tmp_path, monkeypatch):
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)  # with it torch looks for no temporary folder
    (tmp_path / "mine.toml").write_text(to_toml(tiny()))
    done = fastagg(tmp_path, "run", "mine.toml", "--out", "out", limit=0)
    assert done.returncode == 2 and "Traceback" not in done.stderr, done.stderr
    assert said(done.stderr)[-1].startswith("error: ")  # joblib warns before it
    assert not (tmp_path / "out").exists() or names(tmp_path / "out") == []
