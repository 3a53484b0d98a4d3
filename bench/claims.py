"""Runs the papers' claims again. docs/reproduction/claims.toml says which claims there are and which tables test them.

    python bench/claims.py run FOLDER [--data-dir DATA] [--seeds N] [--set KEY=VALUE...] [TABLE...]
    python bench/claims.py record FOLDER
    python bench/claims.py papers FOLDER --data-dir DATA [--plan] [--device cuda] [-j 4] [TABLE...]

``run`` runs every table with `fastagg compare`, with FOLDER/TABLE as the table's folder, and prints the verdicts.
Finished runs are only read, and unfinished runs are continued. ``--data-dir``, ``--seeds`` and ``--set`` change the
data and the size of runs.
``record`` writes the verdicts to docs/reproduction/measured.json, and the table of docs/reproduction.md from it.

``papers`` runs the papers' tables at their own sizes, on a GPU if there is one. First it prints an estimate of each
table's hours. For every method in the table's first setting, it divides the seconds of a few client updates by their
share of the run. Tables whose data set is not in DATA are left out. ``--plan`` only prints the estimates.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import checkout  # noqa: F401
import torch

from fastagg.errors import ConfigError, DataError
from fastagg.sim.functions import beside
from fastagg.sim.recipes import config
from fastagg.sim.recipes import tables as recipes
from fastagg.sim.runs.passed import configured
from fastagg.sim.runs.simulation import Simulation
from fastagg.timing import Stopwatch

sys.path.append(str(Path(__file__).parents[1] / "reproduction"))
from papers import judge, runs

PAGES = Path(__file__).parents[1] / "docs"
CLAIMS, MEASURED = PAGES / "reproduction" / "claims.toml", PAGES / "reproduction" / "measured.json"
BEGIN, END = "<!-- bench/claims.py makes this table -->\n", "<!-- its end -->\n"
SEEDS = 6  # for a table that claims.toml does not name
PAPERS = [
    *(f"fadas-table{number}" for number in (2, 3, 4, 5)), "ace-figure2", "fedecho-table2",
    *(f"asyncfeded-figure{number}-{data}" for number in (2, 3, 4) for data in ("synthetic", "femnist", "shakespeare")),
]  # fmt: skip
WARM, UPDATES = 3, 12  # numbers of client updates: before the clock starts, and timed
Measured = dict[str, dict[str, list[str]]]  # table -> claim -> (difference with its interval, seeds, verdict)


def registry() -> dict[str, Any]:
    return tomllib.loads(CLAIMS.read_text(encoding="utf-8"))


def tables() -> list[str]:
    return list(dict.fromkeys(table for row in registry()["rows"] for table, _, _ in row["tests"]))


def verdicts(folder: Path) -> Measured:
    """Return the verdict on each claim, from the runs in ``folder``."""
    measured: Measured = {}
    for path in sorted(folder.glob("*/comparison.csv")):
        measured[path.parent.name] = {
            verdict.text: [str(verdict.difference), str(len(verdict.difference.pairs)), verdict.word]
            for verdict in judge(path.parent.name, runs(path.parent))
        }
    return measured


def page_table(measured: Measured) -> str:
    """Return the table of docs/reproduction.md. It marks claims that have not been tested."""
    lines = ["| claim | who says it | here | why |", "|---|---|---|---|"]
    for row in registry()["rows"]:
        said = []
        for table, claim, case in row["tests"]:
            difference, _, verdict = measured.get(table, {}).get(claim, ["", "", "not run"])
            said.append(f"{case}: {verdict} {difference}".strip())
        lines.append(f"| {row['says']} | {row['paper']} | {'; '.join(said)} | {row['why']} |")
    return "\n".join(lines) + "\n"


def with_table(text: str, measured: Measured) -> str:
    before, rest = text.split(BEGIN)
    return before + BEGIN + "\n" + page_table(measured) + "\n" + END + rest.split(END)[1]


def compare(folder: Path, names: list[str], args: argparse.Namespace, own: dict[str, list[str]]) -> None:
    """Compare tables. ``own``: each table's further options. If comparisons fail, exit with the names of the tables."""
    seeds, failed = registry()["seeds"], []
    for table in names:
        command = [sys.executable, "-m", "fastagg", "compare", table, "--out", str(folder / table)]
        command += ["--seeds", str(args.seeds or seeds.get(table, SEEDS))]
        command += ["--data-dir", args.data_dir] if args.data_dir else []
        command += [part for change in [*args.set, *own.get(table, [])] for part in ("--set", change)]
        command += ["-j", str(args.jobs)] if args.jobs > 1 else []
        if subprocess.run(command, check=False).returncode != 0:
            failed.append(table)
    print(page_table(verdicts(folder)))
    if failed:
        sys.exit(f"did not end: {', '.join(failed)}")


