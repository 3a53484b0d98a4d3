"""Which of fastagg's own figures became worse: python bench/compare.py old.json new.json

Times of two runs are compared relative to the in-place streams that each run measured beside them, so that a machine
that is slower today is not blamed on the code; without streams, and below a million parameters, as they are. A change
counts when the two spreads (p20 to p80) do not overlap and the medians differ by more than 3%.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path

from records import Record, Row, load

LEAST = 0.03
STREAMING = 1_000_000  # below this many parameters the streams show what a call costs, not what memory gives
Key = tuple[str, str, int, int, int]


@dataclass(frozen=True)
class Change:
    """One row in both files: new time over old at the medians, and whether that is beyond noise."""

    key: Key
    old: float
    new: float
    ratio: float
    verdict: str  # slower | faster | ""


def changes(old: Record, new: Record) -> list[Change]:
    """Every row of fastagg's that both files have."""
    before, after = _own(old), _own(new)
    return [_change(key, before[key], after[key]) for key in after if key in before]


def main(arguments: list[str] | None = None) -> int:
    """Print a table; 1 when something became slower, 2 when a file cannot be read or nothing can be compared."""
    parser = argparse.ArgumentParser(prog="fastagg bench --compare", description=__doc__)
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    given = parser.parse_args(arguments)
    try:
        old, new = load(given.old), load(given.new)
    except ValueError as error:
        return _fail(str(error))
    found = changes(old, new)
    if not found:
        return _fail("the two files have no row of fastagg's in common")
    _print(found, old, new)
    return 1 if any(change.verdict == "slower" for change in found) else 0


def _own(record: Record) -> dict[Key, Row]:
    return {
        (row.operation, row.candidate, row.size, row.threads, row.clients): row
        for row in record.rows
        if row.candidate.startswith("fastagg") and row.seconds is not None
    }


def _change(key: Key, old: Row, new: Row) -> Change:
    assert old.seconds is not None and new.seconds is not None
    raw = new.seconds[1] / old.seconds[1]
    machine = 1.0  # how much slower the streams ran in the new file
    if key[2] >= STREAMING and old.of_in_place and new.of_in_place:
        machine = raw * new.of_in_place / old.of_in_place
    p20, p50, p80 = (seconds / machine for seconds in new.seconds)
    ratio = p50 / old.seconds[1]
    verdict = ""
    if ratio > 1 + LEAST and p20 > old.seconds[2]:
        verdict = "slower"
    elif ratio < 1 - LEAST and p80 < old.seconds[0]:
        verdict = "faster"
    return Change(key, old.seconds[1], new.seconds[1], ratio, verdict)


def _print(found: list[Change], old: Record, new: Record) -> None:
    for name, record in (("old", old), ("new", new)):
        about = record.machine
        print(f"{name}: {about.get('commit')}, {about.get('device')}, {about.get('date')}")
    if old.machine.get("device") != new.machine.get("device"):
        print("The devices differ: the streams' speed is taken out, nothing else is.")
    print("\n| operation | candidate | d | threads | clients | old, ms | new, ms | new / old | |")
    print("|---|---|---|---|---|---|---|---|---|")
    for change in sorted(found, key=lambda c: -c.ratio):
        operation, candidate, size, threads, clients = change.key
        print(
            f"| {operation} | {candidate} | {size:,} | {threads} | {clients or ''} | {1e3 * change.old:.4g} | "
            f"{1e3 * change.new:.4g} | {change.ratio:.2f} | {change.verdict} |"
        )
    counts = {verdict: sum(c.verdict == verdict for c in found) for verdict in ("slower", "faster", "")}
    print(f"\n{counts['slower']} slower, {counts['faster']} faster, {counts['']} within noise.")


def _fail(message: str) -> int:
    print(f"error: {message}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
