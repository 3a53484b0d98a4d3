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


def run(*arguments: str) -> str:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=9"]
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [*command, str(EXAMPLE), "--updates", "9", *arguments],
        capture_output=True, text=True, timeout=240, check=False,
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.skipif(not distributed.is_gloo_available(), reason="this torch has no gloo")
def test_the_example_equals_one_process_and_survives_a_kill(tmp_path: Path) -> None:
    for arguments in ((), ("--folder", str(tmp_path / "state"), "--kill", "1")):
        said = run(*arguments)
        assert "version 9;" in said
        assert "equal to one process, to the bit" in said
    assert "update 1 is on all disks: True" in said  # of the second life
