"""The rule of docs/rules.md as it stands there, and a function that makes a server of it, as the pages name it."""

import re
import sys
from pathlib import Path
from typing import Any

import fastagg

PAGE = (Path(__file__).parents[2] / "docs" / "rules.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
SOURCE = BLOCKS[0].split("@fastagg.register")[0]  # what the page imports
SOURCE += next(block for block in BLOCKS if "class Median" in block).split("\n\n\nserver =")[0]
SOURCE = SOURCE.replace("@fastagg.register\n", "")  # other tests in this process have parts of this name
exec(compile(SOURCE, "docs/rules.md", "exec"), sys.modules[__name__].__dict__)
Median: Any = sys.modules[__name__].__dict__["Median"]


def median(model: Any, size: int = 3, **_: Any) -> fastagg.Server:
    """A server that steps along the median of every ``size`` updates."""
    return fastagg.Server(model, Median(size))
