"""The commands that recommend a rule, and say what a server of it costs: advise and plan."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fastagg.cli.base import command
from fastagg.cli.screen import show

if TYPE_CHECKING:
    from fastagg.sim.many.advice import Advice

RUNS = 130  # that a recommendation takes, about: how many rates are tried depends on what is found


@command()
def advise(
    clients: Annotated[int, typer.Argument(help="How many clients there are.")],
    slow: Annotated[float, typer.Option(help="How many times as long as others slow clients take.")] = 10.0,
    slow_share: Annotated[float, typer.Option(help="The share of slow clients.")] = 0.1,
    delays: Annotated[
        Path | None, typer.Option(help="A CSV instead: lines of client,seconds, or only seconds.")
    ] = None,
    skew: Annotated[str, typer.Option(help="Of labels: none, mild, strong, or Dirichlet's alpha.")] = "strong",
    data: Annotated[Path | None, typer.Option(help="Your data, an .npz; by default digits.")] = None,
    parameters: Annotated[str, typer.Option(help="Of your model, such as 11M.")] = "1M",
    memory: Annotated[str | None, typer.Option(help="The server's, such as 8GB; by default any.")] = None,
    in_flight: Annotated[int | None, typer.Option(help="Clients that train at once; by default half.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of everything random.")] = 0,
    jobs: Annotated[int | None, typer.Option("-j", "--jobs", min=1, help="Processes; by default one a core.")] = None,
) -> None:
    """Recommend a rule for your federation, by simulating it.

    Every rule that fits into the memory is tried. Takes about a minute.
    """
    from fastagg._build import usable_cores
    from fastagg.sim.many.advice import advise as simulate
    from fastagg.sim.show.progress import CellsBar

    alpha = float(skew) if skew.replace(".", "", 1).isdecimal() else skew
    try:
        with CellsBar(RUNS, about=True) as bar:
            found = simulate(
                clients, slow=slow, slow_share=slow_share, delays=delays, skew=alpha, data=data, parameters=parameters,
                memory=memory, in_flight=in_flight, seed=seed, jobs=jobs or usable_cores(), watcher=bar,
            )  # fmt: skip
    except KeyboardInterrupt:
        print("Interrupted.", file=sys.stderr)
        raise typer.Exit(130) from None
    _print(found)


@command()
def plan(
    clients: Annotated[float, typer.Option(help="How many clients there are, such as 1e8.")],
    parameters: Annotated[float, typer.Option(help="Of your model, such as 1e7.")],
    per_day: Annotated[float, typer.Option(help="Answers of a client a day.")] = 1.0,
    rule: Annotated[str, typer.Option(help="A preset.")] = "FedBuff",
    on_disk: Annotated[str, typer.Option(help="Cached updates are on a disk, in this format: int8.")] = "",
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="NAME=VALUE of the preset; may be repeated.")
    ] = None,
    in_flight: Annotated[
        float | None, typer.Option(help="Clients that train at once; by default 10 minutes each.")
    ] = None,
    memory: Annotated[str, typer.Option(help="Of a machine.")] = "512GB",
    disk: Annotated[str, typer.Option(help="Of a machine.")] = "30TB",
    writes: Annotated[str, typer.Option(help="What the disk writes a second.")] = "1GB",
    network: Annotated[str, typer.Option(help="What the network carries a second, each way.")] = "1.25GB",
    durability: Annotated[str, typer.Option(help="arrival, step or none: no log.")] = "arrival",
) -> None:
    """Say what a server needs, what ends first, and what to change.

    Small servers of the rule run here and are measured. Takes seconds.
    """
    import fastagg
    from fastagg.planning import in_bytes
    from fastagg.sheet import Sheet

    given: dict[str, Any] = dict(_setting(one) for one in settings or ())
    if on_disk:
        given["cache"] = fastagg.Tiered(on_disk)  # type: ignore[arg-type]  # it says what is wrong
    found = fastagg.plan(
        rule, clients=clients, parameters=parameters, per_day=per_day, in_flight=in_flight, memory=memory, disk=disk,
        writes=writes, network=network, durability=durability, **given,
    )  # fmt: skip
    unit = {"memory": "", "disk space": "", "processor": " s/s"}
    rows = []
    for name, need in found.needs.items():
        shown = [f"{one:.3g}" if name == "processor" else in_bytes(one) for one in need]
        rows.append((name, *(one + unit.get(name, "/s") for one in shown), f"{100 * need.share:,.3g}%"))
    show(Sheet("What one machine needs", ("of", "needed", "there", "share"), rows))
    ends = (
        f"{found.first} ends first. Change: {found.change}."
        if found.change
        else f"It fits. {found.first} is used most."
    )
    lines = [
        ends, f"Most answers a second: {found.rate:,.3g}.",
        *(f"{name}: {who}." for name, who in found.carries.items()),
        *(f"Refused, {name}: {why}." for name, why in found.refused.items()),
    ]  # fmt: skip
    print("\n".join(textwrap.fill(line, 79, subsequent_indent="  ") for line in lines))


def _setting(text: str) -> tuple[str, object]:
    import ast

    name, _, value = text.partition("=")
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return name, value


def _print(found: Advice) -> None:
    from rich.filesize import decimal

    from fastagg.sheet import Sheet
    from fastagg.sim.many import advice as facts

    first, *others = found.ranked[:3]
    print("\n  ".join(["Use", first.line]), "\n  ".join(["Runners-up", *(one.line for one in others)]), sep="\n")
    rows = []
    for one in (first, *others):
        accuracy = f"{one.accuracy.mean:.1f} [{one.accuracy.low:.1f}, {one.accuracy.high:.1f}]"
        rows.append((one.rule, accuracy, "" if one is first else str(one.behind), decimal(one.memory)))
    print()
    show(Sheet("The best rules", ("rule", "accuracy, %", "points behind", "memory"), rows))
    without = ", ".join(f"{name} ({decimal(needs)})" for name, needs in found.left_out.items())
    lines = [
        f"Intervals: Student's, 95%, {facts.JUDGES} seeds; differences seed by seed, after the same virtual time.",
        *found.why,
        without and f"Too large for the memory: {without}.",
        f"Clients took {facts.STEPS} steps of {facts.BATCH} samples at a rate of {facts.CLIENT_RATE}, or sent the "
        f"gradient of {facts.STEPS * facts.BATCH}. With other client rates the best server rates differ.",
    ]
    print("\n".join(textwrap.fill(line, 79) for line in lines if line))
    print(f"Again: {found.command}")
