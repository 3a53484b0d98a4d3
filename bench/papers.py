"""Runs the papers' tables at their own sizes. First it estimates the hours of each on this machine. It can resume.

    python bench/papers.py --data-dir FOLDER [--run] [--device cuda] [-j 4] [--seeds 3] [TABLE...]

It prints hours first. For every method in a table's first setting it runs a few client updates, and divides their wall
seconds by their share of the run. With --run the tables follow, in bf16, with channels_last for images. Finished runs
are only read, and unfinished ones are continued. If a data set is not in the folder, this is reported and its table is
left out.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import torch

from fastagg.errors import ConfigError, DataError
from fastagg.sim.data.sections import SECTIONS
from fastagg.sim.one.simulation import Simulation
from fastagg.sim.recipes import config, tables
from fastagg.timing import Stopwatch

TABLES = (
    "fadas-table2", "fadas-table3", "fadas-table4", "fadas-table5", "ace-figure2", "fedecho-table2",
    "asyncfeded-figure2-synthetic", "asyncfeded-figure2-femnist", "asyncfeded-figure2-shakespeare",
    "asyncfeded-figure3-synthetic", "asyncfeded-figure3-femnist", "asyncfeded-figure3-shakespeare",
    "asyncfeded-figure4-synthetic", "asyncfeded-figure4-femnist", "asyncfeded-figure4-shakespeare",
)  # fmt: skip
WARM, UPDATES = 3, 12  # client updates before the clock starts, and those that are timed
IMAGES = ("cifar10", "cifar100", "femnist", "mnist")


def changes(values: dict[str, object], device: str, folder: str) -> dict[str, object]:
    """Return what a run on this machine changes in a recipe."""
    data = values["data"]
    assert isinstance(data, dict)
    images = data["name"] in IMAGES
    wanted: dict[str, object] = {"run.device": device, "run.autocast": images, "run.channels_last": images}
    return {**wanted, **({"data.dir": folder} if SECTIONS[data["name"]].needs else {})}


def hours(cell: tables.Place, device: str, folder: str) -> float:
    """Return the wall hours of one run, estimated from its first few client updates."""
    values = config.changed(cell.values, changes(cell.values, device, folder))
    simulation = Simulation(config.from_dict(values, cell.label))
    for _ in range(WARM):
        simulation.step()
    share, watch = simulation.done(), Stopwatch()
    done = 0
    while done < UPDATES or (simulation.done() == share and done < 20 * UPDATES):  # until the run has advanced
        simulation.step()
        done += 1
    if device != "cpu":
        torch.cuda.synchronize()
    moved = simulation.done() - share
    return watch.total / max(moved, 1e-9) / 3600


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="*", default=TABLES)
    parser.add_argument("--data-dir", required=True)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("-j", "--jobs", type=int, default=1)
    parser.add_argument("--out", default="runs/papers")
    parser.add_argument("--run", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    planned: list[str] = []
    total = 0.0
    print("| table | runs | hours |\n|---|---:|---:|")
    for name in given.tables:
        table = tables.load(name)
        first = {cell.method: cell for cell in reversed(table.cells)}
        try:
            each = {method: hours(cell, given.device, given.data_dir) for method, cell in first.items()}
        except (DataError, ConfigError) as error:
            print(f"| {name} | left out: {error} | |", flush=True)
            continue
        runs = len(table.cells) * given.seeds
        sum_of = sum(each[cell.method] for cell in table.cells) * given.seeds / given.jobs
        total += sum_of
        planned.append(name)
        print(f"| {name} | {runs} | {sum_of:.2f} |", flush=True)
    print(f"| all | | {total:.2f} |", flush=True)
    failed = 0
    for name in planned if given.run else ():
        values = tables.load(name).cells[0].values
        settings = changes(values, given.device, given.data_dir)
        command = [sys.executable, "-m", "fastagg", "compare", name, "--seeds", str(given.seeds), "-j", str(given.jobs)]
        command += ["--out", str(Path(given.out) / name)]
        for key, value in settings.items():
            command += ["--set", f"{key}={str(value).lower() if isinstance(value, bool) else value}"]
        failed += subprocess.run(command, check=False).returncode != 0
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
