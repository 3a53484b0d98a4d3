"""What all commands print with: tables to stdout, errors to stderr."""

from __future__ import annotations

from typing import Any, NoReturn

import typer


def show(renderable: Any) -> None:
    """Print a table as wide as the terminal, or as wide as it needs where there is none."""
    from rich.console import Console

    console = Console()
    # A pipe has no width; rich would fold the tables into 80 columns there.
    if not console.is_terminal:
        console = Console(width=240)
    console.print(renderable)


def fail(message: str) -> NoReturn:
    """Print ``message`` as one line on stderr and end with exit code 2."""
    from rich.console import Console

    line = " ".join(message.split())
    Console(stderr=True, soft_wrap=True, highlight=False).print(f"error: {line}", style="red", markup=False)
    raise typer.Exit(2)
