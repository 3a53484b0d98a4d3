"""Measured rows: one JSON object per line, one file per processor. Reading them needs only Python, on any machine.

A row replaces the earlier one with the same case, candidate, size and threads; git has the old ones. Samples are not
stored. Results of a tree with uncommitted changes are not stored.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "bench" / "results"
# The outputs of measuring and reporting do not change what is measured.
WRITTEN = ("bench/results", "docs/performance", "docs/performance.md")
Key = tuple[str, str, str, int, int, str]


@dataclass(frozen=True)
class Row:
    """One candidate at one size.

    Attributes:
        case: one of ``cases/``; ``streams`` for the memory's speed, ``servers`` for whole servers.
        size: d, parameters.
        threads: the threads of fastagg and of torch; 0 on a device.
        unit: the unit of the next three: ``s`` per call or arrival, ``1/s``, ``B`` (bytes), ``B/parameter``.
        ratio: its time over that of the case's first candidate, computed per round: p20, median, p80.
        share: counted bytes per second over the memory's speed in the same run. This is the better of copy and triad
            or, for cases that write nothing, reading.
        versions: the software's versions.
    """

    case: str
    candidate: str
    size: int
    threads: int
    median: float
    p20: float
    p80: float
    unit: str = "s"
    ratio: tuple[float, float, float] | None = None
    share: float | None = None
    processor: str = ""
    versions: str = ""
    commit: str = ""
    date: str = ""

    @property
    def key(self) -> Key:
        """The key by which a newer row replaces an older one."""
        return self.processor, self.case, self.unit, self.size, self.threads, self.candidate

    def line(self) -> str:
        """Return the row as a line of a file, with four digits."""
        return json.dumps({key: _short(value) for key, value in asdict(self).items() if value is not None})


def load(path: Path) -> list[Row]:
    """Read a file of rows, or this suite's JSON from pytest-benchmark.

    Raises:
        ValueError: the file has another form.
    """
    try:
        return parse(path.read_text())
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def load_all(folder: Path = RESULTS) -> list[Row]:
    """Read every file in a folder.

    Raises:
        ValueError: a file has another form, or a row is from a tree with uncommitted changes.
    """
    rows = [row for path in sorted(folder.glob("*.jsonl")) for row in load(path)]
    for row in rows:
        if not re.fullmatch(r"[0-9a-f]{7,40}", row.commit):
            raise ValueError(f"{folder}: {row.case}, {row.candidate}: measured at {row.commit!r}, which is no commit")
    return rows


def load_commit(name: str) -> list[Row]:
    """Read the results in a commit.

    Raises:
        ValueError: there is no such commit, or it has no results.
    """
    listed = _git("ls-tree", "-r", "--name-only", name, "--", "bench/results")
    if listed is None:
        raise ValueError(f"{name}: neither a file nor a commit of this checkout")
    found = [path for path in listed.splitlines() if path.endswith(".jsonl")]
    if not found:
        raise ValueError(f"{name}: a commit without results in bench/results/*.jsonl")
    return [row for path in found for row in parse(_git("show", f"{name}:{path}") or "")]


def parse(text: str) -> list[Row]:
    """Return the rows in a file's text.

    Raises:
        ValueError: the text has another form.
    """
    try:
        if text.lstrip().startswith('{"case"'):
            return [_row(json.loads(line)) for line in text.splitlines() if line.strip()]
        return [_row(one["extra_info"]) for one in json.loads(text)["benchmarks"] if "candidate" in one["extra_info"]]
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"no results of this suite ({type(error).__name__}: {error})") from error


def merged(old: Iterable[Row], new: Iterable[Row]) -> list[Row]:
    """Merge both; the newer of two rows stays. The order does not depend on the time of measurement."""
    found: dict[Key, Row] = {}
    for row in sorted([*old, *new], key=lambda row: row.date):
        found[row.key] = row
    return [found[key] for key in sorted(found)]


def save(rows: Sequence[Row], path: Path | None = None) -> list[Path]:
    """Add rows to ``path``, or to the file of their processor in ``results/``. Return the paths.

    Raises:
        ValueError: ``path`` is None and a row's tree had uncommitted changes.
    """
    places: dict[Path, list[Row]] = {}
    for row in rows:
        if path is None and not re.fullmatch(r"[0-9a-f]{7,40}", row.commit):
            raise ValueError(f"results of {row.commit} are not kept: commit first, or name another file")
        places.setdefault(path or RESULTS / f"{slug(row.processor)}.jsonl", []).append(row)
    for place, new in places.items():
        place.parent.mkdir(parents=True, exist_ok=True)
        old = load(place) if place.is_file() else []
        place.write_text("".join(f"{row.line()}\n" for row in merged(old, new)))
    return list(places)


def commit() -> str:
    """Return the checkout's commit, with ``-dirty`` if a tracked file has changed, or ``unknown`` outside a
    checkout."""
    name = _git("rev-parse", "--short", "HEAD")
    if name is None:
        return "unknown"
    changed = _git("status", "--porcelain", "-uno", "--", ".", *(f":!{path}" for path in WRITTEN))
    return name.strip() + ("-dirty" if changed is None or changed.strip() else "")


def slug(text: str) -> str:
    """Return ``text`` as a file's name."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def _git(*arguments: str) -> str | None:
    command = ["git", "--no-optional-locks", *arguments]
    try:
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=30, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None


def _row(data: dict[str, Any]) -> Row:
    known = {field.name for field in fields(Row)}
    return Row(**{key: tuple(v) if isinstance(v, list) else v for key, v in data.items() if key in known})


def _short(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.4g}")
    return [_short(one) for one in value] if isinstance(value, tuple) else value
