"""One self-contained HTML page: tables, settings and interactive pictures. It loads nothing from a network.

A page is a title and blocks. Each function here makes one block of HTML. page.js draws the pictures from the numbers in
the page, so whoever has the page also has the numbers. matplotlib draws the same pictures for print, from the same
functions. The browser computes nothing except positions on the screen.
"""

from __future__ import annotations

import html
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files

from fastagg.sheet import Sheet

# Okabe and Ito's colours, which colour-blind readers can distinguish. Print and screen share them.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")


def page(title: str, blocks: Iterable[str], note: str = "") -> str:
    """Return a whole document. ``blocks`` are HTML; ``title`` and ``note`` are plain text."""
    style, script = (files(__name__).joinpath(name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        # The page loads nothing. This policy makes the browser enforce it.
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; "
        "script-src 'unsafe-inline'; img-src data:\">\n"
        f"<title>{html.escape(title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n<main>\n"
        f"<h1>{html.escape(title)}</h1>\n"
        + (f'<p class="note">{html.escape(note)}</p>\n' if note else "")
        + "\n".join(blocks)
        + f"\n</main>\n<script>\n{script}</script>\n</body>\n</html>\n"
    )


def heading(text: str) -> str:
    return f"<h2>{html.escape(text)}</h2>"


def paragraph(text: str) -> str:
    return f"<p>{html.escape(text)}</p>"


def table(sheet: Sheet) -> str:
    """Return a table below its title. Its first column names the line. A click on a heading sorts by this column."""
    head = "".join(f"<th>{html.escape(cell)}</th>" for cell in sheet.headings)
    body = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>\n" for row in sheet.rows)
    note = f'<p class="caption">{html.escape(sheet.caption)}</p>' if sheet.caption else ""
    return (
        f'{heading(sheet.title)}<div class="scroll"><table class="sortable"><thead><tr>{head}</tr></thead>\n<tbody>\n'
        f"{body}</tbody></table></div>{note}"
    )


def settings(title: str, values: Mapping[str, object]) -> str:
    """Return a folded list of names and values. Nested mappings become dotted names."""
    rows = "".join(
        f"<tr><td>{html.escape(name)}</td><td>{html.escape(value)}</td></tr>\n" for name, value in flat(values)
    )
    return f'<details><summary>{html.escape(title)}</summary><table class="pairs">{rows}</table></details>'


def text(title: str, content: str) -> str:
    """Return a folded piece of text, unchanged, such as a configuration file."""
    return f"<details><summary>{html.escape(title)}</summary><pre>{html.escape(content)}</pre></details>"


def lines(
    title: str,
    y: str,
    xs: Mapping[str, str],
    series: Sequence[Mapping[str, object]],
    *,
    target: float | None = None,
    log_x: Sequence[str] = (),
    log_y: bool = False,
) -> str:
    """Return a picture of lines. The mouse reads values, the legend hides lines, a menu changes the x axis.

    Args:
        title: the text above it.
        y: the label of the y axis.
        xs: the x axes to choose from, key to label. The first one is shown.
        series: each with ``name`` and ``points``. ``points`` has for each key of ``xs`` a mapping of ``x`` and ``y``
            and, for a band, ``low`` and ``high``. All are lists of the same length.
        target: a horizontal line.
        log_x: the keys of ``xs`` whose axis is logarithmic.
        log_y: whether the y axis is logarithmic.
    """
    data = {
        "title": title, "y": y, "xs": dict(xs), "series": list(series), "target": target, "logX": list(log_x),
        "logY": log_y, "colours": COLOURS,
    }  # fmt: skip
    # "</" would end the script element, but JSON may write it differently. JSON has no NaN.
    written = json.dumps(_finite(data), allow_nan=False).replace("</", "<\\/")
    return f'<figure class="picture"><script type="application/json">{written}</script></figure>'


def flat(values: Mapping[str, object], prefix: str = "") -> list[tuple[str, str]]:
    """Return names and values as text, in order. Nested mappings become dotted names."""
    rows: list[tuple[str, str]] = []
    for name, value in values.items():
        if isinstance(value, Mapping):
            rows += flat(value, f"{prefix}{name}.")
        elif isinstance(value, (list, tuple)):
            rows.append((prefix + name, ", ".join(str(item) for item in value) or "none"))
        else:
            rows.append((prefix + name, str(value)))
    return rows


def _finite(value: object) -> object:
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    if isinstance(value, float):
        return round(value, 6) if math.isfinite(value) else None
    return value
