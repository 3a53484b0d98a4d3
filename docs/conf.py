"""The documentation as a site: `sphinx-build -W docs OUT`. It needs fastagg[docs,sim] and no network."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed
from inspect import signature
from types import ModuleType

import fastagg

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
html_css_files = ["phone.css"]
REPOSITORY = "https://github.com/fastagg/fastagg"
html_theme_options = {
    "source_repository": REPOSITORY,
    "source_branch": "main",
    "source_directory": "docs/",
    "top_of_page_buttons": ["view", "edit"],
}
myst_heading_anchors = 3
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
    return text


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