def changes(given: config.Config, args: argparse.Namespace) -> dict[str, Any]:
    """Return the changes that the command line's options make in a recipe."""
    return {"run.device": args.device, **({"data.dir": args.data_dir} if hasattr(given.data, "dir") else {})}


def hours(cell: recipes.Cell, args: argparse.Namespace) -> float:
    """Return the wall hours of one run, estimated from its first few client updates."""
    with beside(cell.config.folder):
        simulation = Simulation(configured(cell.config, changes(cell.config, args)))
    for _ in range(WARM):
        simulation.step()
    share, watch, done = simulation.done(), Stopwatch(), 0
    while done < UPDATES or (simulation.done() == share and done < 20 * UPDATES):  # until the run has advanced
        simulation.step()
        done += 1
    if args.device != "cpu":
        torch.cuda.synchronize()
    return watch.total / max(simulation.done() - share, 1e-9) / 3600


def papers(folder: Path, args: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    planned: dict[str, list[str]] = {}
    total, args.seeds = 0.0, args.seeds or 3
    print("| table | runs | hours |\n|---|---:|---:|")
    for name in args.tables or PAPERS:
        table = recipes.load(name)
        first = {cell.method: cell for cell in reversed(table.cells)}
        try:
            each = {method: hours(cell, args) for method, cell in first.items()}
        except (DataError, ConfigError) as error:
            print(f"| {name} | left out: {error} | |", flush=True)
            continue
        total += (needed := sum(each[cell.method] for cell in table.cells) * args.seeds / args.jobs)
        print(f"| {name} | {len(table.cells) * args.seeds} | {needed:.2f} |", flush=True)
        own = changes(table.cells[0].config, args)
        planned[name] = [f"{key}={str(one).lower() if isinstance(one, bool) else one}" for key, one in own.items()]
    print(f"| all | | {total:.2f} |", flush=True)
    args.data_dir = None  # `planned` has it for the tables that need it
    if not args.plan:
        compare(folder, list(planned), args, planned)


def record(folder: Path) -> None:
    measured = json.loads(MEASURED.read_text(encoding="utf-8")) if MEASURED.exists() else {}
    measured.update({table: results for table, results in verdicts(folder).items() if table in tables()})
    MEASURED.write_text(json.dumps(measured, indent=1) + "\n", encoding="utf-8")
    page = PAGES / "reproduction.md"
    page.write_text(with_table(page.read_text(encoding="utf-8"), measured), encoding="utf-8")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["run", "record", "papers"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("tables", nargs="*", metavar="TABLE")
    parser.add_argument("--data-dir")
    parser.add_argument("--seeds", type=int)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("-j", "--jobs", type=int, default=1)
    parser.add_argument("--plan", action="store_true")
    args = parser.parse_intermixed_args(arguments)  # tables may follow options
    if args.what == "record":
        record(args.folder)
    elif args.what == "run":
        compare(args.folder, args.tables or tables(), args, {})
    elif args.data_dir is None:
        parser.error("papers: it needs --data-dir")
    else:
        papers(args.folder, args)


if __name__ == "__main__":
    main()
