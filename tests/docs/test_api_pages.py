"""The pages in docs/api: every public name has one entry, though most pages name no preset and no part."""

import ast
import builtins
import inspect
import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from types import ModuleType

import pytest

import fastagg
from fastagg import _keywords
from fastagg.integrations.goals import Settings

from .test_snippets import PAGES as TEXTS
from .test_snippets import ROOT

pytest.importorskip("pydantic")  # recipes
from fastagg.sim.data.sections import Section
from fastagg.sim.recipes import config

Made = dict[str, str]

DOCS = Path(__file__).parents[2] / "docs"
# In a process of its own, because docs/conf.py gives the classes other modules.
PAGES = """
import json, runpy, sys
from pathlib import Path
docs = Path(sys.argv[1])
conf = runpy.run_path(str(docs / "conf.py"))
pages = {page.stem: conf["listed"](f"api/{page.stem}", page.read_text()) for page in (docs / "api").glob("*.md")}
print(json.dumps(pages | {"overview of recipes": conf["overview"]()}))
"""


@pytest.fixture(scope="module")
def made() -> Made:
    """The pages in docs/api."""
    done = subprocess.run(
        [sys.executable, "-c", PAGES, str(DOCS)], cwd=DOCS.parent, capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)  # type: ignore[no-any-return]


def test_every_key_of_a_recipe_is_on_a_page_which_says_what_it_does(made: Made) -> None:
    sections = dict(re.findall(r"^## (.+)\n\n((?:(?!## ).*\n?)*)", made["recipes"] + "\n", re.MULTILINE))
    overview = f"```text\n{made['overview of recipes']}\n```\n"
    assert overview in made["recipes"], "run python docs/conf.py"
    delays = sections["delay, but of `version`"]
    kinds = [kind for kinds in config.KINDS.values() for kind in kinds]
    assert len(sections) == len(kinds) + 2
    for kind in [config.Config, *kinds]:
        held = [text for text in sections.values() if all(f"| `{key}` |" in text + delays for key in own(kind))]
        assert any(all(re.search(rf"^(?!\|).*\b{key}\b", text + delays, re.M) for key in own(kind)) for text in held), (
            kind
        )


def own(kind: type[Section]) -> list[str]:
    """The keys that a section's documentation explains: not those that name it, nor the sections of a recipe."""
    return [key for key in kind.model_fields if key not in ("name", "keywords", "table", *config.KINDS)]


def test_every_keyword_of_a_preset_is_in_its_signature_and_explained() -> None:
    for preset in fastagg.registry.presets().values():
        shown = set(inspect.signature(preset).parameters)
        assert shown == {*_keywords.of(preset).settings, "params"}
        named = explained(preset)
        assert len({*named}) == len(named) and "server" in named, preset.__name__
        assert {*named} - {"server"} <= shown <= {*named, *explained(fastagg.Server)}, preset.__name__
    assert {*inspect.signature(fastagg.Server).parameters} == {*explained(fastagg.Server)} - {"settings"}


def explained(thing: Callable[..., object]) -> list[str]:
    """The arguments that a docstring has an item for, on any Python: newer ones strip what it is indented by."""
    sections = re.findall(r"(?m)^(?:Keyword )?Args:\n((?: {4}.*\n)+)", f"{inspect.getdoc(thing)}\n")
    items = re.findall(r"(?m)^ {4}(\w+(?:,\s+\w+)*): ", "".join(sections))
    return [name for item in items for name in re.split(r",\s+", item)]


def test_the_source_shows_what_help_shows() -> None:
    texts = [(ROOT / "fastagg" / file).read_text(encoding="utf-8") for file in ("presets.py", "server/server.py")]
    for node in [node for text in texts for node in ast.parse(text).body]:
        if (name := getattr(node, "name", None)) in ("Server", *fastagg.registry.presets()):
            assert ast.get_docstring(node) == inspect.getdoc(getattr(fastagg, name))


def test_every_argument_of_an_adapter_is_explained_and_every_setting_of_a_run_is_on_the_page(made: Made) -> None:
    for call, text in re.findall(r"```text\n(.+)\n((?:(?!```).*\n)*)", made["integrations"]):
        for name in re.findall(r"[(,*] ?(\w+): ", call):
            assert name in ("settings", "clock") or re.search(
                rf"^ {{4}}(?:\w+,\s+)*{name}\b[^:]*:|``{name}``", text, re.M
            ), name
    page = (DOCS / "integrations" / "index.md").read_text()
    assert not [one.name for one in fields(Settings) if not re.search(rf"^\| .*`{one.name}[`=]", page, re.M)]


def test_every_public_name_has_one_entry(made: Made) -> None:
    pages = made
    entries = Counter(
        name for text in pages.values() for name in re.findall(r"^\.\. auto\w+:: fastagg\.(\w+)$", text, re.MULTILINE)
    )
    public = [name for name in fastagg.__all__ if not isinstance(getattr(fastagg, name), ModuleType)]
    documented = {"register"}  # with its module
    assert entries == Counter(set(public) - documented | {"clients", "registry", "tuning", "presets", "ops"})
    assert "FedBuff" in pages["presets"] and not re.search(r"^ALL ", "\n".join(pages.values()), re.MULTILINE)


ERRORS = {
    name for name in fastagg.__all__ if isinstance(one := getattr(fastagg, name), type) and issubclass(one, Exception)
}
THEIRS = {"UFuncTypeError"}  # NumPy's


def test_every_error_that_a_page_names_exists() -> None:
    named = set()
    for page in TEXTS:
        words = re.findall(r"`(?:fastagg\.)?([A-Z]\w+)(?:[ :][^`]*)?`", page.read_text(encoding="utf-8"))
        named |= {word for word in words if word in ERRORS or word.endswith("Error") or hasattr(builtins, word)}
    assert not {name for name in named - THEIRS if name not in ERRORS and not hasattr(builtins, name)}
