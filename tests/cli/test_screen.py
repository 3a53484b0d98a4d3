"""Tables lose nothing in any terminal: every cell, heading and word of a caption is there, in lines that fit."""

import io

from hypothesis import example, given
from hypothesis import strategies as st
from rich.console import Console

from fastagg.cli import screen
from fastagg.cli.runs import catalogue
from fastagg.cli.screen import draw
from fastagg.sheet import Sheet


def drawn(sheet: Sheet, width: int) -> str:
    console = Console(width=width, record=True, file=io.StringIO(), highlight=False)
    draw(sheet, console)
    return console.export_text()


def complete(sheet: Sheet, width: int) -> None:
    """Assert that nothing of ``sheet`` is lost at this width. Words that are longer than a column are folded."""
    text = drawn(sheet, width)
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text
    tight = "".join(text.split())
    for cell in (*sheet.headings, *(cell for row in sheet.rows for cell in row), *sheet.caption.split()):
        for word in cell.split():
            if len(word) <= min(12, width // 4):
                assert word in text, (word, text)
            else:  # it may be broken anywhere, and a broken part stands beside those of other columns
                assert word[:3] in tight, (word, text)


WORDS = st.text("abcdefgh0123456789.", min_size=1, max_size=12)
CELLS = st.lists(WORDS, min_size=1, max_size=6).map(" ".join)


@st.composite
def sheets(draw):
    columns = draw(st.integers(1, 12))
    line = st.lists(CELLS, min_size=columns, max_size=columns)
    return Sheet("title", draw(line), draw(st.lists(line, min_size=1, max_size=4)), draw(CELLS))


@given(sheets(), st.integers(60, 200))
@example(Sheet("title", ["a"], [["b"]]), 60)
def test_nothing_is_lost_at_any_width(sheet, width):
    complete(sheet, width)


def test_a_table_that_fits_is_one_and_each_further_one_begins_with_the_first_column():
    sheet = Sheet("t", ["name", *"abc"], [["one", *["12345678"] * 3]])
    assert drawn(sheet, 80).count("name") == 1
    folded = drawn(sheet, 20)
    assert folded.count("name") == folded.count("one") == 3 and folded.count("12345678") == 3


def test_recipes_are_listed_completely_at_eighty_columns(monkeypatch):
    console = Console(width=80, force_terminal=True, color_system=None, record=True, file=io.StringIO())
    monkeypatch.setattr(screen, "_console", lambda: console)
    known = [one[:3] for one in catalogue()]
    screen.listing(known)
    text = console.export_text()
    assert max(map(len, text.splitlines())) <= 80
    flat = " ".join(text.split())
    assert all(" ".join(" ".join(one).split()) in flat for one in known)
