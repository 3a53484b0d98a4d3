"""The pages in docs/api: every public name has one entry, though most pages name no preset and no part."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType

import fastagg

DOCS = Path(__file__).parents[2] / "docs"
# In a process of its own, because docs/conf.py gives the classes other modules.
PAGES = """
import json, runpy, sys
from pathlib import Path
docs = Path(sys.argv[1])
listed = runpy.run_path(str(docs / "conf.py"))["listed"]
print(json.dumps({page.stem: listed(f"api/{page.stem}", page.read_text()) for page in (docs / "api").glob("*.md")}))
"""


def test_every_public_name_has_one_entry() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PAGES, str(DOCS)], cwd=DOCS.parent, capture_output=True, text=True, check=True
    )
    pages: dict[str, str] = json.loads(done.stdout)
    entries = Counter(
        name for text in pages.values() for name in re.findall(r"^\.\. auto\w+:: fastagg\.(\w+)$", text, re.MULTILINE)
    )
    public = [name for name in fastagg.__all__ if not isinstance(getattr(fastagg, name), ModuleType)]
    documented = {"register"}  # with its module
    assert entries == Counter(set(public) - documented | {"clients", "registry", "tuning", "presets", "ops"})
    assert "FedBuff" in pages["presets"] and not re.search(r"^ALL ", "\n".join(pages.values()), re.MULTILINE)
