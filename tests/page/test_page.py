"""A report is one file that needs no network and no script."""

import base64
import html
import re

from fastagg import page
from fastagg.sheet import Sheet

BLOCKS = [
    page.heading("A & B"),
    page.paragraph("A is <faster> than B."),
    page.table(Sheet("T & U", ["method", "accuracy"], [["<b>bold</b>", "9.5"], ["other", "10.5"]], "What it is.")),
    page.picture("accuracy & loss", b"\x89PNG"),
    page.settings("Settings", {"a": {"b": [1, 2]}, "c": None}),
    page.text("config.toml", 'name = "<x>"'),
]


def written() -> str:
    return page.page("Title <1>", BLOCKS, "a note")


def test_it_loads_and_runs_nothing() -> None:
    text = written()
    assert not re.search(r"https?://|<link|<script|@import|url\(|\bsrc=(?!\"data:)", text)
    assert "default-src 'none'" in text


def test_what_users_write_is_text_and_not_markup() -> None:
    text = written()
    assert "T &amp; U" in text and "A is &lt;faster&gt; than B." in text
    assert "<b>bold</b>" not in text and html.escape("<b>bold</b>") in text
    assert "<title>Title &lt;1&gt;</title>" in text


def test_pictures_stand_in_the_page() -> None:
    (data,) = re.findall(r'alt="accuracy &amp; loss" src="data:image/png;base64,(.*?)"', written())
    assert base64.b64decode(data) == b"\x89PNG"


def test_nested_settings_become_dotted_names() -> None:
    nested = {"a": {"b": [1, 2], "e": True}, "c": [], "d": ["x", "y"]}
    assert page.flat(nested) == [("a.b", "1, 2"), ("a.e", "True"), ("c", "none"), ("d", "x, y")]
