"""The documentation as a site: `sphinx-build -W docs OUT`. It needs fastagg[docs,sim] and no network."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator
from functools import reduce
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed
from inspect import getdoc, isclass, isroutine, signature
from pathlib import Path
from types import ModuleType
from typing import Any

import fastagg
import fastagg.integrations
from fastagg.sim.clock.delays import TimedDelay
from fastagg.sim.data.sections import Section, tag_of
from fastagg.sim.recipes.config import KINDS, Config

project = "fastagg"
author = "the fastagg authors"
copyright = author
try:
    release = installed("fastagg")
except PackageNotFoundError:
    release = "unknown"

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_design", "sphinx_copybutton"]
exclude_patterns = ["_build", "**.ipynb_checkpoints"]
html_theme = "furo"
html_title = f"fastagg {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_logo = html_favicon = "_static/logo.svg"
REPOSITORY = "https://github.com/fastagg/fastagg"
html_theme_options = {
    "source_repository": REPOSITORY,
    "source_branch": "main",
    "source_directory": "docs/",
    "top_of_page_buttons": ["view", "edit"],
}
myst_heading_anchors = 3
# The card that a link to a page is shown with.
myst_html_meta = {
    "property=og:title": "fastagg: asynchronous federated learning",
    "property=og:description": "A server that does not wait for slow clients: in Flower, FLARE, APPFL or your own loop",
    "property=og:image": f"{REPOSITORY}/raw/main/docs/demo.png",
    "name=twitter:card": "summary_large_image",
}
myst_enable_extensions = ["colon_fence"]

# The notebook runs while the site is built, from its first cell to its last. An error in a cell is one of the build.
nb_execution_mode = "force"
nb_execution_timeout = 300
nb_execution_raise_on_error = True

copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88
napoleon_numpy_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True  # otherwise an attribute of a named tuple is described twice
# Torch's and Python's names have no pages here, and a site that is built without a network cannot look them up.
nitpicky = False

# Names as users type them: fastagg.FedBuff, wherever it is defined.
PUBLIC = {name: getattr(fastagg, name) for name in fastagg.__all__}
for thing in PUBLIC.values():
    if not isinstance(thing, ModuleType):
        thing.__module__ = "fastagg"


PRESETS = fastagg.registry.presets()
SYNCHRONOUS = {name for name, preset in PRESETS.items() if "clients_per_round" in signature(preset).parameters}
# What the pages in docs/api list without naming it: what is public, or registered, is there.
LISTS = {
    "ALL ERRORS": (
        "exception",
        [n for n, thing in PUBLIC.items() if isinstance(thing, type) and issubclass(thing, Exception)],
    ),
    "ALL DIRECTIONS": ("class", fastagg.registry.parts("direction")),
    "ALL OPTIMIZERS": ("class", fastagg.registry.parts("optimizer")),
    "ALL POLICIES": ("class", fastagg.registry.parts("staleness")),
    "ALL ASYNCHRONOUS": ("function", [name for name in PRESETS if name not in SYNCHRONOUS]),
    "ALL SYNCHRONOUS": ("function", [name for name in PRESETS if name in SYNCHRONOUS]),
}


def listed(docname: str, text: str) -> str:
    """Return a page's text with an entry for each name of its lists."""
    for mark, (kind, names) in LISTS.items() if docname.startswith("api/") else ():
        option = "\n   :show-inheritance:" if kind == "exception" else ""
        text = text.replace(mark, "\n".join(f".. auto{kind}:: fastagg.{name}{option}" for name in names))
    made = {
        "api/recipes": ("<!-- ALL KEYS -->", keys),
        "api/integrations": ("ALL ADAPTERS", adapters),
        "api/index": ("ALL OBJECTS", objects),
    }
    mark, make = made.get(docname, ("", str))
    return text.replace(mark, make()) if mark else text


BAR = r"\|"


def objects() -> str:
    """Return tables of all public objects, and of the modules' functions, with one line each."""
    kinds: dict[str, list[str]] = {"Presets": [*PRESETS]}
    for title, mark in (
        ("Directions", "ALL DIRECTIONS"),
        ("Optimizers", "ALL OPTIMIZERS"),
        ("Policies", "ALL POLICIES"),
    ):
        kinds[title] = LISTS[mark][1]
    errors = LISTS["ALL ERRORS"][1]
    known = {*errors, *(name for names in kinds.values() for name in names)}
    modules = [name for name, one in PUBLIC.items() if isinstance(one, ModuleType)]
    kinds["Server and the rest"] = [name for name in PUBLIC if name not in {*known, *modules}]
    kinds["Errors"] = errors
    for module in ("clients", "ops"):
        found = {one: getattr(getattr(fastagg, module), one) for one in getattr(fastagg, module).__all__}
        kinds[f"fastagg.{module}"] = [f"{module}.{one}" for one, it in found.items() if isroutine(it) or isclass(it)]
    return "\n\n".join(
        f"## {title}\n\n| | |\n|---|---|\n" + "\n".join(map(summary, names)) for title, names in kinds.items()
    )


def summary(name: str) -> str:
    """Return an object's line: a link to it, and the first sentence of its documentation."""
    thing = reduce(getattr, name.split("."), fastagg)
    first = re.sub(r":[a-z:]+:`(.+?)`", r"`\1`", " ".join((getdoc(thing) or "").partition("\n\n")[0].split()))
    return f"| {{py:obj}}`{name} <fastagg.{name}>` | {first.replace('|', BAR)} |"


