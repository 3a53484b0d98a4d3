"""The commands about this machine: ``fastagg info`` and ``fastagg bench``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from fastagg.cli.base import command
from fastagg.cli.screen import VALUE, fail, show


@command()
def info(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for scripts and bug reports.")] = False,
) -> None:
    """Print facts about this machine and about fastagg's build.

    The facts are versions, the system, the processor, threads, tuning settings and CUDA."""
    import json

    import torch  # noqa: F401  # facts() reports torch's threads

    from fastagg._build import facts
    from fastagg.page import flat
    from fastagg.sheet import Sheet

    about = facts()
    if as_json:
        print(json.dumps(about, indent=2))
    else:
        show(Sheet("fastagg", ("name", VALUE), flat(about)))


@command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def bench(
    context: typer.Context,
    quick: Annotated[
        bool, typer.Option("--quick", help="Compare whole updates with torch, in a minute, without more packages.")
    ] = False,
    compare: Annotated[
        tuple[str, str] | None,
        typer.Option(
            "--compare", metavar="OLD NEW", help="Compare JSON files or commits. Exit code 1 if anything is slower."
        ),
    ] = None,
) -> None:
    """Measure fastagg's and torch's speed on this machine.

    Further arguments go to pytest: --case NAME, --sizes, --threads, --benchmark-json FILE. --collect-only lists cases.
    """
    from importlib.util import find_spec

    if quick:
        raise typer.Exit(_python(str(_benchmarks() / "quick.py")))
    if compare is not None:
        raise typer.Exit(_python(str(_benchmarks() / "compare.py"), *compare))
    if find_spec("pytest") is None or find_spec("pytest_benchmark") is None:
        fail('the benchmarks need pytest-benchmark: pip install "fastagg[bench]"')
    code = _python("-P", "-m", "pytest", str(_benchmarks()), "-p", "no:cacheprovider", *context.args)
    raise typer.Exit(1 if code else 0)


def _benchmarks() -> Path:
    """Return the folder of the benchmarks: a clone's ``bench/``, or the package's folder with copies of some."""
    package = Path(__file__).resolve().parents[1]
    beside = package.parent / "bench"
    return beside if (package.parent / "pyproject.toml").is_file() and beside.is_dir() else package / "_bench"


def _python(*arguments: str) -> int:
    import subprocess

    return subprocess.run([sys.executable, *arguments], check=False).returncode
