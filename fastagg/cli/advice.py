"""The command that recommends a rule: advise."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fastagg.cli.base import command
from fastagg.cli.screen import show

if TYPE_CHECKING:
    from fastagg.sim.advice import Advice

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
    from fastagg.sim.advice import advise as simulate
    from fastagg.sim.progress import CountBar

    alpha = float(skew) if skew.replace(".", "", 1).isdecimal() else skew
    try:
        with CountBar(RUNS) as bar:
            found = simulate(
                clients, slow=slow, slow_share=slow_share, delays=delays, skew=alpha, data=data, parameters=parameters,
                memory=memory, in_flight=in_flight, seed=seed, jobs=jobs or usable_cores(), watcher=bar,
            )  # fmt: skip
    except KeyboardInterrupt:
        print("Interrupted.", file=sys.stderr)
        raise typer.Exit(130) from None
    _print(found)


def _print(found: Advice) -> None:
    from rich.filesize import decimal

    from fastagg.sheet import Sheet
    from fastagg.sim import advice as facts

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
