"""Names in C++ say what a thing is: a type is a noun of one room, and a local is named for the thing."""

import re
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[2] / "csrc"
NO_CODE = re.compile(r'//[^\n]*|"(?:\\.|[^"\\\n])*"')
SOURCES = {
    path.relative_to(ROOT): NO_CODE.sub("", path.read_text(encoding="utf-8"))
    for path in sorted(ROOT.rglob("*.*"))
    if path.suffix in (".h", ".cpp", ".inl", ".cu", ".cuh")
}
TYPE = re.compile(r"\b(?:struct|class|enum(?: class)?)\s+([A-Z]\w*)(?: final)?(?:\s*:[^;{()]*)?\s*\{")
# What the last word of a type's name must not be, besides participles: prepositions, pronouns, numbers and the like.
NO_NOUNS = (
    "Above After Against Ahead Along Apart Around At Before Behind Below Beside Between By Coming For From In Into "
    "Later Of Off On Out Over Past Through To Under Up With Without All Any Both Each It Many Mine Most None One Other "
    "Own Several Some That There They This Those Where Which Whose Two Three Four Five Cpu Cuda Drawn Found Gives Given "
    "Has Heard Held Holds Kept Known Let Lies Made Put Sent Taken Told Way"
)
FIELD = {"Encoded"}  # public



def is_noun(name: str) -> bool:
    last = re.findall(r"[A-Z]+(?![a-z])|[A-Z][a-z]*|\d+", name)[-1]
    return last not in NO_NOUNS.split() and not (last.endswith("ed") and last not in ("Feed", "Seed"))


def test_a_type_is_a_noun_of_one_room() -> None:
    rooms: defaultdict[str, set[str]] = defaultdict(set)
    for path, source in SOURCES.items():
        for name in TYPE.findall(source):
            rooms[name].add(path.parts[0] if len(path.parts) > 1 else "")
    assert len(rooms) > 300
    assert not [name for name in rooms if name not in FIELD and not is_noun(name)]
    assert not {name: places for name, places in rooms.items() if len(places) > 1}
    assert [is_noun(name) for name in ("Judged", "WireThere", "Gives", "PendingAnswer")] == [False, False, False, True]


def test_a_local_is_named_for_the_thing() -> None:
    words = re.compile(r"(?<![\w\"'])(?:one|found|given|some|way|most|it)\b(?=\s*[=;,)({:\[.]|->)")
    assert not {str(path): found for path, source in SOURCES.items() if (found := words.findall(source))}
