"""Prints the output of all commands: tables to stdout, errors to stderr."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

import typer

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from fastagg.sheet import Sheet

LONG = 30  # longer cells may be folded; in the first column, cells longer than 1.5*LONG
GAP = 2  # letters between columns
VALUE = "value"  # the heading of a column whose cells are all aligned left


def show(sheet: Sheet) -> None:
    """Print a table in the width of the terminal. Columns that do not fit follow below as another table."""
    draw(sheet, _console())


def say(sentence: str) -> None:
    """Print a sentence. In a terminal its lines end between words. In a file the sentence is one line."""
    console = _console()
    console.print(sentence, markup=False, soft_wrap=not console.is_terminal)


def listing(items: Sequence[tuple[str, str, str]]) -> None:
    """Print items of (name, fact, purpose): each on several lines in a terminal, and on one line in a pipe or file."""
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

    return Console(highlight=False)  # 80 columns wide, if there is neither a terminal nor the variable COLUMNS


def draw(sheet: Sheet, console: Console) -> None:
    """Print a table on ``console``. It shows every cell, heading and word of the caption, at any width."""
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
    parts, room = [[0]], width - 1 - needs[0]  # rich pads the last column, too
    for place in range(1, len(columns)):
        if len(parts[-1]) > 1 and needs[place] + GAP > room:
            parts.append([0])
            room = width - 1 - needs[0]
        parts[-1].append(place)
        room -= needs[place] + GAP
    return [_table(columns, needs, part, width - 1) for part in parts]


def _need(column: Sequence[str], limit: int) -> int:
    """Return a column's least width. Cells up to ``limit`` letters and all words of the heading fit into it."""
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
    for place in part:  # spare width goes to columns that would be folded
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
