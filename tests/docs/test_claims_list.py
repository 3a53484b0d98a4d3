"""claims.md: what was tried of the pages' sentences. Its pages and tests are there."""

from __future__ import annotations

import re
from pathlib import Path

from .test_snippets import ROOT

LINES = re.findall(
    r"^\| (.+?) \| (.+) \| (.+?) \| (\w+) \|$",
    (Path(__file__).parent / "claims.md").read_text(encoding="utf-8"),
    re.MULTILINE,
)[1:]


def test_there_are_250_and_none_is_false_or_misleading() -> None:
    assert len(LINES) >= 250 and {result for *_, result in LINES} == {"true"}
    assert len({(page, sentence) for page, sentence, *_ in LINES}) == len(LINES)


def test_pages_and_tests_that_they_name_are_there() -> None:
    lost = [page for page, *_ in LINES if not (ROOT / page).is_file() and not page.startswith("fastagg")]
    for file, name in re.findall(r"`([\w/]+\.py)::(\w+)`", "\n".join(how for _, _, how, _ in LINES)):
        path = ROOT / "tests" / file
        if not path.is_file() or f"def {name}(" not in path.read_text(encoding="utf-8"):
            lost.append(f"{file}::{name}")
    assert not lost
