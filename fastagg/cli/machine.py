"""The commands about this machine: info and bench."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from fastagg.cli.base import command
from fastagg.cli.screen import fail, show


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


@command(hidden=True, deprecated=True, context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def tune() -> None:
    """Say what replaced this command."""
    print(
        "fastagg tune measures nothing any more: a table decides by the processor's vendor and family, `fastagg info` "
        "shows it, and FASTAGG_TUNE=prefetch=512,stream_from=never sets values of your own."
    )


@command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def bench(
    context: typer.Context,
    quick: Annotated[
        bool, typer.Option("--quick", help="Compare this machine with torch in a minute; needs no checkout.")
    ] = False,
    compare: Annotated[
        tuple[str, str] | None,
        typer.Option(
            "--compare", metavar="OLD NEW", help="Two files or commits: exit code 1 if anything became slower."
        ),
    ] = None,
) -> None:
    """Compare with torch here, or run a checkout's benchmarks.

    The latter are bench/ of the repository. Further arguments go to pytest.
    """
    import subprocess
    from importlib.util import find_spec

    if quick:
        _quick()
        return
    folder = _bench_folder()
    if folder is None:
        fail(
            "there is no bench/ folder here: `fastagg bench --quick` needs none, "
            "the others run in a checkout of the repository"
        )
    if compare is not None:
        raise typer.Exit(subprocess.run([sys.executable, str(folder / "compare.py"), *compare], check=False).returncode)
    if find_spec("pytest") is None or find_spec("pytest_benchmark") is None:
        fail('the benchmarks need pytest-benchmark: pip install "fastagg[bench]"')
    command = [sys.executable, "-m", "pytest", str(folder), "--benchmark-only", *context.args]
    raise typer.Exit(1 if subprocess.run(command, check=False).returncode else 0)


def _quick() -> None:
    from fastagg import quick
    from fastagg.cli.tables import quick_table

    with typer.progressbar(length=quick.ROUNDS, label="Measuring", file=sys.stderr) as bar:
        measured, busy = quick.measure(told=lambda: bar.update(1))
    show(quick_table(measured, busy))


def _bench_folder() -> Path | None:
    # Also beside the package, because an editable install can be run from anywhere.
    for root in (Path.cwd(), Path(__file__).resolve().parents[2]):
        if (root / "bench").is_dir() and (root / "pyproject.toml").is_file():
            return root / "bench"
    return None
