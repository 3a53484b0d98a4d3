"""The folder of a run: config.toml, metrics.csv, clients.csv, delays.csv, summary.json, accuracy.png, checkpoint.pt.

During a run, metrics.csv and checkpoint.pt have the state of the last checkpoint. summary.json is written at the end.

Each file is written under another name and then renamed. So after a full disk or a kill it is the old file or the new
one, never half of one.
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import MISSING, asdict, fields
from pathlib import Path
from typing import Any, TypeVar

from fastagg._types import Plain
from fastagg.errors import DataError
from fastagg.sim.one.metrics import ClientRow, DelayRow, Row

T = TypeVar("T", Row, ClientRow, DelayRow)


def replace_file(path: Path, write: Callable[[Path], None]) -> None:
    """Let ``write`` fill a temporary file in ``path``'s folder, then rename it to ``path``."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        write(temporary)
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        with suppress(FileNotFoundError):
            temporary.unlink()


def check_folder(out: Path) -> None:
    """Raise DataError if ``out`` is no folder and cannot become one."""
    if out.exists() and not out.is_dir():
        raise DataError(f"cannot write results to {out}: expected a folder, got a file; --out takes another one")


def begun(folder: Path) -> str:
    """Return what run ``folder`` contains: "a finished run", "an interrupted run", "an unfinished run", or ""."""
    summary = read_summary(folder / "summary.json") if folder.is_dir() else None
    if summary is not None:
        return "an interrupted run" if summary["interrupted"] else "a finished run"
    return "an unfinished run" if (folder / "checkpoint.pt").exists() else ""


def tidy(folder: Path) -> None:
    """Remove files that a killed process left half-written in ``folder``."""
    for path in folder.glob("*.partial"):
        path.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    def write(temporary: Path) -> None:
        temporary.write_text(text, encoding="utf-8", newline="\n")

    replace_file(path, write)


def rows_csv(kind: type[T], rows: Sequence[T]) -> str:
    """Return the rows as CSV with a header. Floats read back to the same bits; None is an empty cell."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow([f.name for f in fields(kind)])
    for row in rows:
        writer.writerow(asdict(row).values())
    return buffer.getvalue()


def read_rows(kind: type[T], path: Path) -> list[T]:
    """Read what ``rows_csv`` wrote, to the same bits. DataError if it is missing or damaged.

    Columns at the end may be missing, because an older version did not write them.
    """
    known = fields(kind)
    try:
        with path.open(encoding="utf-8", newline="") as file:
            lines = list(csv.reader(file))
        if not lines or lines[0] != [f.name for f in known[: len(lines[0])]]:
            raise ValueError("the columns are not those of a run")
        needed = [f for f in known if f.default is MISSING]
        if len(lines[0]) < len(needed):
            raise ValueError("columns are missing")
        return [
            kind(*(_value(cell, str(f.type)) for cell, f in zip(line, known[: len(lines[0])], strict=True)))
            for line in lines[1:]
        ]
    except (OSError, ValueError) as error:
        raise DataError(f"cannot read {path}: {error}") from None


def _value(cell: str, kind: str) -> Any:
    if not cell and kind.endswith("None"):
        return None
    return int(cell) if kind == "int" else float(cell)


def read_summary(path: Path) -> Plain | None:
    """Read what ``summary_json`` wrote; None if there is no such file. DataError if it is damaged."""
    try:
        summary = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(summary, dict) or not {"interrupted", "time_unit", "wall_seconds"} <= set(summary):
            raise ValueError("it is not the summary of a run")
        return summary
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise DataError(f"cannot read {path}: {error}") from None


def summary_json(summary: Plain) -> str:
    """Return the summary as JSON; a NaN or infinite loss (a diverged run) becomes null."""
    finite = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in summary.items()}
    return json.dumps(finite, indent=2, allow_nan=False) + "\n"
