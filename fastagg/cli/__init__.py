"""The ``fastagg`` command. If a package of the extra ``cli`` is missing, :func:`main` prints which, and exits."""

from __future__ import annotations

import sys

from fastagg import _extras
from fastagg.errors import MissingDependency


def main() -> None:
    try:
        _extras.require("the command line", "cli", _extras.CLI)
    except MissingDependency as error:
        sys.exit(f"error: {error}")
    from fastagg.cli.app import app

    app()
