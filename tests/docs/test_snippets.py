"""The Python of README and docs runs as it stands there, passes a strict type checker, and shows every public name.

The blocks of a page are one program, from top to bottom. What is fenced as ``py`` takes something for granted that only
the reader has; those of docs/integrations have a test beside the frameworks' (tests/integrations/test_docs.py).
"""

import doctest
import inspect
import pkgutil
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from test_typing import CONFIG

import fastagg
import fastagg.sim

ROOT = Path(__file__).parents[2]
PAGES = [path for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))) if "_build" not in path.parts]
FENCE = re.compile(r"^```(?:python)\n(.*?)^```", re.DOTALL | re.MULTILINE)
# A page that takes for granted what its reader has.
BEFORE = {"algorithms.md": "import fastagg, torch\nmodel, images = torch.nn.Linear(784, 2), torch.zeros(4, 784)\n"}


def program(page: Path) -> str:
    """All Python of a page, each block where it stands in it, so that an error's line is the page's."""
    text, code, line = page.read_text(encoding="utf-8"), [], 0
    for match in FENCE.finditer(text):
        start = text[: match.start(1)].count("\n")
        code.append("\n" * (start - line) + match[1])
        line = start + match[1].count("\n")
    return "".join(code)


PROGRAMS = {page.relative_to(ROOT).as_posix(): code for page in PAGES if (code := program(page))}


def test_there_are_programs() -> None:
    assert {"README.md", "docs/quickstart.md", "docs/rules.md"} <= set(PROGRAMS)
    assert sum(name.startswith("docs/tutorials/") for name in PROGRAMS) >= 3


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_page_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert fastagg.registry.presets()  # all names are there before they are remembered
    parts = dict(fastagg.registry._parts)
    module = ModuleType(f"snippets of {name}")
    monkeypatch.setitem(sys.modules, module.__name__, module)  # dataclasses look there
    try:
        exec(compile(BEFORE.get(Path(name).name, ""), name, "exec", dont_inherit=True), vars(module))
        exec(compile(PROGRAMS[name], name, "exec", dont_inherit=True), vars(module))
    finally:  # what a page registers is not for other tests
        fastagg.registry._parts.clear()
        fastagg.registry._parts.update(parts)


