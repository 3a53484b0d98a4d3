"""What a file holds."""

from __future__ import annotations

from pathlib import Path

from fastagg.errors import DataError


def read_bytes(path: Path) -> bytes:
    """Return a file's bytes. DataError if it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error


def read_text(path: Path) -> str:
    """Return a file's text, without a byte-order mark. DataError if it cannot be read or is not text."""
    try:
        return read_bytes(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"cannot read {path}: expected text in utf-8, got other bytes") from error
