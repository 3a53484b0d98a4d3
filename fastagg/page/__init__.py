"""Makes a self-contained HTML page of tables, settings and pictures. The page has no scripts and loads no files.

A page has a title and blocks. :func:`page` makes the page, :func:`flat` a table's rows, each other function a block.
The simulator's reports use this module.
"""

from __future__ import annotations

import base64
import html
from collections.abc import Iterable, Mapping
from importlib.resources import files

from fastagg.sheet import Sheet

# Okabe and Ito's colours for the lines of plots. Colour-blind readers can distinguish these colours.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")


def page(title: str, blocks: Iterable[str], note: str = "") -> str:
    """Return a whole HTML document. ``blocks`` are HTML. ``title`` and ``note`` are plain text."""
    style = files(__name__).joinpath("page.css").read_text(encoding="utf-8")
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        # With this policy, browsers load nothing for the page, whatever its blocks name.
        '<meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; style-src 'unsafe-inline'; img-src data:\">\n"
        f"<title>{html.escape(title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n<main>\n"
        f"<h1>{html.escape(title)}</h1>\n"
        + (f'<p class="note">{html.escape(note)}</p>\n' if note else "")
        + "\n".join(blocks)
        + "\n</main>\n</body>\n</html>\n"
    )


def heading(text: str) -> str:
    return f"<h2>{html.escape(text)}</h2>"


def paragraph(text: str) -> str:
    return f"<p>{html.escape(text)}</p>"


def table(sheet: Sheet) -> str:
    """Return a sheet as HTML: its title, its table, and its caption, if there is one."""
    head = "".join(f"<th>{html.escape(cell)}</th>" for cell in sheet.headings)
    body = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>\n" for row in sheet.rows)
    note = f'<p class="caption">{html.escape(sheet.caption)}</p>' if sheet.caption else ""
    return (
        f'{heading(sheet.title)}<div class="scroll"><table><thead><tr>{head}</tr></thead>\n<tbody>\n'
        f"{body}</tbody></table></div>{note}"
    )


def settings(title: str, values: Mapping[str, object]) -> str:
    """Return a collapsed table of names and values. A click shows the table. Nested mappings get dotted names."""
    rows = "".join(
        f"<tr><td>{html.escape(name)}</td><td>{html.escape(value)}</td></tr>\n" for name, value in flat(values)
    )
    return f'<details><summary>{html.escape(title)}</summary><table class="pairs">{rows}</table></details>'


def text(title: str, content: str) -> str:
    """Return a collapsed block with an unchanged text, such as a configuration file. A click shows the text."""
    return f"<details><summary>{html.escape(title)}</summary><pre>{html.escape(content)}</pre></details>"


def picture(title: str, png: bytes) -> str:
    data = base64.b64encode(png).decode()
    return f'<figure><img alt="{html.escape(title)}" src="data:image/png;base64,{data}"></figure>'


def flat(values: Mapping[str, object], prefix: str = "") -> list[tuple[str, str]]:
    """Return pairs of a name and a value as text, in the order of ``values``. Nested mappings get dotted names. A list
    becomes its items with commas, or ``none`` if it is empty."""
    rows: list[tuple[str, str]] = []
    for name, value in values.items():
        if isinstance(value, Mapping):
            rows += flat(value, f"{prefix}{name}.")
        elif isinstance(value, (list, tuple)):
            rows.append((prefix + name, ", ".join(str(item) for item in value) or "none"))
        else:
            rows.append((prefix + name, str(value)))
    return rows
