"""The whole command line: fastagg demo | run | compare | recipes | info | bench | doctor | audit | serve.

Each module adds its commands to ``app`` when it is imported. The help shows them in the order of the imports.
"""

from fastagg.cli import runs  # noqa: F401

# isort: split
from fastagg.cli import machine  # noqa: F401

# isort: split
from fastagg.cli import state  # noqa: F401

# isort: split
from fastagg.cli import serve  # noqa: F401

# isort: split
from fastagg.cli.base import app

__all__ = ["app"]
