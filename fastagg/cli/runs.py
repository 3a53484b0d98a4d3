"""The commands that simulate: demo, run, compare and recipes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fastagg.cli.base import app
from fastagg.cli.screen import fail, show

if TYPE_CHECKING:
    from fastagg.sim.groups import Group
    from fastagg.sim.result import Result
    from fastagg.sim.sweep import Cell

Out = Annotated[Path | None, typer.Option("--out", help="Folder for the results.")]
Seed = Annotated[int | None, typer.Option("--seed", min=0, help="Seed of everything random; replaces the recipe's.")]
DataDir = Annotated[Path | None, typer.Option("--data-dir", help="Folder with the data, for recipes that read files.")]
Format = Annotated[str, typer.Option("--format", metavar="png|pdf|svg", help="Format of the pictures.")]
Change = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a key, such as client.lr=0.1; repeatable."),
]


@app.command()
def demo(
    out: Out = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of everything random.")] = 0,
    quick: Annotated[bool, typer.Option("--quick", help="A tenth of the training, to see that it works.")] = False,
    picture: Format = "png",
) -> None:
    """Train real digits with stragglers, synchronously and asynchronously, three seeds; table, plots, report."""
    from fastagg._build import usable_cores
    from fastagg.sim.demo import TITLE, configs, story
    from fastagg.sim.sweep import Cell

    cells = [Cell(config) for config in configs(seed, quick)]
    jobs = min(usable_cores(), len(cells))
    _compare(
        cells, out or Path("runs/demo"), title=TITLE, jobs=jobs, replace=True, picture=picture, story=story,
        baseline="FedAvg",
    )  # fmt: skip


@app.command()
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
    engine: Annotated[
        str,
        typer.Option("--engine", metavar="here|pool|ray", help="Where clients train: this process, processes, Ray."),
    ] = "here",
    workers: Annotated[
        int | None, typer.Option("--workers", min=1, help="How many train at once, for pool and ray; else one a core.")
    ] = None,
    picture: Format = "png",
) -> None:
    """Run one recipe and write its folder: config, metrics, summary, plot, report, checkpoint."""
    from fastagg.integrations.trackers import parse
    from fastagg.sim import engines
    from fastagg.sim.output import begun
    from fastagg.sim.plots import check_format
    from fastagg.sim.progress import ProgressBar
    from fastagg.sim.recipes import load
    from fastagg.sim.simulation import run as simulate

    if resume and Path(recipe).is_dir():
        out = out or Path(recipe)
        recipe = str(Path(recipe) / "config.toml")
    config = load(recipe, _changes(seed, data_dir, changes))
    engines.check(engine, workers)
    out = out or Path("runs") / f"{config.name}-seed{config.seed}"
    if not (resume or replace) and (there := begun(out)):
        fail(f"{out} holds {there}: --resume goes on with it, --replace deletes it, --out takes another folder")
    settings: dict[str, Any] = {
        "resume": "go on" if resume else "never", "picture": check_format(picture),
        "trackers": dict(parse(text) for text in tracker or ()), "engine": engine, "workers": workers,
    }  # fmt: skip
    with ProgressBar(config.label or config.name) as bar:
        result = simulate(config, out, bar, **settings)
    _show(result, out, picture)


@app.command()
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
    engine: Annotated[
        str | None,
        typer.Option(
            "--engine", metavar="here|pool|ray", help="Where runs go on: one by one here, processes (as -j), or Ray."
        ),
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
    picture: Format = "png",
) -> None:
    """Run several recipes, seeds and settings; a folder each, tables and plots of all of them.

    Stopped at any moment, the same command goes on where it was.
    """
    from fastagg.sim.config import parse_choices
    from fastagg.sim.sweep import cells

    given = dict(parse_choices(text) for text in changes or ())
    grid = {key: values for key, values in given.items() if len(values) > 1}
    shared = {key: values[0] for key, values in given.items() if len(values) == 1}
    found = cells(recipes, {**shared, **_changes(seed, data_dir, None)}, grid, seeds)
    _compare(
        found, out or Path("runs/compare"), title=title, jobs=jobs, engine=engine, target=target, baseline=baseline,
        picture=picture, names=recipes,
    )  # fmt: skip


@app.command()
def recipes(
    words: Annotated[list[str] | None, typer.Argument(help="Only those whose line has all these words.")] = None,
    algorithm: Annotated[str | None, typer.Option("--algorithm", help="Only those that run this preset.")] = None,
    data: Annotated[str | None, typer.Option("--data", help="Only those on this data set.")] = None,
    no_files: Annotated[bool, typer.Option("--no-files", help="Only those that need no --data-dir.")] = False,
    kind: Annotated[str | None, typer.Option("--kind", help="Only recipes (single runs) or tables.")] = None,
) -> None:
    """List the recipes and the papers' tables in the package, a line each: runs, data, purpose."""
    from rich.table import Table

    from fastagg import _checks
    from fastagg.sim.tables import catalogue

    known = catalogue()
    if algorithm is not None:
        _checks.one_of("--algorithm", algorithm, tuple(sorted({name for one in known for name in one.algorithms})))
    if data is not None:
        _checks.one_of("--data", data, tuple(sorted({name for one in known for name in one.data})))
    if kind is not None:
        _checks.one_of("--kind", kind, ("recipes", "tables"))
    table = Table(box=None)
    table.add_column("name", no_wrap=True, min_width=max(len(one.name) for one in known))  # never cut: it is typed
    for heading in ("runs", "data", "files", "purpose"):
        table.add_column(heading, no_wrap=True, justify="right" if heading == "runs" else "left")
    for one in known:
        cells = (one.name, str(one.runs), ", ".join(one.data), "yes" if one.files else "no", one.purpose)
        line = " ".join(cells).lower()
        left_out = (
            (algorithm is not None and algorithm not in one.algorithms)
            or (data is not None and data not in one.data)
            or (no_files and one.files)
            or (kind is not None and (one.runs > 1) != (kind == "tables"))
            or not all(word.lower() in line for word in words or ())
        )
        if not left_out:
            table.add_row(*cells)
    if not table.row_count:
        fail("no recipe is like that: `fastagg recipes` lists them all")
    show(table)


