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
    """Print what was compiled and what runs here: package, Python, torch, system, processor, threads, tuning."""
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
    out: Annotated[Path, typer.Option("--out", help="Folder for the results of --quick.")] = Path("runs/bench"),
    picture: Annotated[str, typer.Option("--format", metavar="png|pdf|svg", help="Format of its picture.")] = "png",
    compare: Annotated[
        tuple[str, str] | None,
        typer.Option(
            "--compare", metavar="OLD NEW", help="Two files or commits: exit code 1 if anything became slower."
        ),
    ] = None,
) -> None:
    """Run benchmarks: --quick on this machine, or one rule compared with torch and torch.compile (`fastagg bench
    ace-int8`), or those of a checkout of the repository. Further arguments go to pytest."""
    import subprocess
    from importlib.util import find_spec

    rule = context.args[0] if context.args and not context.args[0].startswith("-") else None
    if quick or (rule is not None and compare is None):
        _quick(out, picture, rule)
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


def _quick(out: Path, picture: str, rule: str | None) -> None:
    import warnings

    from fastagg import quick
    from fastagg.cli import quick_report  # it reports missing packages before anything is measured
    from fastagg.cli.tables import quick_table
    from fastagg.facts import facts
    from fastagg.sim.plots import check_format

    check_format(picture)
    chosen = None if rule is None else quick.asked(rule)
    with warnings.catch_warnings(record=True) as left_out:
        warnings.simplefilter("always")
        with typer.progressbar(length=quick.ROUNDS, label="Measuring", file=sys.stderr) as bar:
            measured, busy = quick.measure(told=lambda: bar.update(1), chosen=chosen)
    show(quick_table(measured, busy))
    for warning in left_out if rule is not None else ():
        if "left out" in str(warning.message):
            print(warning.message, file=sys.stderr)
    for line in measured if rule is not None else ():
        low, high = line.spread
        times = f"{line.ratio:.1f} times" if line.ratio >= 1 else f"{line.ratio:.2f} times"
        print(
            f"{line.case}: {times} as fast as {line.peer} at {line.size:,} parameters ({low:.2f} to {high:.2f} in the "
            "middle of the rounds)"
        )
    for path in quick_report.write(measured, busy, facts(), out, picture):
        print(f"Written: {path}")


def _bench_folder() -> Path | None:
    # Also beside the package, because an editable install can be run from anywhere.
    for root in (Path.cwd(), Path(__file__).resolve().parents[2]):
        if (root / "bench").is_dir() and (root / "pyproject.toml").is_file():
            return root / "bench"
    return None
