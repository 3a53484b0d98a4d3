"""Compares whole simulations of other frameworks with fastagg's on one task. Run it alone on a machine:

    python bench/simulators.py --python flower=PYTHON --python pfl=PYTHON --python appfl=PYTHON [--rounds 5]

The task is that of the case "simulator, MLP": 50 clients of the digits, 25 in training, two epochs of batches of 50.
Each framework runs in a process of its own, with the Python that is named, and with this checkout's fastagg for the
data and the model. A round runs every framework once, in a random order. The clock starts after a hundred client
updates (with APPFL at the first one), and stops after the last test of the model. So it leaves out imports and the
start of processes. A framework that is not named is not measured. Rows are stored as bench/run.py does.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))  # a checkout that was not installed

import results
import tables
import torch
from integrations_common import stamped
from results import Row

HERE = Path(__file__).resolve().parent
CASE = "simulators, MLP"
PARAMETERS = 4_810
# What is measured: the file that runs it, and its argument.
CANDIDATES = {
    "fastagg": ("simulators_here.py", "fastagg"),
    "plain torch loop": ("simulators_here.py", "plain"),
    "Flower's simulation engine": ("simulators_flower.py", ""),
    "pfl-research": ("simulators_pfl.py", ""),
    "APPFL's vsim": ("simulators_appfl.py", ""),
}
PYTHONS = {"flower": "Flower's simulation engine", "pfl": "pfl-research", "appfl": "APPFL's vsim"}


def measure(name: str, python: str) -> float:
    """Run one simulation. Return its seconds per client update.

    Raises:
        RuntimeError: the process failed, or its model learned nothing.
    """
    file, argument = CANDIDATES[name]
    # This checkout, installed or not, and the files here: the workers of other frameworks import both.
    paths = os.pathsep.join([str(HERE.parent), str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [python, str(HERE / file), argument], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": paths}
    )
    if done.returncode:
        raise RuntimeError(f"{name} failed:\n{done.stderr[-2000:]}")
    printed = [line for line in done.stdout.splitlines() if line.startswith("{")]
    return float(json.loads(printed[-1])["seconds"])


def rows(found: dict[str, list[float]]) -> list[Row]:
    """Return a row for each framework: seconds per client update, and its ratio to fastagg's in the same round."""
    made = []
    for name, seconds in found.items():
        p20, p50, p80 = _quantiles(seconds)
        row = Row(CASE, name, PARAMETERS, torch.get_num_threads(), p50, p20, p80)
        if name != "fastagg":
            ratios = [a / b for a, b in zip(seconds, found["fastagg"], strict=True)]
            low, middle, high = _quantiles(ratios)
            row = replace(row, ratio=(low, middle, high))
        made.append(row)
    return stamped(made)


def _quantiles(values: list[float]) -> tuple[float, float, float]:
    if len(values) == 1:
        return values[0], values[0], values[0]
    fifths = statistics.quantiles(values, n=5, method="inclusive")
    return fifths[0], statistics.median(values), fifths[3]


def main(arguments: list[str] | None = None) -> int:
    """The command line. It prints Markdown, and returns 2 if results may not be stored."""
    parser = argparse.ArgumentParser(prog="bench/simulators.py", description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--python", action="append", default=[], metavar="NAME=PYTHON", help=", ".join(PYTHONS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--no-save", action="store_true", help="print only")
    given = parser.parse_args(arguments)
    pythons = {"fastagg": sys.executable, "plain torch loop": sys.executable}
    for pair in given.python:
        name, _, python = pair.partition("=")
        if name not in PYTHONS or not python:
            parser.error(f"--python {pair}: expected NAME=PYTHON with NAME one of {', '.join(PYTHONS)}")
        pythons[PYTHONS[name]] = python
    if not given.no_save and not (commit := results.commit()).isalnum():
        print(f"error: this tree is {commit}: results of a changed tree are not kept. Commit first, or --no-save",
              file=sys.stderr)  # fmt: skip
        return 2
    found: dict[str, list[float]] = {name: [] for name in pythons}
    for _ in range(given.rounds):
        for name in random.sample(list(pythons), len(pythons)):
            found[name].append(measure(name, pythons[name]))
    made = rows(found)
    print("| simulator | per client update | p20 to p80 | over fastagg's |\n|---|---:|---|---:|")
    for row in made:
        ratio = f"{row.ratio[1]:.2f}" if row.ratio else ""
        print(f"| {row.candidate} | {tables.value(row)} | {row.p20:.3g} to {row.p80:.3g} s | {ratio} |")
    if not given.no_save:
        results.save(made, None)
    return 0


if __name__ == "__main__":
    sys.exit(main())
