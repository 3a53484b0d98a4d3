"""How large a part of the engine may be, so that one reading takes it in: members of a class, lines of a function."""

import re
from collections.abc import Generator
from pathlib import Path

ENGINE = Path(__file__).parents[1] / "csrc/engine"
Sizes = Generator[tuple[str, str, int], None, int]
NO_CODE = re.compile(r"//[^\n]*|^#[^\n]*|\"(\\.|[^\"\\\n])*\"|(?<!\w)'(\\.|[^'\\])+'", re.MULTILINE)
NO_MEMBER = re.compile(r"\s*(using|friend|static_assert|enum|(class|struct)\b[^;()=]*$|$)")
PLANTED = """struct A : B<int, 2> {
  A(int a, int b) : one{a}, two(b) { if (a) { two = ";"; } }
  bool operator<(const A& other) const;  // not a, b
  std::function<void*(int, int)> one = 1, two{2};
  struct C { std::pair<int, int> of; } inner;
};"""


def members(statement: str) -> int:
    """How many members a declaration in a class has."""
    statement = re.sub(r"\b(public|protected|private):|\btemplate <[^>]*>", "", statement)
    depth, outside = 0, ""  # what stands in no brackets
    for one in statement.replace("operator<", "operator").replace("->", ""):
        depth -= one in ">)}]"
        outside += one if depth == 0 else ""
        depth += one in "<({["
    return 0 if NO_MEMBER.match(statement) else 1 if "(" in outside.partition("=")[0] else outside.count(",") + 1


def sizes(source: str) -> Sizes:
    """The members of each class, and the lines of each function, of a source as clang-format lays it out."""
    source, ends, opened = NO_CODE.sub("", source), {}, []
    for found in re.finditer(r"([({[])|[)}\]]", source):
        opened.append(found.start()) if found[1] else ends.update({opened.pop(): found.start()})

    def walk(at: int, end: int) -> Sizes:
        begin, count = at, 0
        while at < end:
            body = source[at] == "{" and source[at - 1] == " " and source[at - 2] not in "=,("
            if body or source[at] == ";":
                head, last = source[begin:at], ends.get(at, at)
                named = re.search(r"\b(?:class|struct) (\w+)[^()]*$", head)
                count += members(head)
                if body and (named or "namespace" in head):
                    inner = yield from walk(at + 1, last)
                    yield ("class", named[1], inner) if named else ("namespace", head, 0)
                elif body and "enum" not in head.split():
                    yield "function", " ".join(head.split()), 1 + source[begin:last].lstrip().count("\n")
                begin = last + 1
            at = ends.get(at, at) + 1
        return count

    return (yield from walk(0, len(source)))


def test_no_class_of_the_engine_and_no_function_is_too_large() -> None:
    assert [size for _, _, size in sizes(PLANTED)] == [1, 1, 5]
    found = [(path.name, *one) for path in ENGINE.glob("*.[hc]*") for one in sizes(path.read_text())]
    assert len(found) > 500
    assert not [one for one in found if one[-1] > (25 if one[1] == "class" else 60)]
