"""A report is one file that needs no network, and a browser draws its pictures."""

from __future__ import annotations

import html
import json
import math
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from fastagg import page
from fastagg.sheet import Sheet

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
SERIES = [
    {"name": "first </script>", "points": {"time": {"x": [0, 1, 10], "y": [10.0, 50.0, 90.0]}}},
    {
        "name": "second",
        "points": {"time": {"x": [0, 5], "y": [20.0, 30.0], "low": [18.0, 28.0], "high": [22.0, 32.0]}},
    },
]
BLOCKS = [
    page.heading("A & B"),
    page.paragraph("A is <faster> than B."),
    page.table(Sheet("T & U", ["method", "accuracy"], [["<b>bold</b>", "9.5"], ["other", "10.5"]], "What it is.")),
    page.lines("Accuracy", "accuracy (%)", {"time": "virtual time"}, SERIES, target=95.0),
    page.lines("Delays", "share", {"time": "delay"}, SERIES, log_x=["time"], log_y=True),
    page.settings("Settings", {"a": {"b": [1, 2]}, "c": None}),
    page.text("config.toml", 'name = "<x>"'),
]


def written() -> str:
    return page.page("Title <1>", BLOCKS, "a note")


def test_it_loads_nothing() -> None:
    text = written().replace("http://www.w3.org/2000/svg", "")  # a name space, which nobody fetches
    assert not re.search(r"https?://|<link|<img|\bsrc=|@import|url\((?!#)", text)
    assert "default-src 'none'" in text


def test_what_users_write_is_text_and_not_markup() -> None:
    text = written()
    assert "T &amp; U" in text and "A is &lt;faster&gt; than B." in text
    assert "<b>bold</b>" not in text and html.escape("<b>bold</b>") in text
    assert text.count("</script>") == text.count("<script")  # a name cannot end the script it stands in
    assert "<title>Title &lt;1&gt;</title>" in text


def test_the_numbers_stand_in_the_page() -> None:
    found = re.findall(r'<script type="application/json">(.*?)</script>', written(), re.DOTALL)
    first = json.loads(found[0])
    assert [line["name"] for line in first["series"]] == ["first </script>", "second"]
    assert first["series"][0]["points"]["time"]["y"] == [10.0, 50.0, 90.0]


def test_what_is_not_finite_becomes_null() -> None:
    points = {"time": {"x": [0, 1], "y": [math.nan, 1.0]}}
    block = page.lines("t", "y", {"time": "x"}, [{"name": "a", "points": points}])
    (line,) = json.loads(re.findall(r"json\">(.*?)</script>", block)[0])["series"]
    assert line["points"]["time"]["y"] == [None, 1.0]


def test_nested_settings_become_dotted_names() -> None:
    assert page.flat({"a": {"b": [1, 2]}, "c": [], "d": True}) == [("a.b", "1, 2"), ("c", "none"), ("d", "True")]


@pytest.mark.skipif(BROWSER is None, reason="no Chromium here")
def test_a_browser_draws_it(tmp_path: Path) -> None:
    (tmp_path / "report.html").write_text(written(), encoding="utf-8")
    done = subprocess.run(
        [
            str(BROWSER), "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
            "--disable-background-networking", "--disable-component-update", "--disable-sync",
            f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=3000", "--dump-dom",
            (tmp_path / "report.html").as_uri(),
        ],
        capture_output=True, text=True, timeout=240, check=True,
    )  # fmt: skip
    seen = done.stdout
    assert 'data-drawn="yes"' in seen  # the script ran to its end
    assert seen.count("<svg") == 2
    assert len(re.findall(r"<polyline[^>]*class=\"series\"", seen)) == 4
    assert seen.count("<polygon") == 2  # the band, in both pictures
    assert not re.search(r"NaN|undefined|Infinity", seen.split("<script>")[0])
    ends = re.findall(r'<polyline points="([^"]+)"', seen)[0].split()
    first, last = ([float(number) for number in end.split(",")] for end in (ends[0], ends[-1]))
    assert first[0] < last[0] and first[1] > last[1]  # time goes right, accuracy goes up
