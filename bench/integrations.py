"""Compares other frameworks' servers with fastagg's on the same replies: python bench/integrations.py nvflare

It prints rows (updates per second and memory) and stores them as bench/run.py does. Each framework may need its own
environment. A message names missing packages.
"""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))  # a checkout that was not installed

import results
import tables
import timing

# Each is a function `(rounds: int)` of a module that imports its framework. It returns rows, or text to print.
REPORTS = {
    "flower": "integrations_flower:report",
    "flower-processes": "integrations_processes:report",
    "flower-straggler": "integrations_processes:straggling",
    "nvflare": "integrations_nvflare:report",
    "appfl": "integrations_appfl:report",
    "loopback": "integrations_loopback:report",
}


def main(arguments: list[str] | None = None) -> int:
    """The command line. It prints Markdown and returns 2 if results may not be stored or the framework is missing."""
    parser = argparse.ArgumentParser(prog="bench/integrations.py", description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("report", choices=REPORTS)
    parser.add_argument("--rounds", type=int, default=15, help="samples of each candidate")
    parser.add_argument("--impatient", action="store_true", help="do not wait for a quiet machine, and keep nothing")
    parser.add_argument("--out", type=Path, help="a file for the rows (default: the processor's, in results/)")
    given = parser.parse_args(arguments)
    if given.impatient:
        timing.do_not_wait()
    elif given.out is None and not (name := results.commit()).isalnum():
        print(f"error: this tree is {name}: results of a changed tree are not kept. Commit first, or name another "
              "file with --out", file=sys.stderr)  # fmt: skip
        return 2
    module, function = REPORTS[given.report].split(":")
    try:
        found = getattr(import_module(module), function)(given.rounds)
    except ModuleNotFoundError as error:
        print(f"error: {given.report} needs {error.name}, which is not installed here", file=sys.stderr)
        return 2
    if isinstance(found, str):
        print(found)
        return 0
    print("| server | | parameters | median | p20 to p80 |\n|---|---|---:|---:|---|")
    for row in found:
        spread = "" if row.unit == "B" else f"{row.p20:.3g} to {row.p80:.3g}"
        print(f"| {row.case} | {row.candidate} | {row.size:,} | {tables.value(row)} | {spread} |")
    if not given.impatient:
        results.save(found, given.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
