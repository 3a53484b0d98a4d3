"""The whole command line: fastagg demo | run | compare | recipes | info | bench | doctor | audit | serve.

Each module adds its commands to ``app`` when it is imported. The help shows them in the order of the imports.
"""

# isort: off
from fastagg.cli import runs, machine, state, serve  # noqa: F401

# isort: on
from fastagg.cli.base import app

__all__ = ["app"]