# The adapters' classes, by where they are imported from. They are read and not imported, which needs no framework.
ADAPTERS = {
    "session": ("goals.Settings", "goals.Stop", "goals.Best"),
    "flower": (
        "flower.asynchronous.AsyncStrategy",
        "flower.synchronous.SyncStrategy",
        "flower.classic.ClassicStrategy",
        "flower.mod.EncodingMod",
    ),
    "nvflare": ("nvflare.asynchronous.AsyncController", "nvflare.aggregator.Aggregator", "nvflare.encoder.Encoder"),
    "appfl": ("appfl.Aggregator",),
    "pfl": ("pfl.CentralOptimizer",),
    "ray": ("ray.Parts", "ray.Leaves"),
}


def adapters() -> str:
    """Return the adapters' classes, with their arguments, defaults and documentation."""
    return "\n\n".join(
        f"### {name.rpartition('.')[2]}\n\n```text\n{call}\n\n{doc}\n```" if number else f"## {module}"
        for module, names in ADAPTERS.items()
        for number, (name, call, doc) in enumerate([("", "", ""), *((name, *signed(name)) for name in names)])
    )


def signed(name: str) -> tuple[str, str]:
    """Return a class's call and its documentation."""
    module, _, wanted = name.rpartition(".")
    path = Path(fastagg.__file__).parent.joinpath("integrations", *module.split(".")).with_suffix(".py")
    [found] = [one for one in ast.parse(path.read_text()).body if isinstance(one, ast.ClassDef) and one.name == wanted]
    starts = [one for one in found.body if isinstance(one, ast.FunctionDef) and one.name == "__init__"]
    fields = [one for one in found.body if isinstance(one, ast.AnnAssign) and one.value]
    given = ast.unparse(starts[0].args).removeprefix("self, ") if starts else ", ".join(map(ast.unparse, fields))
    return f"{wanted}({given})", ast.get_docstring(found) or ""


def sections() -> Iterator[tuple[str, type[Section], type[Section]]]:
    """Yield the sections of a recipe: each one's title, its keys, and a kind whose keys have a section of their own."""
    yield "recipe", Config, Section
    yield "delay, but of `version`", TimedDelay, Section
    for name, kinds in KINDS.items():
        for kind in kinds:
            called = [tag_of(kind)] if len(kinds) > 1 else []
            yield " ".join([name, *called]), kind, TimedDelay if issubclass(kind, TimedDelay) else Section


def keys() -> str:
    """Return the sections of a recipe: what each says, its keys, what they may be, their defaults."""
    return "\n\n".join(part(*section) for section in sections())


def overview() -> str:
    """Return every key of a recipe with its default, a paragraph for each section."""
    paragraphs = []
    for title, kind, base in sections():
        words = [key if default == "none" else f"{key}={default}" for key, _, default in rows(kind, base)]
        text = f"{title}: {', '.join(words)}".replace("`", "").replace("=needed", "=?")
        paragraphs.append(textwrap.fill(text, 118, subsequent_indent="    "))
    return "\n".join(paragraphs)


def rows(kind: type[Section], base: type[Section]) -> Iterator[tuple[str, str, str]]:
    """Yield the keys that ``base`` does not have, what they may be, and their defaults."""
    for key, one in kind.model_json_schema()["properties"].items():
        if key in base.model_fields or "#/$defs" in str(one):
            continue
        default = "none" if one.get("default") is None else f"`{one['default']!r}`"
        yield key, may_be(one), "needed" if kind.model_fields[key].is_required() else default


def part(title: str, kind: type[Section], base: type[Section] = Section) -> str:
    """Return a section: what it says of itself, and a table of the keys that ``base`` does not have."""
    texts = [getdoc(one) or "" for one in kind.__mro__ if issubclass(one, base) and one is not base]
    lines = [f"## {title}", "", *dict.fromkeys(texts), "", "| key | may be | default |", "|---|---|---|"]
    lines += [f"| `{key}` | {words} | {default} |" for key, words, default in rows(kind, base)]
    return "\n".join(lines)


def may_be(one: dict[str, Any]) -> str:
    """Return what a key may be, in words."""
    if "anyOf" in one:
        return " or ".join(may_be(each) for each in one["anyOf"] if each.get("type") != "null")
    if words := one.get("enum") or [one[name] for name in ("const",) if name in one]:
        return ", ".join(f"`{word!r}`" for word in words)
    names = {"integer": "whole number", "boolean": "true or false", "string": "text", "object": "keys"}
    limits = {"exclusiveMinimum": "above", "minimum": "from", "maximum": "to", "exclusiveMaximum": "below"}
    said = " ".join(f"{word} {one[limit]:g}" for limit, word in limits.items() if limit in one)
    items = f" of: {may_be(one['items'])}" if one.get("items") else ""
    return f"{names.get(one['type'], {'array': 'list'}.get(one['type'], one['type']))}{items} {said}".rstrip()


def _read(app: object, docname: str, source: list[str]) -> None:
    """Fill in lists, and point links to files outside docs/ to the repository. So they work there and on the site."""
    del app
    source[0] = listed(docname, source[0])
    deeper = docname.count("/")
    inside = re.escape("../" * deeper)
    source[0] = re.sub(r"\]\(" + inside + r"\.\./((?!\.\./)[^)]*)\)", rf"]({REPOSITORY}/blob/main/\1)", source[0])


def setup(app: object) -> dict[str, bool]:
    app.connect("source-read", _read)  # type: ignore[attr-defined]
    return {"parallel_read_safe": True}


if __name__ == "__main__":  # writes the overview of recipes into its page
    page = Path(__file__).parent / "api" / "recipes.md"
    head, _, rest = page.read_text().partition("```text\n")
    page.write_text(f"{head}```text\n{overview()}\n```{rest.partition('```')[2]}")
