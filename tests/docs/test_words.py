"""docs/architecture.md has a short glossary, and names what is in the code.

The README is short and complete; test_snippets.py runs its code.
"""

import re
from pathlib import Path

from fastagg import registry

ROOT = Path(__file__).parents[2]
SOURCES = [path for room in ("csrc", "fastagg") for path in (ROOT / room).rglob("*.*")]
CODE = {
    path: path.read_text(encoding="utf-8") for path in SOURCES if path.suffix in (".py", ".h", ".cpp", ".cu", ".inl")
}


def test_the_glossary_is_short_and_its_words_are_used() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    lines = re.findall(r"^\| (.+?) \| .+ \|$", page.split("## Words")[1].split("\n## ")[0], re.MULTILINE)[2:]
    assert 20 < len(lines) <= 40 and len(set(lines)) == len(lines)
    everything = "\n".join(CODE.values()).lower()
    assert not [word for line in lines for word in line.split(", ") if word not in everything]


def test_the_walk_names_what_is_in_the_code() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    words = set(re.findall(r"\w+", "\n".join(CODE.values())))
    for name in re.findall(r"`([^`]+)`", page):
        is_file = (ROOT / name).exists() or any(path.name == name for path in CODE)
        is_there = set(re.findall(r"\w+", name.partition("(")[0])) <= words
        assert is_file or ("/" not in name and is_there) or name.startswith("fastagg "), name


def test_every_room_says_what_may_be_touched() -> None:
    rooms = [path for path in (ROOT / "csrc").iterdir() if path.is_dir()]
    assert len(rooms) >= 8 and all(len((room / "README.md").read_text().splitlines()) <= 12 for room in rooms)
    packages = [path for path in (ROOT / "fastagg").rglob("__init__.py") if "_bench" not in path.parts]
    assert not [path for path in packages if not path.read_text().startswith(('"""', "# "))]


README = (ROOT / "README.md").read_text()


def test_it_is_short_and_says_what_ci_runs() -> None:
    assert len(README.splitlines()) < 120
    for words in ("fastagg demo", "pytest"):  # noxfile.py takes the lines from here
        assert len(re.findall(rf"^pip install .*{words}", README, re.MULTILINE)) == 1


def test_every_preset_is_in_the_tables() -> None:
    algorithms = (ROOT / "docs" / "algorithms.md").read_text()
    assert len(registry.presets()) >= 17
    for page in README, algorithms:
        lines = re.search(r"^\| preset \|.*\n\|[-|]+\n((?:\|.*\n)+)", page, re.MULTILINE)
        assert lines is not None
        first = "".join(line.split("|")[1] for line in lines[1].splitlines())
        assert set(re.findall(r"`(\w+)`", first)) == set(registry.presets())
