"""The commands about this machine: info, tune and bench."""

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


@command()
def tune(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Measure and print; do not remember the result.")] = False,
    forget: Annotated[bool, typer.Option("--forget", help="Forget what was remembered, for all processors.")] = False,
) -> None:
    """Measure what suits this processor, in less than a second, print why, and remember it."""
    import fastagg
    from fastagg import measuring, tuning
    from fastagg.cli.tables import tuning_table

    if forget:
        tuning.memory_file().unlink(missing_ok=True)
        print(f"Forgotten: {tuning.memory_file()}")
        return
    print(f"{tuning.processor()}, {fastagg.get_num_threads()} threads")
    choices = measuring.measure()
    show(tuning_table(choices))
    chosen = {choice.setting: choice.chosen for choice in choices if choice.chosen != choice.usual}
    if dry_run:
        print("Chosen: " + (",".join(f"{name}={value}" for name, value in chosen.items()) or "the table's settings"))
        return
    path = tuning.remember(chosen)
    print(f"Remembered in {path}; FASTAGG_TUNE=default goes back to the table for one run, --forget for good.")


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
