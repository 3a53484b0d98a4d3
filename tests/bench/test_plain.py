"""The plain C++ loops of the benchmarks: they compute what fastagg computes, or say why they are not there."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"
# What measure does before it times anything.
SCRIPT = """
import sys
from dataclasses import replace

sys.path.insert(0, sys.argv[1])
import checkout
import measure
from cases import CASES
from peers.plain import NAME
from problem import Problem

import fastagg

fastagg.set_num_threads(int(sys.argv[2]))
for name, case in CASES.items():
    leader, *peers = case.candidates()
    if loop := [peer for peer in peers if peer.name == NAME]:
        built, skipped = measure.build(case, replace(Problem(int(sys.argv[3])), lr=case.lr), [leader, *loop])
        print(name, "built" if NAME in built else skipped[NAME], sep=": ")
"""


def build(threads, size, **environment):
    """Every loop built and its first step compared with fastagg's: what became of each."""
    command = [sys.executable, "-P", "-c", SCRIPT, str(BENCH), str(threads), str(size)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **environment})
    assert done.returncode == 0, done.stderr
    return dict(line.split(": ", 1) for line in done.stdout.splitlines())


@pytest.mark.parametrize(("threads", "size"), [(1, 2003), (2, 1_000_003)])
def test_every_loop_gives_fastaggs_result(threads, size):
    if shutil.which(os.environ.get("CXX", "c++")) is None:
        pytest.skip("no C++ compiler")
    found = build(threads, size)
    assert set(found) == {
        "amsgrad", "adam", "accumulate", "apply", "fedbuff flush", "fadas flush", "inspect", "ace fp32",
        "ca2fl arrival", "distances", "mixing",
    }  # fmt: skip
    assert set(found.values()) == {"built"}


def test_a_thread_for_a_short_loop_is_not_measured():
    assert "starting a thread costs more than the loop" in build(2, 1000)["accumulate"]


def test_without_a_compiler_it_says_so():
    assert "no C++ compiler" in build(1, 1000, CXX="no-such-compiler")["accumulate"]
