"""A tracker of one's own."""

from collections.abc import Mapping
from typing import Any


class RowTracker:
    """Keeps its rows and counts how often it was closed. ``fails``: it loses every row with an error."""

    def __init__(self, fails: bool = False) -> None:
        self.rows: list[tuple[dict[str, Any], int]] = []
        self.closed, self.fails = 0, fails

    def log(self, row: Mapping[str, Any], step: int) -> None:
        if self.fails:
            raise OSError("no route to host")
        self.rows.append((dict(row), step))

    def close(self) -> None:
        self.closed += 1
