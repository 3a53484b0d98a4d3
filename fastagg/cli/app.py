"""The whole command line: fastagg demo | run | compare | recipes | info | bench | doctor | audit | serve.

Each imported module adds its commands to ``app``. The help shows the commands in the order of the imports.
"""

# isort: off
from fastagg.cli import runs, machine, state, serve  # noqa: F401

# isort: on
from fastagg.cli.base import app

__all__ = ["app"]
