"""Other frameworks' aggregation beside fastagg's, fed the same replies: python bench/integrations.py nvflare"""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))  # a checkout that was not installed

# Each is a function `(rounds: int) -> str` of a module, which imports its framework.
REPORTS = {
    "flower": "integrations_flower:report",
    "flower-processes": "integrations_processes:report",
    "flower-straggler": "integrations_processes:straggling",
    "nvflare": "integrations_nvflare:report",
    "appfl": "integrations_appfl:report",
    "loopback": "integrations_loopback:report",
}


def main() -> None:
    """The command line: prints Markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("report", choices=REPORTS)
    parser.add_argument("--rounds", type=int, default=15, help="samples of each candidate")
    given = parser.parse_args()
    module, function = REPORTS[given.report].split(":")
    print(getattr(import_module(module), function)(given.rounds))


if __name__ == "__main__":
    main()