@pytest.mark.skipif(find_spec("mypy") is None, reason="mypy is not installed")
def test_all_pages_pass_a_strict_type_checker(tmp_path: Path) -> None:
    (tmp_path / "mypy.ini").write_text(CONFIG)
    files = {}
    for name, code in PROGRAMS.items():
        file = re.sub(r"\W", "_", name.removesuffix(".md")) + ".py"
        before = BEFORE.get(Path(name).name, "")
        (tmp_path / file).write_text(before.replace("\n", "; ").rstrip("; ") + code if before else code)
        files[file] = name
    where = Path(fastagg.__file__).parents[1]  # mypy finds an installed package by itself
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", "mypy.ini", "--cache-dir", "cache", *files],
        cwd=tmp_path, env={} if where.name == "site-packages" else {"MYPYPATH": str(where)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_public_name_has_an_example() -> None:
    """Errors and modules need none: those have pages of their own. What needs an extra has one that is only shown."""
    shown = [doc for _, doc in documented() if "Example::" in doc]
    code = "\n".join([*PROGRAMS.values(), *EXAMPLES.values(), *shown])
    things = {name: getattr(fastagg, name) for name in fastagg.__all__}
    missing = [
        name
        for name, thing in things.items()
        if not (isinstance(thing, ModuleType) or (isinstance(thing, type) and issubclass(thing, Exception)))
        and name not in EXAMPLES and not re.search(rf"\bfastagg\.{name}\b", code)
    ]  # fmt: skip
    assert not missing


def test_links_inside_the_documentation_lead_somewhere() -> None:
    lost = []
    for page in [*PAGES, ROOT / "CONTRIBUTING.md", *(ROOT / "examples").glob("*/README.md")]:
        for target in re.findall(r"\]\(([^)#:]+?)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            if not (page.parent / target).exists():
                lost.append(f"{page.relative_to(ROOT)}: {target}")
    assert not lost


def test_the_table_of_tests_names_files_that_are_there() -> None:
    tests = ROOT / "tests"
    for line in (tests / "README.md").read_text(encoding="utf-8").splitlines():
        room = Path()
        for name in re.findall(r"`([\w/*]+(?:/|\.py|\.cpp))`", line):
            room = Path(name).parent if "/" in name else room
            assert any(tests.glob(name)) or any(tests.glob((room / name).as_posix())), f"{name}: {line}"


def test_papers_are_called_by_their_names() -> None:
    for page in PAGES:
        assert not re.search(r"\bpaper 0\d\d\b", page.read_text(encoding="utf-8"), re.IGNORECASE), page


# Words that only this project's own developers use. docs/architecture.md and docs/log-format.md are for developers.
PRIVATE = (
    r"rows?", r"arrivals?", r"stacks?", r"scrub\w*", r"at hand", r"settles?", r"flush\w*", r"li[fv]es", r"crew",
    r"ledger",
)  # fmt: skip
FINE = r"failures\W+(?:\([^)]*\)\W+)?in a row|in a row"  # which is English
CODE = re.compile(r"^```.*?^```|`[^`\n]*`|\]\([^)]*\)", re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize(
    "name", [p.relative_to(ROOT).as_posix() for p in PAGES if p.stem not in ("architecture", "changes", "log-format")]
)
def test_a_page_uses_the_words_of_its_reader(name: str) -> None:
    text = re.sub(FINE, "", CODE.sub("", (ROOT / name).read_text(encoding="utf-8")))
    assert not re.findall(rf"(?i).*\b(?:{'|'.join(PRIVATE)})\b.*", text)


# An error's text may get better; a docstring shows its public name.
OPTIONS = doctest.NORMALIZE_WHITESPACE | doctest.IGNORE_EXCEPTION_DETAIL | doctest.ELLIPSIS


def listed() -> Iterator[tuple[str, Any]]:
    """What the API pages list, as users write it: all public names, and the names and modules of the directives."""
    pages = "".join(
        page.read_text(encoding="utf-8") for page in sorted((Path(__file__).parents[2] / "docs" / "api").glob("*.md"))
    )
    directives = re.findall(r"^\.\. auto\w+:: fastagg\.([\w.]+)", pages, re.MULTILINE)
    things = {name: pkgutil.resolve_name(f"fastagg.{name}") for name in [*fastagg.__all__, *directives, "sim.compare"]}
    yield from things.items()
    for name, thing in things.items():
        if inspect.ismodule(thing):
            yield from ((f"{name}.{own}", getattr(thing, own)) for own in getattr(thing, "__all__", vars(thing)))


def documented() -> Iterator[tuple[str, str]]:
    """Every listed name and its docstring, and those of the methods and properties of classes."""
    for name, thing in listed():
        if not callable(thing) or not str(thing.__module__).startswith("fastagg"):
            continue  # a constant, or what a module imports
        yield name, thing.__doc__ or ""
        for own, method in vars(thing).items() if inspect.isclass(thing) else ():
            if not own.startswith("_") and (callable(method) or hasattr(type(method), "__get__")):
                yield f"{name}.{own}", method.__doc__ or ""


NAMES = {doc: name for name, doc in reversed([*documented()]) if ">>>" in doc}  # each once, by its first name
EXAMPLES = {name: doc for doc, name in reversed(NAMES.items())}


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_runs(name: str, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    parts = dict(fastagg.registry._parts)
    threads = fastagg.get_num_threads()
    text = inspect.cleandoc(EXAMPLES[name])
    test = doctest.DocTestParser().get_doctest(text, {"fastagg": fastagg, "torch": torch}, name, name, 0)
    said: list[str] = []
    try:
        result = doctest.DocTestRunner(verbose=False, optionflags=OPTIONS).run(test, out=said.append)
    finally:  # what an example registers or sets is not for other tests
        fastagg.registry._parts.clear()
        fastagg.registry._parts.update(parts)
        fastagg.set_num_threads(threads)
    assert result.attempted and not result.failed, "".join(said)
