"""The documentation as a site: `sphinx-build -W docs OUT`. It needs fastagg[docs] and no network."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed

project = "fastagg"
author = "the fastagg authors"
try:
    release = installed("fastagg")
except PackageNotFoundError:
    release = "unknown"

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build", "**.ipynb_checkpoints"]
source_suffix = {".md": "markdown"}
html_theme = "furo"
html_title = f"fastagg {release}"
myst_heading_anchors = 3
myst_enable_extensions = ["colon_fence"]

autodoc_member_order = "bysource"
autodoc_typehints = "none"  # signatures have the types; docstrings give shapes and units, which types do not show
autodoc_typehints_format = "short"
napoleon_numpy_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True  # otherwise an attribute of a named tuple is described twice
# Torch's and Python's names have no pages here, and a site that is built without a network cannot look them up.
nitpicky = False

REPOSITORY = "https://github.com/fastagg/fastagg/blob/main/"


def _outward(app: object, docname: str, source: list[str]) -> None:
    """Point links to files outside docs/ to the repository. So they work there and on the site."""
    del app
    deeper = docname.count("/")
    inside = re.escape("../" * deeper)
    source[0] = re.sub(r"\]\(" + inside + r"\.\./((?!\.\./)[^)]*)\)", rf"]({REPOSITORY}\1)", source[0])


def setup(app: object) -> dict[str, bool]:
    app.connect("source-read", _outward)  # type: ignore[attr-defined]
    return {"parallel_read_safe": True}
