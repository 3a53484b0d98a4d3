"""The output of all commands: tables to stdout, errors to stderr."""

from __future__ import annotations

from typing import Any, NoReturn

import typer


def show(renderable: Any) -> None:
    """Print a table as wide as the terminal. Without a terminal it is as wide as it needs to be."""
    from rich.console import Console

    console = Console()
    # A pipe has no width, and rich would fold tables into 80 columns.
    if not console.is_terminal:
        console = Console(width=240)
    console.print(renderable)


def fail(message: str) -> NoReturn:
    """Print ``message`` as one line on stderr and end with exit code 2."""
    from rich.console import Console

    line = " ".join(message.split())
    Console(stderr=True, soft_wrap=True, highlight=False).print(f"error: {line}", style="red", markup=False)
    raise typer.Exit(2)
