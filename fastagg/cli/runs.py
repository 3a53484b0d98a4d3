"""The commands about simulations: demo, run, compare and recipes. ``--set KEY=VALUE`` changes a key of a recipe.
``compare`` also takes several values of a key: ``--set KEY=VALUE,VALUE``."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fastagg._checks import parse_change
from fastagg._types import Foreign, Plain
from fastagg.cli.base import command
from fastagg.cli.screen import fail, listing, say, show
from fastagg.errors import ConfigError

if TYPE_CHECKING:
    from fastagg.sim.recipes.config import Config
    from fastagg.sim.runs.result import Result
    from fastagg.sim.show.findings import Conclusions

Out = Annotated[Path | None, typer.Option("--out", help="Folder for the results.")]
Seed = Annotated[int | None, typer.Option("--seed", min=0, help="Seed of all random numbers. Default: the recipe's.")]
DataDir = Annotated[Path | None, typer.Option("--data-dir", help="Folder with the data, for recipes that read files.")]
Format = Annotated[str, typer.Option("--format", metavar="png|pdf|svg", help="Format of the pictures.")]
_CHOICE = r"""((?:"[^"]*"|'[^']*'|\[[^]]*\]|\{[^}]*\}|[^,])*),"""
Change = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a setting, such as client.lr=0.1. Repeatable."),
]


@command()
def demo(
    out: Out = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of all random numbers.")] = 0,
    picture: Format = "png",
) -> None:
    """Train with slow clients, synchronously and asynchronously.

    The demo trains on handwritten digits with three seeds. It makes a table, plots and a report in about 15 seconds."""
    from fastagg import _extras

    _extras.require("the simulator", "sim", _extras.SIM)
    # These lines are printed before the imports below, which take about a second.
    print("50 clients learn to read digits, synchronously and asynchronously:", file=sys.stderr)
    print("4 methods with 3 seeds each, about 15 seconds on two cores.", file=sys.stderr)
    from fastagg._build import usable_cores
    from fastagg.cli.demo import SYNCHRONOUS, TITLE, configs

    runs = configs(seed)
    _compare(
        runs, out or Path("runs/demo"), picture, title=TITLE, jobs=min(usable_cores(), len(runs)), replace=True,
        baseline=SYNCHRONOUS,
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
        bool, typer.Option("--resume", help="Continue from the folder's checkpoint, if there is one.")
    ] = False,
    replace: Annotated[bool, typer.Option("--replace", help="Delete the run that the folder holds.")] = False,
    tracker: Annotated[
        list[str] | None,
        typer.Option(
            "--tracker",
            metavar="NAME=SETTING",
            help="Also log to tensorboard=FOLDER, mlflow=EXPERIMENT or wandb=PROJECT. Repeatable.",
        ),
    ] = None,
    workers: Annotated[int, typer.Option("--workers", min=1, help="How many threads train clients at once.")] = 1,
    picture: Format = "png",
) -> None:
    """Run one recipe and write the results to a folder.

    The folder has the config, metrics, a summary, a plot, a report and a checkpoint."""
    from fastagg import _checks
    from fastagg.bars import ProgressBar
    from fastagg.drawing import FORMATS
    from fastagg.sim.recipes import load
    from fastagg.sim.runs.output import check_folder
    from fastagg.sim.runs.run import run as simulate
    from fastagg.trackers import parse

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
        Path | None, typer.Option("--out", help="Folder for the results. Runs that it holds are not repeated.")
    ] = None,
    seed: Seed = None,
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Number of seeds, counted up from --seed.")] = 1,
    jobs: Annotated[
        int | None, typer.Option("-j", "--jobs", "--workers", min=1, help="How many processes run at once.")
    ] = None,
    data_dir: DataDir = None,
    changes: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE[,VALUE...]", help="Change a setting. Several values make a grid of runs."
        ),
    ] = None,
    target: Annotated[
        float | None, typer.Option("--target", min=0, max=1, help="Accuracy to reach. Default: the recipes'.")
    ] = None,
    baseline: Annotated[
        str | None,
        typer.Option("--baseline", help="Recipe or label that others' times to the target are compared with."),
    ] = None,
    title: Annotated[str, typer.Option("--title", help="Title of the plots.")] = "",
    picture: Format = "png",
) -> None:
    """Run several recipes, seeds and settings, and compare them.

    Each run has a folder. Tables and plots show all runs. If the command was stopped, run it again to continue."""
    choices = dict(parse_choices(text) for text in changes or ())
    grid = {key: values for key, values in choices.items() if len(values) > 1}
    shared = {key: values[0] for key, values in choices.items() if len(values) == 1}
    _compare(
        recipes, out or Path("runs/compare"), picture, changes={**shared, **_changes(seed, data_dir, None)}, grid=grid,
        seeds=seeds, title=title, jobs=jobs, target=target, baseline=baseline,
    )  # fmt: skip


