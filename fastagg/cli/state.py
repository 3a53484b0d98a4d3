"""The commands about a server's state on the disk: ``fastagg doctor`` and ``fastagg audit``. Neither changes it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from fastagg._types import Plain
from fastagg.cli.base import command


@command()
def doctor(
    path: Annotated[
        Path, typer.Argument(metavar="FOLDER|FILE", help="A folder of fastagg.open, or a file of server.save.")
    ],
    replay: Annotated[bool, typer.Option(help="Also execute the log again, on a server in memory.")] = False,
    salvage: Annotated[
        Path | None, typer.Option(metavar="NEW", help="Recover the readable part of a damaged folder into a new one.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Report whether a server's folder or file is undamaged.

    The report also has the contents, and what a recovery would read. With --salvage, make a new folder instead."""
    import json

    from fastagg.durable.doctor import examine

    if salvage is not None:
        return _salvage(path, salvage, as_json)
    report = examine(path, replay=replay)
    if as_json:
        print(json.dumps(report, indent=2))
    else:
        print(f"{path}: {'healthy' if report['healthy'] else 'DAMAGED'}")
        for name, line in _lines(report):
            print(f"  {name:<11} {line}")
    if not report["healthy"]:
        raise typer.Exit(1)


def _salvage(path: Path, to: Path, as_json: bool) -> None:
    import json

    from fastagg.durable.salvage import salvage

    report = salvage(path, to)
    if as_json:
        print(json.dumps(report, indent=2))
        return
    print(f"{to}: version {report['version']:,}")
    print(f"  the same   up to record {report['last']}: {report['problem'] or 'nothing is damaged'}")
    print(f"  behind it  {report['taken']:,} answers were given in again, as new ones")
    for problem in report["refused"]:
        print(f"  PROBLEM    {problem}")


@command()
def audit(
    path: Annotated[Path, typer.Argument(metavar="FOLDER", help="A folder of fastagg.open, or a copy.")],
    start: Annotated[int | None, typer.Option("--from", metavar="N", help="Begin with this checkpoint.")] = None,
    receipts: Annotated[
        Path | None, typer.Option(metavar="FILE", help="JSON lines of receipts, with record and digest.")
    ] = None,
    modules: Annotated[
        list[str] | None, typer.Option("--import", metavar="MODULE", help="Module to import, which registers a rule.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Execute a server's log again, and compare the results.

    The results must equal the decisions in the log, the checkpoints and the receipts. The exit code is 1 if they
    differ. The server may be running."""
    import json
    from importlib import import_module

    import fastagg

    try:
        for name in modules or ():
            import_module(name)
        said = [json.loads(line) for line in receipts.read_text().splitlines()] if receipts else []
    except ImportError as error:
        raise fastagg.ConfigError(f"--import: {error}") from None
    except ValueError as error:
        raise fastagg.ConfigError(f"--receipts: {receipts}: expected a JSON object a line: {error}") from None
    report = fastagg.audit(path, start=start, receipts=said)
    if as_json:
        print(json.dumps(report, indent=2))
    else:
        counts = ", ".join(f"{count:,} {name}" for name, count in report["counts"].items()) or "none"
        print(f"{path}: {'the same' if report['same'] else 'DIFFERS'}")
        print(f"  executed   records {report['start'] + 1} to {report['last']}: {counts}")
        print(f"  version    {report['version']:,}")
        print(f"  model      {report['model']}")
        print(f"  digest     {report['digest']}")
        if not report["same"]:
            print(f"  PROBLEM    {report['problem']}")
            print(f"             {report['where'] or ''}".rstrip())
    if not report["same"]:
        raise typer.Exit(1)


def _lines(report: Plain) -> Iterator[tuple[str, str]]:
    """Yield the lines of doctor's report as (name, text). Empty: the line continues the line before."""
    states = report.get("checkpoints", [report])
    for state in [state for state in states if "version" in state][-1:]:
        yield "server", f"{state['parameters']:,} parameters; {state['direction']}, {state['optimizer']}"
        yield "", f"{state['staleness']} staleness; {state['clients']:,} clients, {state['open_tasks']:,} open tasks"
    for state in states[::-1]:
        name, where = ("checkpoint", state["name"]) if "name" in state else ("file", f"{state['bytes']:,} bytes")
        yield name, f"{where}: " + (f"version {state['version']:,}" if "version" in state else "cannot be read")
    if segments := report.get("segments"):
        nbytes = sum(segment["bytes"] for segment in segments)
        yield "journal", f"{len(segments)} files of together {nbytes:,} bytes"
    if report.get("uploads"):
        yield "uploads", f"{report['uploads']} files"
    for name in (*report.get("unused", ()), *report.get("leftovers", ())):
        yield "not needed", name
    if last := report.get("recovery"):
        yield "recovery", f"fastagg.open(path, make) would {last['would']}: from the checkpoint of"
        counts = ", ".join(f"{count:,} {name}" for name, count in last["replays"].items()) or "none"
        yield "", f"record {last['checkpoint']}, then {last['bytes']:,} bytes of records: {counts}"
        if last["version"] is not None:
            yield "", f"the replay's last version: {last['version']:,}"
        if last["torn"]:
            yield "", f"{last['torn']}: behind record {last['last']} lies what a crash left, or was damaged"
    for problem in report["problems"]:
        yield "PROBLEM", problem
