"""Writes the sections ``Keyword Args`` of :class:`fastagg.Server` and of the presets into the source.

Run ``python tools/document.py`` after a change to a setting. With ``--check`` it writes nothing, names the files that
are not current, and exits with 1. A setting's text stands where it is declared: in ``fastagg/server/settings.py``, or
under ``Args`` of the part that takes it. ``Server`` shows it. A preset names its settings, and who explains them.
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

ROOT = Path(__file__).resolve().parents[1]
PARTS = (fastagg.Buffer, fastagg.Optimizer)
# The files, what they document, and whether each setting's text is shown whole.
SECTIONS = {
    "fastagg/server/server.py": ({"Server": fastagg.Server.__init__}, True),
    "fastagg/presets.py": (fastagg.registry.presets(), False),
}
SECTION = re.compile(r"    Keyword Args:\n(?: {8}.*\n)+\n")


def explanations(documented: type) -> list[str]:
    """Return the names of the arguments that a class's documentation explains."""
    sections = re.findall(r"^(?:Args|Attributes):\n((?: {4}.*\n)+)", f"{inspect.getdoc(documented)}\n", re.MULTILINE)
    return [
        name
        for names in re.findall(r"^ {4}(\w+(?:, \w+)*):", "".join(sections), re.MULTILINE)
        for name in names.split(", ")
    ]


def section(function: Callable[..., object], is_whole: bool) -> str:
    """Return the section that explains what a function passes on."""
    own = inspect.signature(inspect.unwrap(function)).parameters
    names = [name for name in inspect.signature(function).parameters if name not in own]
    if is_whole:
        items = [f"{name}: {RULES[name].meaning}" for name in names]
    else:
        owners = {name: "Server" for name in RULES} | {
            name: part.__name__ for part in PARTS for name in explanations(part)
        }
        groups = {owner: [name for name in names if owners[name] == owner] for owner in map(owners.get, names)}
        items = [f"{', '.join(group)}: see :class:`fastagg.{owner}`." for owner, group in groups.items()]
    return "\n".join(["    Keyword Args:", *map(wrapped, items), "", ""])


def wrapped(item: str) -> str:
    """Return an item of a section in lines of at most 120 characters. What is code is not torn."""
    code = re.sub("``.+?``", lambda match: match[0].replace(" ", "\0"), item)
    return fill(code, 120, initial_indent=" " * 8, subsequent_indent=" " * 12, break_on_hyphens=False).replace(
        "\0", " "
    )


def documented(path: Path, functions: dict[str, Callable[..., object]], is_whole: bool) -> str:
    """Return the text of a file in which the documentation of these functions and classes has a current section."""
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    tree = ast.parse("".join(lines))
    for node in reversed([node for node in tree.body if getattr(node, "name", None) in functions]):
        place = slice(node.body[0].lineno - 1, node.body[0].end_lineno)
        text = SECTION.sub("", "".join(lines[place]))
        start, mark, end = re.split(r"(?m)^(    (?:Raises|Example):)", text, maxsplit=1)
        lines[place] = [f"{start}{section(functions[node.name], is_whole)}{mark}{end}"]
    return "".join(lines)


def main(is_check: bool) -> int:
    texts = {name: documented(ROOT / name, *what) for name, what in SECTIONS.items()}
    stale = {name: text for name, text in texts.items() if text != (ROOT / name).read_text(encoding="utf-8")}
    for name, text in stale.items():
        print(f"{name}: {'not current; run python tools/document.py' if is_check else 'written'}")
        if not is_check:
            (ROOT / name).write_text(text, encoding="utf-8")
    return int(is_check and bool(stale))


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv))
