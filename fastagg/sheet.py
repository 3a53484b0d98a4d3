"""A table as data. The command line, reports, and files in Markdown and LaTeX show it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Sheet:
    """A table whose first column names each row. ``caption`` explains how to read the table. Empty: there is none."""

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""

    def markdown(self) -> str:
        """Return the table in Markdown, and its caption."""
        rule = ["---", *["---:"] * (len(self.headings) - 1)]
        lines = [[cell.replace("|", r"\|") for cell in line] for line in (self.headings, rule, *self.rows)]
        return "".join(f"| {' | '.join(line)} |\n" for line in lines) + f"\n{self.caption}\n"

    def latex(self, caption: str = "", label: str = "") -> str:
        """Return the table in LaTeX, for the package booktabs. ``caption``: empty: the table's own caption is used.
        ``label``: empty: there is no label."""
        head, *rows = (" & ".join(map(_escaped, line)) + r" \\" for line in (self.headings, *self.rows))
        name = f"\\label{{{label}}}\n" if label else ""
        return (
            f"\\begin{{table}}\n\\centering\n\\caption{{{_escaped(caption or self.caption)}}}\n{name}"
            f"\\begin{{tabular}}{{l{'r' * (len(self.headings) - 1)}}}\n\\toprule\n{head}\n\\midrule\n"
            + "".join(f"{row}\n" for row in rows)
            + "\\bottomrule\n\\end{tabular}\n\\end{table}\n"
        )


# Replacements for characters that have a meaning in LaTeX, or that some LaTeX fonts lack.
_LATEX = {
    "\\": r"\textbackslash{}", **{sign: "\\" + sign for sign in "&%$#_{}"}, "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}", "±": r"$\pm$", "≥": r"$\ge$", "–": "--", "<": r"$<$", ">": r"$>$",
}  # fmt: skip


def _escaped(text: str) -> str:
    return "".join(_LATEX.get(sign, sign) for sign in text)
