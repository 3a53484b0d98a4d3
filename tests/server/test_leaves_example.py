"""examples/leaves runs as its first lines say, also if a leaf is lost. It needs Ray."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import fastagg

pytest.importorskip("ray")

ROOT = Path(fastagg.__file__).parents[1]
EXAMPLE = Path(__file__).parents[2] / "examples" / "leaves" / "serve.py"


def test_leaves_on_ray_equal_one_process_and_a_lost_one_is_replaced() -> None:
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, EXAMPLE.name, "--sums", "24", "--lose", "5"], cwd=EXAMPLE.parent,
        capture_output=True, text=True, timeout=480, check=False, env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "version 12 after 24 sums of 4 updates; 1 leaves were lost" in done.stdout
    assert "equal to one process, to the bit" in done.stdout
    found = re.search(r"accuracy ([\d.]+)%", done.stdout)
    assert found is not None and float(found[1]) > 50  # it started at a tenth
