"""Names say what a thing is: a class is a noun and has its name for itself, a local is named for the thing.

C++ is read with regular expressions.
"""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "fastagg"
TREES = {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(PACKAGE.rglob("*.py"))}
# What the last word of a class's name must not be, besides participles: prepositions, pronouns, numbers and the like.
NO_NOUNS = (
    "About Above After Against Ahead Along Apart Around At Before Behind Below Beside Between By Coming For From In "
    "Into Later Like Of Off On Out Over Past Through To Under Up With Without All Any Both Each It Its Many Mine Most "
    "None One Other Own Several Some That There They This Those Where Which Whose Two Three Four Five Cut Drawn Found "
    "Gives Given Has Heard Held Holds Kept Known Let Made Put Sent Taken Told Way"
)
# Published, and the papers' or the field's own.
FIELD = {"Aligned", "AlreadyCounted", "RunFailed", "Calibrated", "Encoded", "Reentered"}
LOCALS = {"found", "given", "it", "most", "one", "some", "way"}


def classes() -> Iterator[tuple[Path, str]]:
    for path, tree in TREES.items():
        yield from ((path, node.name) for node in ast.walk(tree) if isinstance(node, ast.ClassDef))


def is_noun(name: str) -> bool:
    last = re.findall(r"[A-Z]+(?![a-z])|[A-Z][a-z]+|\d+", name)[-1]
    return last not in NO_NOUNS.split() and not (last.endswith("ed") and last not in ("Feed", "Seed"))


def test_a_class_is_a_noun() -> None:
    assert not [(str(path), name) for path, name in classes() if name not in FIELD and not is_noun(name)]
    assert [is_noun(name) for name in ("Judged", "TaskOver", "Own", "PendingReceipt")] == [False, False, False, True]


def test_a_class_has_its_name_for_itself() -> None:
    rooms = defaultdict(set)
    for path, name in classes():
        rooms[name].add(path.relative_to(PACKAGE).parts[0])
    assert not {name: places for name, places in rooms.items() if len(places) > 1}


def bound(tree: ast.Module) -> Iterator[str]:
    """Yield the names that a module binds: locals, parameters, loops' and comprehensions'."""
    for node in ast.walk(tree):
        if isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


def test_a_local_is_named_for_the_thing() -> None:
    held = {path.relative_to(PACKAGE): LOCALS.intersection(bound(tree)) for path, tree in TREES.items()}
    # `_checks.whole(least=, most=)`: the ends of a range
    left = {str(path): names for path, names in held.items() if names}
    assert left == {"_checks.py": {"most"}}


NO_CODE = re.compile(r'//[^\n]*|"(?:\\.|[^"\\\n])*"')
SOURCES = {
    path: NO_CODE.sub("", path.read_text(encoding="utf-8"))
    for path in sorted((PACKAGE.parent / "csrc").rglob("*.*"))
    if path.suffix in (".h", ".cpp", ".inl", ".cu", ".cuh")
}
TYPE = re.compile(r"\b(?:struct|class|enum(?: class)?)\s+([A-Z]\w*)(?: final)?(?:\s*:[^;{()]*)?\s*\{")


def test_a_type_of_cpp_is_a_noun_of_one_room() -> None:
    rooms = defaultdict(set)
    for path, source in SOURCES.items():
        for name in TYPE.findall(source):
            rooms[name].add(path.parent)
    assert len(rooms) > 300
    assert not [name for name in rooms if name not in {*FIELD, "RowCut"} and not is_noun(name)]
    assert not {name: places for name, places in rooms.items() if len(places) > 1}


def test_a_local_of_cpp_is_named_for_the_thing() -> None:
    named = re.compile(rf"(?<!\w)(?:{'|'.join(LOCALS)})\b(?=\s*[=;,)({{:\[.]|->)")
    assert not {str(path): names for path, source in SOURCES.items() if (names := named.findall(source))}
