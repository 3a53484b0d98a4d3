"""examples/queue: a root, leaves and readers are killed; the model equals an undisturbed run, to the bit."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import fastagg

pytest.importorskip("nats")
pytest.importorskip("obstore")

EXAMPLE = Path(__file__).parents[2] / "examples" / "queue"
ROOT = Path(fastagg.__file__).parents[1]


@pytest.mark.skipif(shutil.which("nats-server") is None, reason="nats-server is not installed")
def test_every_sum_counts_once_whoever_is_killed() -> None:
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, "drive.py", "--kills", "20"], cwd=EXAMPLE, env={**os.environ, "PYTHONPATH": path},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr[-5000:]
    assert "20 kills in" in done.stdout and "\nequal to one process, to the bit" in done.stdout
    messages, sums = map(int, re.findall(r"(\d+) messages up to offset \d+: (\d+) sums", done.stdout)[0])
    assert messages >= sums >= 30
    versions = re.findall(r"version (\d+), and (\d+) in one process", done.stdout)
    assert versions == [(str(sums // 2),) * 2]


def test_its_page_shows_the_code_that_runs() -> None:
    page = (EXAMPLE / "README.md").read_text()
    consumer = re.findall(r"^```py\n(.*?)^```", page, re.DOTALL | re.MULTILINE)[0]
    code = (EXAMPLE / "roles.py").read_text()
    assert all(line.strip() in code for line in consumer.splitlines())
    assert len(consumer.splitlines()) == 6
