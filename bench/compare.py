"""Finds fastagg's own figures that became worse: python bench/compare.py OLD NEW

OLD and NEW are files of rows, JSON of pytest-benchmark, or commits, whose bench/results/ is read. From a million
parameters on, times are compared relative to the streams of the same run, so that a slower machine does not look like
slower code. Shorter times are compared directly. A change counts if the two spreads (p20 to p80) do not overlap and the
medians differ by more than 3%.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import results
from results import Row

LEAST = 0.03
STREAMING = 1_000_000  # with fewer parameters the streams measure the cost of a call, not of memory
OURS = "fastagg"


@dataclass(frozen=True)
class Change:
    """One row in both: new time over old at the medians, and whether the change is larger than noise."""

    old: Row
    new: Row
    ratio: float
    verdict: str  # slower | faster | ""


def changes(old: Sequence[Row], new: Sequence[Row]) -> list[Change]:
    """Return every row of fastagg's that is in both and was measured again."""
    before = {row.key: row for row in old if row.candidate.startswith(OURS) and row.unit == "s"}
    return [_change(before[row.key], row) for row in new if row.key in before and before[row.key] != row]


def main(arguments: list[str] | None = None) -> int:
    """Print a table. Return 1 if something became slower, 2 if nothing can be compared."""
    parser = argparse.ArgumentParser(prog="fastagg bench --compare", description=__doc__)
    parser.add_argument("old", help="a file or a commit")
    parser.add_argument("new", help="a file or a commit")
    given = parser.parse_args(arguments)
    try:
        old, new = _rows(given.old), _rows(given.new)
    except ValueError as error:
        return _fail(str(error))
    found = changes(old, new)
    if not found:
        common = {row.key for row in old if row.candidate.startswith(OURS)} & {row.key for row in new}
        if common:
            print(f"The same {len(common)} rows of fastagg's in both: nothing was measured in between.")
            return 0
        processors = " and ".join(", ".join(sorted({row.processor for row in rows})) for rows in (old, new))
        return _fail(f"no case, size, thread count and processor of fastagg's is in both (processors: {processors})")
    _print(found)
    return 1 if any(change.verdict == "slower" for change in found) else 0


def _rows(given: str) -> list[Row]:
    return results.load(Path(given)) if Path(given).is_file() else results.load_commit(given)


def _change(old: Row, new: Row) -> Change:
    raw = new.median / old.median
    machine = 1.0  # how much slower the streams were in the new run
    if new.size >= STREAMING and old.share and new.share:
        machine = raw * new.share / old.share
    ratio = raw / machine
    verdict = ""
    if ratio > 1 + LEAST and new.p20 / machine > old.p80:
        verdict = "slower"
    elif ratio < 1 - LEAST and new.p80 / machine < old.p20:
        verdict = "faster"
    return Change(old, new, ratio, verdict)


def _print(found: list[Change]) -> None:
    for name, rows in (("old", [change.old for change in found]), ("new", [change.new for change in found])):
        commits = ", ".join(sorted({f"{row.commit} ({row.date[:10]})" for row in rows}))
        print(f"{name}: {commits}, on {', '.join(sorted({row.processor for row in rows}))}")
    print("\n| case | candidate | d | threads | old, ms | new, ms | new / old | |")
    print("|---|---|---|---|---|---|---|---|")
    for change in sorted(found, key=lambda change: -change.ratio):
        row = change.new
        print(
            f"| {row.case} | {row.candidate} | {row.size:,} | {row.threads} | {1e3 * change.old.median:.4g} | "
            f"{1e3 * row.median:.4g} | {change.ratio:.2f} | {change.verdict} |"
        )
    counts = {verdict: sum(c.verdict == verdict for c in found) for verdict in ("slower", "faster", "")}
    print(f"\n{counts['slower']} slower, {counts['faster']} faster, {counts['']} within noise.")


def _fail(message: str) -> int:
    print(f"error: {message}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
