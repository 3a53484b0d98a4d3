"""Whole simulations of other frameworks beside fastagg's on one task, per client update.

The task is that of the case "simulator, MLP": 50 clients of the digits, 25 in training, two epochs of batches of 50.
Each run is a process of its own with the case's data and model, of the Python that FLOWER_PYTHON, PFL_PYTHON or
APPFL_PYTHON names; a framework that none is named for is skipped. It says its own seconds: the clock starts after a
hundred client updates (with APPFL at the first one), and stops after the last test of the model.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import checkout
from problem import Built, Candidate, Case, Problem, Skip

BENCH = Path(__file__).resolve().parents[1]
# The file in simulators/ with its argument, and the variable that names its Python.
CANDIDATES = {
    "fastagg": (("here.py", "fastagg"), ""),
    "plain torch loop": (("here.py", "plain"), ""),
    "Flower's simulation engine": (("of_flower.py",), "FLOWER_PYTHON"),
    "pfl-research": (("of_pfl.py",), "PFL_PYTHON"),
    "APPFL's vsim": (("of_appfl.py",), "APPFL_PYTHON"),
}


def _built(problem: Problem, command: tuple[str, ...], variable: str) -> Built:
    python = os.environ.get(variable) if variable else sys.executable
    if not python:
        raise Skip(f"{variable} names no Python")
    # A checkout's package, and the files here: the workers of other frameworks import both.
    paths = [*checkout.PATHS, str(BENCH), str(BENCH / "simulators"), os.environ.get("PYTHONPATH", "")]
    file, *arguments = command

    def run() -> float:
        done = subprocess.run(
            [python, str(BENCH / "simulators" / file), *arguments], capture_output=True, text=True, check=False,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
        )  # fmt: skip
        if done.returncode:
            raise RuntimeError(f"{file} failed:\n{done.stderr[-2000:]}")
        printed = [line for line in done.stdout.splitlines() if line.startswith("{")]
        return float(json.loads(printed[-1])["seconds"])

    return Built(run, None, warm=0)


def _candidates() -> list[Candidate]:
    return [Candidate(name, partial(_built, command=c, variable=v), 0) for name, (c, v) in CANDIDATES.items()]


CASES = [Case("simulators, MLP", 0, _candidates, "processes", (4_810,), devices=("cpu",), told=True)]
