"""Measured rows: one JSON object a line, one file a processor. It needs nothing but Python: any machine reads them.

A row replaces the one before it of the same case, candidate, size and threads; git has what was there. No samples are
kept, and nothing of a tree that was changed since its commit.
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
# What measuring and reporting write themselves does not change what is measured.
WRITTEN = ("bench/results", "docs/performance", "docs/performance.md")
Key = tuple[str, str, str, int, int, str]


@dataclass(frozen=True)
class Row:
    """One candidate at one size.

    Attributes:
        case: which of ``cases/``; ``streams`` for what memory gives, ``servers`` for whole ones.
        size: d, parameters.
        threads: of fastagg and of torch; 0 on a device.
        unit: of the next three: ``s`` per call or arrival, ``1/s``, ``B`` (bytes), ``B/parameter``.
        ratio: its time over that of the case's first candidate, taken round by round: p20, median, p80.
        share: counted bytes per second over what memory gave in the same run: to the better of copy and triad, or, for
            cases that write nothing, to reading.
        versions: of the software.
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
        """What a newer row replaces."""
        return self.processor, self.case, self.unit, self.size, self.threads, self.candidate

    def line(self) -> str:
        """As it stands in a file, with four digits."""
        return json.dumps({key: _short(value) for key, value in asdict(self).items() if value is not None})


def load(path: Path) -> list[Row]:
    """Read a file of rows, or pytest-benchmark's JSON of this suite.

    Raises:
        ValueError: it is neither.
    """
    try:
        return parse(path.read_text())
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def load_all(folder: Path = RESULTS) -> list[Row]:
    """Read every file of a folder.

    Raises:
        ValueError: one of them holds something else, or a row of a tree that was changed since its commit.
    """
    rows = [row for path in sorted(folder.glob("*.jsonl")) for row in load(path)]
    for row in rows:
        if not re.fullmatch(r"[0-9a-f]{7,40}", row.commit):
            raise ValueError(f"{folder}: {row.case}, {row.candidate}: measured at {row.commit!r}, which is no commit")
    return rows


def load_commit(name: str) -> list[Row]:
    """Read the results that a commit has.

    Raises:
        ValueError: there is no such commit, or it has none.
    """
    listed = _git("ls-tree", "-r", "--name-only", name, "--", "bench/results")
    if listed is None:
        raise ValueError(f"{name}: neither a file nor a commit of this checkout")
    found = [path for path in listed.splitlines() if path.endswith(".jsonl")]
    if not found:
        raise ValueError(f"{name}: a commit without results in bench/results/*.jsonl")
    return [row for path in found for row in parse(_git("show", f"{name}:{path}") or "")]


def parse(text: str) -> list[Row]:
    """Rows of a file's text.

    Raises:
        ValueError: it holds something else.
    """
    try:
        if text.lstrip().startswith('{"case"'):
            return [_row(json.loads(line)) for line in text.splitlines() if line.strip()]
        return [_row(one["extra_info"]) for one in json.loads(text)["benchmarks"] if "candidate" in one["extra_info"]]
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"no results of this suite ({type(error).__name__}: {error})") from error


def merged(old: Iterable[Row], new: Iterable[Row]) -> list[Row]:
    """Both, the newer of each, in an order that does not depend on when they were measured."""
    found: dict[Key, Row] = {}
    for row in sorted([*old, *new], key=lambda row: row.date):
        found[row.key] = row
    return [found[key] for key in sorted(found)]


def save(rows: Sequence[Row], path: Path | None = None) -> list[Path]:
    """Add rows to ``path``, or to the file of their processor in ``results/``; return where they are.

    Raises:
        ValueError: no ``path``, and a row's tree was changed since its commit.
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
    """The checkout's commit, with ``-dirty`` if a tracked file was changed since, ``unknown`` outside a checkout."""
    name = _git("rev-parse", "--short", "HEAD")
    if name is None:
        return "unknown"
    changed = _git("status", "--porcelain", "-uno", "--", ".", *(f":!{path}" for path in WRITTEN))
    return name.strip() + ("-dirty" if changed is None or changed.strip() else "")


def slug(text: str) -> str:
    """As the name of a file."""
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
