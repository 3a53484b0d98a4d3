"""Other frameworks' aggregation beside fastagg's, fed the same replies: python bench/integrations.py nvflare"""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))  # a checkout that was not installed

# Each is a module with `report(rounds: int) -> str`, which imports its framework.
FRAMEWORKS = {name: f"integrations_{name}" for name in ("flower", "nvflare", "appfl")}


def main() -> None:
    """The command line: prints Markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("framework", choices=FRAMEWORKS)
    parser.add_argument("--rounds", type=int, default=15, help="samples of each candidate")
    given = parser.parse_args()
    print(import_module(FRAMEWORKS[given.framework]).report(given.rounds))


if __name__ == "__main__":
    main()
