"""The command about a server's state on the disk: doctor."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fastagg.cli.base import app
from fastagg.cli.screen import show


@app.command()
def doctor(
    path: Annotated[Path, typer.Argument(metavar="FOLDER|FILE", help="From fastagg.open, or from server.save.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Report the contents of a server's folder or file, whether all checksums are right, and what a recovery would
    do."""
    import json

    from fastagg.cli.tables import pairs_table
    from fastagg.serving.doctor import examine

    found = examine(path)
    if as_json:
        print(json.dumps(found, indent=2))
    else:
        problems = found.pop("problems")
        flat = {key: json.dumps(value) if isinstance(value, (dict, list)) else value for key, value in found.items()}
        show(pairs_table("fastagg", flat))
        for problem in problems:
            print(problem)
    if not found["healthy"]:
        raise typer.Exit(1)
