"""The commands about this machine: info and bench."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from fastagg.cli.base import command
from fastagg.cli.screen import fail, show
from fastagg.removed import REMOVED


@command()
def info(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for scripts and bug reports.")] = False,
) -> None:
    """Print what was compiled and what runs here.

    Package, Python, torch, system, processor, threads, tuning.
    """
    import json

    from fastagg.cli.tables import pairs_table
    from fastagg.facts import facts

    found = facts()
    if as_json:
        print(json.dumps(found, indent=2))
    else:
        show(pairs_table("fastagg", found))


def _refused(gone: str, instead: str) -> None:
    """Let a command that left say what to use instead, whatever its arguments."""

    @command(
        gone.removeprefix("fastagg "),
        hidden=True,
        context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    )
    def refuse() -> None:
        fail(f"{gone} is gone: {instead}")


for _gone, _instead in REMOVED.items():
    if " " in _gone:
        _refused(_gone, _instead)


@command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def bench(
    context: typer.Context,
    quick: Annotated[
        bool, typer.Option("--quick", help="Compare whole updates with torch in a minute; needs no further package.")
    ] = False,
    compare: Annotated[
        tuple[str, str] | None,
        typer.Option(
            "--compare", metavar="OLD NEW", help="Two JSON files or commits: exit code 1 if anything became slower."
        ),
    ] = None,
) -> None:
    """Compare this machine with torch.

    Further arguments go to pytest: --case NAME, --sizes, --threads, --benchmark-json FILE; --collect-only lists cases.
    """
    import subprocess
    from importlib.util import find_spec

    from fastagg.quick import folder

    if quick:
        _quick()
        return
    if compare is not None:
        command = [sys.executable, str(folder() / "compare.py"), *compare]
        raise typer.Exit(subprocess.run(command, check=False).returncode)
    if find_spec("pytest") is None or find_spec("pytest_benchmark") is None:
        fail('the benchmarks need pytest-benchmark: pip install "fastagg[bench]"')
    command = [sys.executable, "-P", "-m", "pytest", str(folder()), "-p", "no:cacheprovider", *context.args]
    raise typer.Exit(1 if subprocess.run(command, check=False).returncode else 0)


def _quick() -> None:
    from fastagg import quick
    from fastagg.cli.tables import quick_table

    with typer.progressbar(length=len(quick.RULES) * len(quick.SIZES), label="Measuring", file=sys.stderr) as bar:
        measured, busy = quick.measure(told=lambda: bar.update(1))
    show(quick_table(measured, busy))
