"""Data in files: the folder that is named, and what a file holds."""

from __future__ import annotations

from pathlib import Path

from fastagg.errors import DataError


def existing(name: str, given: str | None, needs: str) -> Path:
    """Return the folder ``given`` of the data ``name``. DataError if it is not named or does not exist."""
    if given is None:
        raise DataError(f"data {name!r} is read from a folder, name it with --data-dir (data.dir): {needs}")
    folder = Path(given).expanduser()
    if not folder.is_dir():
        raise DataError(f"the data folder {given} does not exist: expected a folder with {needs}")
    return folder


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
