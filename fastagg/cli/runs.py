"""The commands that simulate: demo, run, compare and recipes."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fastagg._types import Foreign, Plain
from fastagg.cli.base import command
from fastagg.cli.screen import fail, listing, say, show

if TYPE_CHECKING:
    from fastagg.cli.catalogue import Entry
    from fastagg.sim.one.result import Result
    from fastagg.sim.recipes.tables import Cell
    from fastagg.sim.show.findings import Conclusions

Out = Annotated[Path | None, typer.Option("--out", help="Folder for the results.")]
Seed = Annotated[int | None, typer.Option("--seed", min=0, help="Seed of everything random; replaces the recipe's.")]
DataDir = Annotated[Path | None, typer.Option("--data-dir", help="Folder with the data, for recipes that read files.")]
Format = Annotated[str, typer.Option("--format", metavar="png|pdf|svg", help="Format of the pictures.")]
Change = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a key, such as client.lr=0.1; repeatable."),
]


@command()
def demo(
    out: Out = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of everything random.")] = 0,
    picture: Format = "png",
) -> None:
    """Train with slow clients, synchronously and asynchronously.

    Real digits, three seeds; a table, plots and a report, in about 15 seconds.
    """
    from fastagg import _extras

    _extras.require("the simulator", "sim", _extras.SIM)
    # Before anything heavy is imported, so that it is on the screen at once.
    print("50 clients learn to read digits, synchronously and asynchronously:", file=sys.stderr)
    print("4 methods with 3 seeds each, about 15 seconds on two cores.", file=sys.stderr)
    from fastagg._build import usable_cores
    from fastagg.cli.demo import SYNCHRONOUS, TITLE, configs
    from fastagg.sim.recipes.tables import Cell

    cells = [Cell(config) for config in configs(seed)]
    _compare(
        cells, out or Path("runs/demo"), title=TITLE, jobs=min(usable_cores(), len(cells)), replace=True,
        picture=picture, baseline=SYNCHRONOUS,
    )  # fmt: skip


@command()
def run(
    recipe: Annotated[
        str, typer.Argument(help="A name from `fastagg recipes`, a TOML file, or with --resume a run's folder.")
    ],
    out: Out = None,
    seed: Seed = None,
    data_dir: DataDir = None,
    changes: Change = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on from the checkpoint in the folder, if there is one.")
    ] = False,
    replace: Annotated[bool, typer.Option("--replace", help="Delete the run that is in the folder already.")] = False,
    tracker: Annotated[
        list[str] | None,
        typer.Option(
            "--tracker",
            metavar="NAME=SETTING",
            help="Where metrics are drawn, too: tensorboard=FOLDER, mlflow=EXPERIMENT, wandb=PROJECT; repeatable.",
        ),
    ] = None,
    workers: Annotated[int, typer.Option("--workers", min=1, help="How many threads train clients at once.")] = 1,
    picture: Format = "png",
) -> None:
    """Run one recipe and write its folder.

    It holds the config, metrics, a summary, a plot, a report and a checkpoint.
    """
    from fastagg import _checks
    from fastagg.cli.bars import ProgressBar
    from fastagg.integrations.trackers import parse
    from fastagg.sim.one.output import check_folder
    from fastagg.sim.one.run import run as simulate
    from fastagg.sim.recipes import load
    from fastagg.sim.show.style import FORMATS

    if resume and replace:
        fail("--resume goes on with the run in the folder, and --replace deletes it: give one of them")
    if resume and Path(recipe).is_dir():
        out = out or Path(recipe)
        if not (out / "config.toml").exists():
            fail(f"{recipe}: no run is in this folder (config.toml is missing); leave --resume out to begin one")
        recipe = str(Path(recipe) / "config.toml")
    config = load(recipe, _changes(seed, data_dir, changes))
    check_folder(out := out or Path("runs") / f"{config.name}-seed{config.seed}")
    settings: Plain = {
        "resume": "go on" if resume else "never", "replace": replace,
        "picture": _checks.one_of("--format", picture, FORMATS),
        "trackers": dict(parse(text) for text in tracker or ()), "workers": workers,
    }  # fmt: skip
    with ProgressBar(config.label or config.name) as bar:
        result = simulate(config, out, bar, **settings)
    _show(result, out, picture)


@command()
def compare(
    recipes: Annotated[list[str], typer.Argument(help="Recipes and tables from `fastagg recipes`, or TOML files.")],
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder for the results; what is there already is not run again.")
    ] = None,
    seed: Seed = None,
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Run each with this many seeds, from --seed up.")] = 1,
    jobs: Annotated[
        int | None, typer.Option("-j", "--jobs", "--workers", min=1, help="How many processes share the runs.")
    ] = None,
    data_dir: DataDir = None,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE[,VALUE...]", help="Change a key; with several values a grid of runs."),
    ] = None,
    target: Annotated[
        float | None, typer.Option("--target", min=0, max=1, help="Accuracy to reach; replaces the recipes'.")
    ] = None,
    baseline: Annotated[
        str | None, typer.Option("--baseline", help="Recipe or label: how many times sooner others reach the target.")
    ] = None,
    title: Annotated[str, typer.Option("--title", help="Title of the plots.")] = "",
    search: Annotated[
        list[str] | None,
        typer.Option("--search", metavar="KEY=LOW..HIGH", help="Search a key for each method, on seeds of its own."),
    ] = None,
    budget: Annotated[int, typer.Option("--budget", min=1, help="Trials of a search, for each method.")] = 20,
    picture: Format = "png",
) -> None:
    """Run several recipes, seeds and settings, and compare them.

    Each run has a folder; tables and plots show all of them. Stopped at any moment, the same command
    goes on where it was.
    """
    from fastagg.cli.keys import parse_choices
    from fastagg.sim.many.cells import cells

    given = dict(parse_choices(text) for text in changes or ())
    grid = {key: values for key, values in given.items() if len(values) > 1}
    shared = {key: values[0] for key, values in given.items() if len(values) == 1}
    found = cells(recipes, {**shared, **_changes(seed, data_dir, None)}, grid, seeds)
    out = out or Path("runs/compare")
    if search:
        found = _searched(found, search, budget, out, jobs)
    _compare(
        found, out, title=title, jobs=jobs, target=target, baseline=baseline,
        picture=picture, names=recipes,
    )  # fmt: skip


@command()
def recipes(
    words: Annotated[list[str] | None, typer.Argument(help="Only those whose line has all these words.")] = None,
    algorithm: Annotated[str | None, typer.Option("--algorithm", help="Only those that run this preset.")] = None,
    data: Annotated[str | None, typer.Option("--data", help="Only those on this data set.")] = None,
    no_files: Annotated[bool, typer.Option("--no-files", help="Only those that need no --data-dir.")] = False,
    kind: Annotated[str | None, typer.Option("--kind", help="Only recipes (single runs) or tables.")] = None,
) -> None:
    """List the recipes and tables; in a checkout the papers', too.

    With their runs, their data, their purpose.
    """
    from fastagg import _checks
    from fastagg.cli.catalogue import catalogue

    known = catalogue()
    if algorithm is not None:
        _checks.one_of("--algorithm", algorithm, tuple(sorted({name for one in known for name in one.algorithms})))
    if data is not None:
        _checks.one_of("--data", data, tuple(sorted({name for one in known for name in one.data})))
    if kind is not None:
        _checks.one_of("--kind", kind, ("recipes", "tables"))
    chosen = [one for one in known if _like(one, words or (), algorithm, data, no_files, kind)]
    if not chosen:
        fail("no recipe is like that: `fastagg recipes` lists them all")
    listing([(one.name, _fact(one), one.purpose) for one in chosen])


def _fact(one: Entry) -> str:
    runs = "1 run" if one.runs == 1 else f"{one.runs} runs"
    return f"{runs} on {', '.join(one.data)}" + (" in files" if one.files else "")


def _like(
    one: Entry, words: Sequence[str], algorithm: str | None, data: str | None, no_files: bool, kind: str | None
) -> bool:
    line = f"{one.name} {_fact(one)} {one.purpose}".lower()
    return (
        algorithm in (None, *one.algorithms)
        and data in (None, *one.data)
        and not (no_files and one.files)
        and kind in (None, "tables" if one.runs > 1 else "recipes")
        and all(word.lower() in line for word in words)
    )


def _changes(seed: int | None, data_dir: Path | None, changes: Sequence[str] | None) -> Plain:
    from fastagg.cli.keys import parse_change

    values = dict(parse_change(text) for text in changes or ())
    if seed is not None:
        values["seed"] = seed
    if data_dir is not None:
        values["data.dir"] = str(data_dir)
    return values


def _searched(cells: Sequence[Cell], texts: Sequence[str], budget: int, out: Path, jobs: int | None) -> list[Cell]:
    from fastagg.cli.bars import CellsBar
    from fastagg.cli.keys import parse_range
    from fastagg.sim.many.search import searched

    ranges, methods = dict(parse_range(text) for text in texts), {cell.folder for cell in cells}
    with CellsBar(budget * len(methods)) as bar:
        best = searched(cells, ranges, budget, out, bar, jobs=jobs)
    for cell in {cell.folder: cell for cell in reversed(best)}.values():
        values = dict(cell.config.model_dump(mode="python"))
        say(f"{cell.folder}: " + ", ".join(f"{key}={_value(values, key)}" for key in ranges))
    return best


def _value(values: Plain, key: str) -> str:
    for part in key.split("."):
        values = values[part]
    return f"{values:.4g}"


def _compare(cells: Sequence[Cell], out: Path, **settings: Foreign) -> None:
    from fastagg import _checks
    from fastagg.cli.bars import CellsBar
    from fastagg.sim.many.compare import compare as run_all
    from fastagg.sim.show.style import FORMATS

    _checks.one_of("--format", settings["picture"], FORMATS)
    with CellsBar(len(cells)) as bar:
        done = run_all(cells, out, bar, **settings)
    if done.findings is not None:
        _tell(done.findings)
        _say_where(out, done.pictures)
    _end_if_interrupted(done.results)
    if done.failed:
        one = next(iter(done.failed.items()))
        fail(f"{len(done.failed)} of {len(cells)} runs failed, {one[0]}: {one[1]}")


def _show(result: Result, out: Path, picture: str) -> None:
    from fastagg.sim.many.groups import grouped
    from fastagg.sim.recipes.tables import Cell
    from fastagg.sim.show import findings

    _tell(findings.find(grouped([(Cell(result.config), result)])))
    _say_where(out, [out / f"accuracy.{picture}"])
    _end_if_interrupted([result])


def _tell(found: Conclusions) -> None:
    for sheet in found.sheets:
        show(sheet)
    for note in found.notes:
        print(f"Note: {note}", file=sys.stderr)
    for sentence in found.sentences:
        say(sentence)


def _say_where(out: Path, pictures: Sequence[Path]) -> None:
    print(f"Results: {out}")
    print(f"Report:  {out / 'report.html'}")
    for picture in pictures:
        print(f"Plot:    {picture}")


def _end_if_interrupted(results: Sequence[Result]) -> None:
    if any(result.summary["interrupted"] for result in results):
        print("Interrupted: these are the results up to ctrl-C.", file=sys.stderr)
        raise typer.Exit(130)