@command()
def recipes(
    words: Annotated[
        list[str] | None, typer.Argument(help="Only recipes with all these words in their line or presets.")
    ] = None,
) -> None:
    """List the recipes and the tables of runs. In a clone the list also has those of the papers.

    Each item has the number of runs, their data and the purpose."""
    asked = [word.lower() for word in words or ()]
    chosen = [entry[:3] for entry in catalogue() if all(word in " ".join(entry).lower() for word in asked)]
    if not chosen:
        fail("no recipe is like that: `fastagg recipes` lists them all")
    listing(chosen)


def catalogue() -> list[tuple[str, str, str, str]]:
    """Return every recipe, and then every table of runs. An item is (name, runs and their data, purpose, presets)."""
    from fastagg.sim import recipes
    from fastagg.sim.recipes import tables

    singles = [(name, [config], config.about) for name in recipes.names() for config in [recipes.load(name)]]
    many = [
        (config.name, [cell.config for cell in config.cells], config.title)
        for config in map(tables.load, tables.names())
    ]
    entries = []
    for name, configs, purpose in [*singles, *many]:
        runs = "1 run" if len(configs) == 1 else f"{len(configs)} runs"
        data = ", ".join(dict.fromkeys(config.data.name for config in configs))
        files = " in files" * any(hasattr(config.data, "dir") for config in configs)
        presets = " ".join({config.algorithm.name for config in configs})
        entries.append((name, f"{runs} on {data}{files}", purpose.replace("\n", " ").rstrip("."), presets))
    return entries


def parse_choices(text: str) -> tuple[str, list[object]]:
    """Split "client.lr=0.1,0.3" into the key and its values. A comma inside brackets or quotes does not split."""
    key, equals, values = text.partition("=")
    parts = re.findall(_CHOICE, f"{values},")
    if len(parts) > 1 and not all(map(str.strip, parts)):
        raise ConfigError(f"expected key=value,value such as client.lr=0.1,0.3, got {text!r}")
    parsed = [parse_change(f"{key}{equals}{part}") for part in parts]
    return parsed[0][0], [value for _, value in parsed]


def _changes(seed: int | None, data_dir: Path | None, changes: Sequence[str] | None) -> Plain:
    values = dict(parse_change(text) for text in changes or ())
    if seed is not None:
        values["seed"] = seed
    if data_dir is not None:
        values["data.dir"] = str(data_dir)
    return values


def _compare(recipes: Sequence[str | Config], out: Path, picture: str, **settings: Foreign) -> None:
    from fastagg import _checks
    from fastagg.drawing import FORMATS
    from fastagg.sim import compare as run_all

    _checks.one_of("--format", picture, FORMATS)
    done = run_all(recipes, out=out, picture=picture, **settings)
    if done.findings is not None:
        _tell(done.findings)
        _say_where(out, done.pictures)
    _end_if_interrupted(done.results)
    if done.failed:
        name, why = next(iter(done.failed.items()))
        fail(f"{len(done.failed)} of {len(done.failed) + len(done.results)} runs failed, {name}: {why}")


def _show(result: Result, out: Path, picture: str) -> None:
    from fastagg.sim.comparison.groups import grouped
    from fastagg.sim.recipes.tables import Cell
    from fastagg.sim.show import findings

    _tell(findings.find(grouped([(Cell(result.config), result)])))
    _say_where(out, [out / f"accuracy.{picture}"])
    _end_if_interrupted([result])


def _tell(conclusions: Conclusions) -> None:
    for sheet in conclusions.sheets:
        show(sheet)
    for note in conclusions.notes:
        print(f"Note: {note}", file=sys.stderr)
    for sentence in conclusions.sentences:
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
