"""Writes the sections ``Keyword Args`` of :class:`fastagg.Server` and of the presets into the source.

Run ``python tools/document.py`` after a change to a setting. With ``--check`` it writes nothing, names the files that
are not current, and exits with 1. A setting's text stands where it is declared: in ``fastagg/server/settings.py``, or
under ``Args`` of the part that takes it. ``Server`` shows it whole, a preset its first sentence.
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
SECTION = re.compile(r"    Keyword Args:\n(?: {8}.*\n)+\n(?:    More about them: .*\n\n)?")


def explanations(documented: type) -> dict[str, str]:
    """Return what a class's documentation says of its arguments: name to text. Names of one text share it."""
    sections = re.findall(r"^(?:Args|Attributes):\n((?: {4}.*\n)+)", f"{inspect.getdoc(documented)}\n", re.MULTILINE)
    texts = re.findall(r"^ {4}(\w+(?:, \w+)*)(: .*(?:\n {5,}.*)*)", "".join(sections), re.MULTILINE)
    return {name: names + " ".join(text.split()) for names, text in texts for name in names.split(", ")}


def section(function: Callable[..., object], is_whole: bool) -> str:
    """Return the section that explains what a function passes on."""
    own = inspect.signature(inspect.unwrap(function)).parameters
    names = [name for name in inspect.signature(function).parameters if name not in own]
    sources = {f"fastagg.{part.__name__}": explanations(part) for part in PARTS}
    sources["fastagg.Server"] = {name: f"{name}: {rule.meaning}" for name, rule in RULES.items()}
    texts = {name: text for source in reversed(sources.values()) for name, text in source.items()}
    items = dict.fromkeys(
        texts[name] if is_whole else re.split(r"(?<=\.) (?=``|[A-Z(])", texts[name])[0] for name in names
    )
    lines = [wrapped(item) for item in items]
    if not is_whole:
        owners = [owner for owner, source in sources.items() if any(texts[name] == source.get(name) for name in names)]
        lines.append("\n    More about them: " + ", ".join(f":class:`{owner}`" for owner in reversed(owners)) + ".")
    return "\n".join(["    Keyword Args:", *lines, "", ""])


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
