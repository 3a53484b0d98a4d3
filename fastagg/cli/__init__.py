"""The ``fastagg`` command. It needs the packages of an extra. Without them :func:`main` says which to install."""

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
