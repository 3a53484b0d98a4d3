"""Reads the files that a recipe names. Every error is a DataError, and its message has the file's path."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from pathlib import Path

from fastagg.errors import DataError


def beside_data(name: str, folder: str | None) -> Path:
    """Return the path of a file. This is ``name``, or ``name`` in the data's ``folder`` if only that file exists."""
    path = Path(name).expanduser()
    inside = path if folder is None else Path(folder).expanduser() / name
    return inside if inside.is_file() and not path.is_file() else path


def read_bytes(path: Path) -> bytes:
    """Return a file's bytes. DataError: the file cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error


def read_text(path: Path) -> str:
    """Return a file's text, without a byte-order mark. DataError: the file cannot be read, or is not UTF-8."""
    try:
        return read_bytes(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"cannot read {path}: expected text in utf-8, got other bytes") from error


def intervals(
    path: Path, key: str, columns: Sequence[str], *, low: float = -math.inf, high: float = math.inf, what: str = ""
) -> dict[str, list[tuple[float, float]]]:
    """Read a CSV file of time spans. Return each client's (begin, end) pairs, by the client's name. A line is a client,
    a begin and an end, with low <= begin < end <= high. A first line with the names of ``columns`` is skipped.

    DataError: a line is invalid, or there is no line. The message has ``key``, the invalid line, the ``columns`` and
    ``what``, a text about the limits of times.
    """
    spans: dict[str, list[tuple[float, float]]] = {}
    lines, names = csv.reader(io.StringIO(read_text(path), newline="")), ",".join(columns)
    try:
        for line in lines:
            cells = [cell.strip() for cell in line]
            if not cells or (not spans and [cell.lower() for cell in cells] == list(columns)):
                continue
            client, begin, end = cells[0], *map(float, cells[1:])
            if not (low <= begin < end <= high and math.isfinite(end - begin)):
                raise ValueError
            spans.setdefault(client, []).append((begin, end))
    except (ValueError, csv.Error):
        got = f"expected {names}{what}, got {','.join(line)!r:.80}"
        raise DataError(f"{key}: {path}, line {lines.line_num}: {got}") from None
    if not spans:
        raise DataError(f"{key}: {path}: expected lines of {names}, got none")
    return spans
