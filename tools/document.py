"""Writes the sections ``Keyword Args`` of the presets into fastagg/presets.py: what they pass on, and to whom.

Run ``python tools/document.py`` after a new setting or preset. With ``--check`` it writes nothing, and exits with 1 if
the file is not current. What a setting is stands in the docstring of the part that takes it.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Callable
from pathlib import Path
from textwrap import fill

import fastagg
from fastagg.server.settings import RULES

FILE = Path(__file__).resolve().parents[1] / "fastagg" / "presets.py"
PARTS = (fastagg.Buffer, fastagg.Optimizer)
SECTION = re.compile(r"    Keyword Args:\n(?: {8}.*\n)+\n")


def explanations(documented: type) -> list[str]:
    """Return the names of the arguments that a class's documentation explains."""
    sections = re.findall(r"^(?:Args|Attributes):\n((?: {4}.*\n)+)", f"{inspect.getdoc(documented)}\n", re.MULTILINE)
    groups = re.findall(r"^ {4}(\w+(?:, \w+)*):", "".join(sections), re.MULTILINE)
    return [name for names in groups for name in names.split(", ")]


def section(preset: Callable[..., object]) -> str:
    """Return the section that names what a preset passes on."""
    own = inspect.signature(inspect.unwrap(preset)).parameters
    names = [name for name in inspect.signature(preset).parameters if name not in own]
    owners = dict.fromkeys(RULES, "Server") | {name: part.__name__ for part in PARTS for name in explanations(part)}
    groups = {owner: [name for name in names if owners[name] == owner] for owner in map(owners.get, names)}
    items = [f"{', '.join(group)}: see :class:`fastagg.{owner}`." for owner, group in groups.items()]
    return "\n".join(["    Keyword Args:", *map(wrapped, items), "", ""])


def wrapped(item: str) -> str:
    """Return an item of a section in lines of at most 120 characters."""
    return fill(item, 120, initial_indent=" " * 8, subsequent_indent=" " * 12, break_on_hyphens=False)


def documented(text: str) -> str:
    """Return the text of presets.py in which every preset has a current section."""
    lines = text.splitlines(keepends=True)
    presets = fastagg.registry.presets()
    for node in reversed([node for node in ast.parse(text).body if getattr(node, "name", None) in presets]):
        place = slice(node.body[0].lineno - 1, node.body[0].end_lineno)
        bare = SECTION.sub("", "".join(lines[place]))
        start, mark, end = re.split(r"(?m)^(    (?:Raises|Example):)", bare, maxsplit=1)
        lines[place] = [f"{start}{section(presets[node.name])}{mark}{end}"]
    return "".join(lines)


def main(is_check: bool) -> int:
    before = FILE.read_text(encoding="utf-8")
    after = documented(before)
    if after != before:
        print(f"{FILE}: {'not current; run python tools/document.py' if is_check else 'written'}")
        if not is_check:
            FILE.write_text(after, encoding="utf-8")
    return int(is_check and after != before)


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv))
