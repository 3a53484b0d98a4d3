"""bench/mca.py finds the loop that does the work between its remainders, and how many elements one turn has."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"

ASSEMBLY = """
other:
.L1:
\taddq\t$256, %rax
\tjne\t.L1
\t.cfi_endproc
_Z4loopPfl:
\ttestq\t%rdi, %rdi
\tje\t.L9
.L3:
\t.p2align 4
.L4:
\tvmulps\t(%rdi,%rax{scale}), %ymm0, %ymm1
\taddq\t${step}, %rax
\tcmpq\t%rcx, %rax
\tjne\t.L4
.L5:
\tvmulss\t(%rdi), %xmm0, %xmm1
\taddq\t$4, %rdi
\tjne\t.L5
\tjmp\t.L3
.L9:
\tret
\t.cfi_endproc
"""


@pytest.mark.parametrize(("scale", "step"), [("", 32), (",4", 8)])
def test_the_widest_innermost_loop_counts(monkeypatch, scale, step):
    monkeypatch.syspath_prepend(BENCH)
    import mca

    lines = mca.body(ASSEMBLY.format(scale=scale, step=step).splitlines(), "loop")
    loop, moved = mca.widest(lines)
    assert moved == 32
    assert len(loop) == 4
    assert "vmulps" in loop[0]
    assert mca.widest(mca.body(lines, "missing")) == ([], 0)


def test_the_plain_loops_are_predicted():
    command = [sys.executable, str(BENCH / "mca.py"), "accumulate"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == 2:
        assert "apt install" in done.stderr
        pytest.skip("no llvm-mca")
    if shutil.which("c++") is None or sys.platform != "linux":
        pytest.skip("no C++ compiler")
    assert done.returncode == 0, done.stderr
    assert "| accumulate | 0." in done.stdout
