"""Writes and reads files of results. A file is written under another name and then renamed. So a full disk or a kill
leaves no partial file under the file's own name."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Collection, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, TypeVar

from fastagg._types import Plain
from fastagg.errors import DataError
from fastagg.sim.runs.metrics import ClientRow, DelayRow, EvaluationRow
from fastagg.storage import files

T = TypeVar("T", EvaluationRow, ClientRow, DelayRow)


def write_text(path: Path, text: str) -> None:
    files.write(path, text.encode())


def writing(out: Path) -> AbstractContextManager[None]:
    """Raise the file system's errors in a ``with`` block as DataError."""
    return files.named(f"cannot write results to {out}", DataError)


def check_folder(out: Path) -> None:
    """Raise DataError if ``out`` exists and is not a folder."""
    if out.exists() and not out.is_dir():
        raise DataError(f"cannot write results to {out}: expected a folder, got a file; --out takes another one")


def csv_text(columns: Iterable[str], lines: Iterable[Plain]) -> str:
    """Return CSV with a header. Floats are read back with the same bits. None is an empty cell."""
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, list(columns), lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return buffer.getvalue()


def rows_csv(kind: type[T], rows: Sequence[T]) -> str:
    return csv_text([f.name for f in fields(kind)], map(asdict, rows))


def read_rows(kind: type[T], path: Path) -> list[T]:
    """Read the rows that ``rows_csv`` wrote, with the same bits. DataError: the file is missing or damaged."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            head, *lines = csv.reader(file)
        if head != [f.name for f in fields(kind)] or {len(line) for line in lines} - {len(head)}:
            raise ValueError("the columns are not those of a run")
        return [kind(*map(_value, line)) for line in lines]
    except (OSError, ValueError, TypeError) as error:
        raise DataError(f"cannot read {path}: {error}") from None


def _value(cell: str) -> Any:
    return int(cell) if cell.isdigit() else float(cell) if cell else None


def read_summary(path: Path) -> Plain | None:
    """Read a summary that ``summary_json`` wrote. None: there is no such file. DataError: the file is damaged."""
    return read_json(path, {"interrupted", "time_unit", "wall_seconds"}, "the summary of a run")


def read_json(path: Path, keys: Collection[str] = (), what: str = "a JSON object") -> Plain | None:
    """Read a JSON file, which must have at least these keys. ``what`` is the file's name in messages. None: there is no
    such file. DataError: the file is damaged."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(content, dict) or not content.keys() >= set(keys):
            raise ValueError(f"it is not {what}")
        return content
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise DataError(f"cannot read {path}: {error}") from None


def summary_json(summary: Plain) -> str:
    """Return the summary as JSON. Numbers that are NaN or infinite, such as a diverged run's loss, become null."""
    finite = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in summary.items()}
    return json.dumps(finite, indent=2, allow_nan=False) + "\n"
