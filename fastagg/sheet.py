"""A table as data. The terminal, a report and Markdown draw the same one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Sheet:
    """A table whose first column names the line. ``caption`` says how to read it."""

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""

    def markdown(self) -> str:
        """Return the table in Markdown, and its caption."""
        rule = ["---", *["---:"] * (len(self.headings) - 1)]
        lines = [[cell.replace("|", r"\|") for cell in line] for line in (self.headings, rule, *self.rows)]
        return "".join(f"| {' | '.join(line)} |\n" for line in lines) + f"\n{self.caption}\n"
