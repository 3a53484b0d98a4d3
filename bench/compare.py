"""Tells whether fastagg became slower: python bench/compare.py OLD NEW, two JSON files of pytest-benchmark or commits.

A row of fastagg is slower if the intervals from p20 to p80 do not overlap and the median grew by more than 3%. If the
memory's speed was measured too, times are first divided by its change, because a slower machine is no regression.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import checkout  # noqa: F401
from measure import is_peer
from results import Row, parse, rows

NOISE = 0.03
Place = tuple[str, str, int, int]  # case, candidate, parameters, threads


def read(name: str) -> list[Row]:
    """Return the rows of a file, or of ``bench/results/`` at a commit.

    Raises:
        ValueError: ``name`` is neither a file nor a commit, or the file has another form.
    """
    if Path(name).is_file():
        return rows(parse(Path(name).read_text(), name, committed=False))
    listed = _git("ls-tree", "--full-tree", "-r", "--name-only", name, "bench/results")
    if listed is None:
        raise ValueError(f"{name}: neither a file nor a commit")
    texts = [_git("show", f"{name}:{path}") or "" for path in listed.split() if path.endswith(".json")]
    return [row for text in texts for row in rows(parse(text, name))]


def _git(*arguments: str) -> str | None:
    done = subprocess.run(["git", *arguments], capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else None


def verdict(old: Row, new: Row) -> tuple[str, float]:
    """Return ``slower``, ``faster`` or ``within noise``, and the new time divided by the old time."""
    pace = 1.0
    if "streams" in old.info and "streams" in new.info:  # pace: how much slower the memory has become
        kinds = old.info["streams"].keys() & new.info["streams"].keys()
        pace = max((old.info["streams"][kind] / new.info["streams"][kind] for kind in kinds), default=1.0)
    ratio = new.median / old.median / pace
    if ratio > 1 + NOISE and new.info["p20"] / pace > old.info["p80"]:
        return "slower", ratio
    if ratio < 1 - NOISE and new.info["p80"] / pace < old.info["p20"]:
        return "faster", ratio
    return "within noise", ratio


def main(names: list[str]) -> int:
    """Print every change. Return 1 if something became slower, 2 if nothing can be compared."""
    try:
        old, new = (_ours(read(name)) for name in names)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    both = [key for key in old if key in new]
    if not both:
        on = [" and ".join(sorted({key[0] for key in side})) or "nothing" for side in (old, new)]
        print(f"error: no row of fastagg's is in both: {on[0]} in the old one, {on[1]} in the new one", file=sys.stderr)
        return 2
    counts = {"slower": 0, "faster": 0, "within noise": 0}
    for key in both:
        said, ratio = verdict(old[key], new[key])
        counts[said] += 1
        if said != "within noise":
            case, candidate, size, threads = key[1]
            print(
                f"{said}: {case}, {candidate}, {size:,} parameters, {threads} threads: {ratio:.2f} times the old time"
            )
    print(", ".join(f"{count} {said}" for said, count in counts.items()))
    return int(counts["slower"] > 0)


def _ours(found: list[Row]) -> dict[tuple[str, Place], Row]:
    """Return fastagg's rows, by processor and place."""
    return {(row.processor, row[:4]): row for row in found if not is_peer(row.candidate)}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
