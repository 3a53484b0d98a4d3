"""examples/sharded runs as its first lines say."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from torch import distributed

import fastagg

ROOT = Path(fastagg.__file__).parents[1]
EXAMPLE = Path(__file__).parents[2] / "examples" / "sharded" / "serve.py"


@pytest.mark.skipif(not distributed.is_gloo_available(), reason="this torch has no gloo")
def test_the_example_equals_one_process() -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(EXAMPLE)]
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [*command, "--updates", "9"], capture_output=True, text=True, timeout=240, check=False,
        env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "version 3 after 9 updates" in done.stdout
    assert "equal to one process, to the bit" in done.stdout