def _changes(seed: int | None, data_dir: Path | None, changes: Sequence[str] | None) -> dict[str, Any]:
    from fastagg.sim.config import parse_change

    values = dict(parse_change(text) for text in changes or ())
    if seed is not None:
        values["seed"] = seed
    if data_dir is not None:
        values["data.dir"] = str(data_dir)
    return values


def _compare(
    cells: Sequence[Cell], out: Path, story: Callable[[Sequence[Group]], list[str]] | None = None, **settings: Any
) -> None:
    from fastagg.sim import sweep_tables
    from fastagg.sim.compare import compare as run_all
    from fastagg.sim.plots import check_format
    from fastagg.sim.progress import CellsBar
    from fastagg.sim.report import claims_table, time_table

    check_format(settings["picture"])
    with CellsBar(len(cells)) as bar:
        done = run_all(cells, out, bar, **settings)
    if done.groups:
        if (crossed := sweep_tables.terminal_pivot(done.groups)) is not None:
            show(crossed)
        show(sweep_tables.terminal(done.groups, settings.get("target"), settings.get("baseline")))
        if done.claims:
            show(claims_table(done.claims))
        show(time_table([(group.label, group.wall_seconds()) for group in done.groups]))
        for note in dict.fromkeys(note for result in done.results for note in result.summary.get("notes", [])):
            print(f"Note: {note}", file=sys.stderr)
        for line in story(done.groups) if story else ():
            print(line)
        _say_where(out, done.pictures)
    _end_if_interrupted(done.results)
    if done.failed:
        one = next(iter(done.failed.items()))
        fail(f"{len(done.failed)} of {len(cells)} runs failed, {one[0]}: {one[1]}")


def _show(result: Result, out: Path, picture: str) -> None:
    from fastagg.sim import sweep_tables
    from fastagg.sim.groups import grouped
    from fastagg.sim.report import time_table
    from fastagg.sim.sweep import Cell

    show(sweep_tables.terminal(grouped([(Cell(result.config), result)])))
    show(time_table([(result.label, result.summary["wall_seconds"])]))
    for note in result.summary.get("notes", []):
        print(f"Note: {note}", file=sys.stderr)
    _say_where(out, [out / f"accuracy.{picture}"])
    _end_if_interrupted([result])


def _say_where(out: Path, pictures: Sequence[Path]) -> None:
    print(f"Results: {out}")
    print(f"Report:  {out / 'report.html'}")
    for picture in pictures:
        print(f"Plot:    {picture}")


def _end_if_interrupted(results: Sequence[Result]) -> None:
    if any(result.summary["interrupted"] for result in results):
        print("Interrupted: these are the results up to ctrl-C.", file=sys.stderr)
        raise typer.Exit(130)
