"""Prints the output of all commands: tables to stdout, errors to stderr."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

import typer

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from fastagg.sheet import Sheet

LONG = 30  # a cell may be folded only if it has more letters than this. In the first column the limit is 45 letters.
GAP = 2  # the number of spaces between columns
VALUE = "value"  # a column with this heading is aligned left, even if it has numbers


def show(sheet: Sheet) -> None:
    """Print a table in the width of the terminal. Columns that do not fit are printed below, as a further table."""
    draw(sheet, _console())


def say(sentence: str) -> None:
    """Print a sentence. In a terminal its lines end between words. In a file the sentence is one line."""
    console = _console()
    console.print(sentence, markup=False, soft_wrap=not console.is_terminal)


def listing(items: Sequence[tuple[str, str, str]]) -> None:
    """Print items of (name, fact, purpose). In a terminal each item has several lines. Elsewhere each has one line."""
    from rich.padding import Padding
    from rich.text import Text

    console = _console()
    if console.is_terminal:
        for name, fact, purpose in items:
            console.print(Text.assemble((name, "bold"), "  ", fact))
            console.print(Padding(Text(purpose), (0, 0, 0, 4)))
        return
    first, second = (max(len(item[column]) for item in items) for column in (0, 1))
    for name, fact, purpose in items:
        print(f"{name:<{first}}  {fact:<{second}}  {purpose}")


def _console() -> Console:
    from rich.console import Console

    return Console(highlight=False)  # without a terminal and the variable COLUMNS, rich's width is 80 letters


def draw(sheet: Sheet, console: Console) -> None:
    """Print a table on ``console``. No text is cut off at any width: long cells are folded."""
    console.print(sheet.title, style="bold", markup=False)
    for number, part in enumerate(_parts(sheet, console.width)):
        if number:
            console.print()
        console.print(part)
    if sheet.caption:
        console.print(sheet.caption, style="dim", markup=False)
    console.print()


def _parts(sheet: Sheet, width: int) -> list[Table]:
    """Divide the columns among tables that fit the width. Each table begins with the first column."""
    columns = [[heading, *cells] for heading, *cells in zip(sheet.headings, *sheet.rows, strict=True)]
    needs = [_need(column, LONG if place else LONG + LONG // 2) for place, column in enumerate(columns)]
    parts, room = [[0]], width - 1 - needs[0]  # 1, because rich adds a space after the last column
    for place in range(1, len(columns)):
        if len(parts[-1]) > 1 and needs[place] + GAP > room:
            parts.append([0])
            room = width - 1 - needs[0]
        parts[-1].append(place)
        room -= needs[place] + GAP
    return [_table(columns, needs, part, width - 1) for part in parts]


def _need(column: Sequence[str], limit: int) -> int:
    """Return a column's least width in letters. A cell of at most ``limit`` letters, or a word of the heading, fits."""
    from rich.cells import cell_len

    heading, *cells = column
    return max(1, *map(cell_len, heading.split()), *(min(cell_len(cell), limit) for cell in cells))


def _table(columns: Sequence[Sequence[str]], needs: Sequence[int], part: Sequence[int], width: int) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.cells import cell_len
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, padding=(0, GAP - 1, 0, 0), show_edge=False)
    widths = {place: min(needs[place], width - (needs[0] + GAP if place else 8)) for place in part}
    spare = width - sum(widths.values()) - GAP * (len(part) - 1)
    for place in part:  # the columns whose cells do not fit yet share the spare width, from left to right
        more = max(min(spare, max(map(cell_len, columns[place])) - widths[place]), 0)
        widths[place] += more
        spare -= more
    for place in part:
        left = place == 0 or not any(cell[:1] in "+-–0123456789" for cell in columns[place][1:])
        left |= columns[place][0] == VALUE
        heading = Text(columns[place][0])
        table.add_column(heading, width=widths[place], justify="left" if left else "right", overflow="fold")
    for line in zip(*(columns[place][1:] for place in part), strict=True):
        table.add_row(*map(Text, line))
    return table


def fail(message: str) -> NoReturn:
    """Print ``message`` as one line on stderr and end with exit code 2."""
    from rich.console import Console

    line = " ".join(message.split())
    Console(stderr=True, soft_wrap=True, highlight=False).print(f"error: {line}", style="red", markup=False)
    raise typer.Exit(2)
