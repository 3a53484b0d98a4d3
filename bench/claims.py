"""Runs the papers' claims again. docs/reproduction/claims.toml says which claims there are and which tables test them.

    python bench/claims.py run FOLDER [--data-dir DATA] [--seeds N] [--set KEY=VALUE...] [TABLE...]
    python bench/claims.py record FOLDER

``run`` compares every table in FOLDER/TABLE with `fastagg compare`, and prints the verdicts. Finished runs are only
read, and unfinished ones are continued. ``--data-dir``, ``--seeds`` and ``--set`` run them on other data and at another
size. ``record`` writes the verdicts to docs/reproduction/measured.json, and the table of docs/reproduction.md from it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

PAGES = Path(__file__).parents[1] / "docs"
CLAIMS, MEASURED = PAGES / "reproduction" / "claims.toml", PAGES / "reproduction" / "measured.json"
BEGIN, END = "<!-- bench/claims.py makes this table -->\n", "<!-- its end -->\n"
SEEDS = 6  # of a table that claims.toml does not name
Measured = dict[str, dict[str, list[str]]]  # table -> claim -> difference with its interval, seeds, verdict


def registry() -> dict[str, Any]:
    return tomllib.loads(CLAIMS.read_text(encoding="utf-8"))


def tables() -> list[str]:
    return list(dict.fromkeys(table for row in registry()["rows"] for table, _, _ in row["tests"]))


def verdicts(folder: Path) -> Measured:
    """Return what the tables in ``folder`` gave: their claims.md."""
    found: Measured = {}
    for path in sorted(folder.glob("*/claims.md")):
        lines = [line.strip("| ").split(" | ") for line in path.read_text(encoding="utf-8").splitlines()[2:] if line]
        found[path.parent.name] = {claim: [difference, seeds, verdict] for claim, difference, seeds, verdict in lines}
    return found


def page_table(measured: Measured) -> str:
    """Return the table of the page, in Markdown. A test that has not been run says so."""
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


def run(folder: Path, args: argparse.Namespace) -> None:
    seeds, failed = registry()["seeds"], []
    for table in args.tables or tables():
        command = [sys.executable, "-m", "fastagg", "compare", table, "--out", str(folder / table)]
        command += ["--seeds", str(args.seeds or seeds.get(table, SEEDS))]
        command += ["--data-dir", args.data_dir] if args.data_dir else []
        command += [part for change in args.set for part in ("--set", change)]
        if subprocess.run(command, check=False).returncode != 0:
            failed.append(table)
    print(page_table(verdicts(folder)))
    if failed:
        sys.exit(f"did not end: {', '.join(failed)}")


def record(folder: Path) -> None:
    measured = json.loads(MEASURED.read_text(encoding="utf-8")) if MEASURED.exists() else {}
    measured.update({table: found for table, found in verdicts(folder).items() if table in tables()})
    MEASURED.write_text(json.dumps(measured, indent=1) + "\n", encoding="utf-8")
    page = PAGES / "reproduction.md"
    page.write_text(with_table(page.read_text(encoding="utf-8"), measured), encoding="utf-8")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["run", "record"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("tables", nargs="*", metavar="TABLE")
    parser.add_argument("--data-dir")
    parser.add_argument("--seeds", type=int)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    args = parser.parse_args(arguments)
    if args.what == "run":
        run(args.folder, args)
    else:
        record(args.folder)


if __name__ == "__main__":
    main()
