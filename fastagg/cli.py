"""The command line: fastagg demo | run | compare | recipes | info | tune | bench.

Every import beyond typer stands inside a command, so that `fastagg --help` answers at once. Results go to
stdout, progress and errors to stderr. Exit codes: 0 done, 1 a benchmark failed or became slower, 2 the user's input was
wrong, 130 ctrl-C.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

if TYPE_CHECKING:
    from fastagg.sim.result import Result
    from fastagg.sim.sweep import Cell


class Commands(TyperGroup):
    """Turns the package's own errors, and the operating system's, into one line on stderr and exit code 2."""

    def invoke(self, ctx: Any) -> Any:
        from fastagg.errors import FastaggError

        try:
            return super().invoke(ctx)
        except FastaggError as error:
            _fail(str(error))
        except BrokenPipeError:  # `fastagg recipes | head`, which typer ends without a word
            raise
        except OSError as error:  # where the disk is full even importing torch fails: it looks for a temporary folder
            _fail(str(error))


app = typer.Typer(
    name="fastagg",
    cls=Commands,
    help="The server side of asynchronous federated learning, and a simulator to try it in.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

Out = Annotated[
    Path | None, typer.Option("--out", help="Folder for the results; files of the same names are replaced.")
]
Seed = Annotated[int | None, typer.Option("--seed", min=0, help="Seed of everything random; replaces the recipe's.")]
DataDir = Annotated[Path | None, typer.Option("--data-dir", help="Folder with the data, for recipes that read files.")]
Change = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a key, such as client.lr=0.1; repeatable."),
]


def main() -> None:
    """Entry point of the `fastagg` command."""
    app()


@app.callback(invoke_without_command=True)
def _options(
    version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False,
) -> None:
    if version:
        import fastagg

        print(f"fastagg {fastagg.__version__}")
        raise typer.Exit


@app.command()
def demo(
    out: Out = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of everything random.")] = 0,
    quick: Annotated[bool, typer.Option("--quick", help="A tenth of the training, to see that it works.")] = False,
) -> None:
    """Train FADAS, FedBuff and FedAsync on real digits with stragglers; print a table, save a plot."""
    from fastagg.sim.demo import TITLE, configs
    from fastagg.sim.sweep import Cell

    _compare([Cell(config) for config in configs(seed, quick)], out or Path("runs/demo"), title=TITLE, replace=True)


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
) -> None:
    """Run one recipe and write its folder: config, metrics, summary, plot, checkpoint."""
    from fastagg.sim.progress import ProgressBar
    from fastagg.sim.recipes import load
    from fastagg.sim.simulation import run as simulate

    if resume and Path(recipe).is_dir():
        out = out or Path(recipe)
        recipe = str(Path(recipe) / "config.toml")
    config = load(recipe, _changes(seed, data_dir, changes))
    out = out or Path("runs") / f"{config.name}-seed{config.seed}"
    with ProgressBar(config.label or config.name) as bar:
        result = simulate(config, out, bar, resume="go on" if resume else "never")
    _show(result, out)


@app.command()
def compare(
    recipes: Annotated[list[str], typer.Argument(help="Recipes and tables from `fastagg recipes`, or TOML files.")],
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder for the results; what is there already is not run again.")
    ] = None,
    seed: Seed = None,
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Run each with this many seeds, from --seed up.")] = 1,
    jobs: Annotated[int, typer.Option("-j", "--jobs", min=1, help="How many runs at once, a process each.")] = 1,
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
    settings = {"title": title, "jobs": jobs, "target": target, "baseline": baseline, "names": recipes}
    _compare(found, out or Path("runs/compare"), **settings)


@app.command()
def recipes() -> None:
    """List the recipes in the package: single runs, then the papers' tables, with the data they read."""
    from rich.table import Table

    from fastagg.sim.tables import catalogue

    table = Table("name", "data", "what it runs", box=None)
    for row in catalogue():
        table.add_row(*row)
    _print(table)


@app.command()
def info() -> None:
    """Print what was compiled and what runs here."""
    import fastagg
    from fastagg.sim.report import pairs_table

    _print(pairs_table("fastagg", fastagg.build_info()))


@app.command()
def tune(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Measure and print; remember nothing.")] = False,
    forget: Annotated[bool, typer.Option("--forget", help="Forget what was remembered, for all processors.")] = False,
) -> None:
    """Measure what suits this processor, in less than a second, print why, and remember it."""
    import fastagg
    from fastagg import measuring, tuning
    from fastagg.sim.report import tuning_table

    if forget:
        tuning.memory_file().unlink(missing_ok=True)
        print(f"Forgotten: {tuning.memory_file()}")
        return
    print(f"{tuning.processor()}, {fastagg.get_num_threads()} threads")
    choices = measuring.measure()
    _print(tuning_table(choices))
    chosen = {choice.setting: choice.chosen for choice in choices if choice.chosen != choice.usual}
    if dry_run:
        print("Chosen: " + (",".join(f"{name}={value}" for name, value in chosen.items()) or "the table's settings"))
        return
    path = tuning.remember(chosen)
    print(f"Remembered in {path}; FASTAGG_TUNE=default goes back to the table for one run, --forget for good.")


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def bench(
    context: typer.Context,
    compare: Annotated[
        tuple[Path, Path] | None,
        typer.Option("--compare", metavar="OLD NEW", help="Two JSON files: exit code 1 if anything became slower."),
    ] = None,
) -> None:
    """Run the benchmarks of a checkout, or compare two results; further arguments go to pytest."""
    import subprocess
    from importlib.util import find_spec

    folder = _bench_folder()
    if folder is None:
        _fail("there is no bench/ folder here: run `fastagg bench` in a checkout of the repository")
    if compare is not None:
        raise typer.Exit(subprocess.run([sys.executable, str(folder / "compare.py"), *compare], check=False).returncode)
    if find_spec("pytest") is None or find_spec("pytest_benchmark") is None:
        _fail('the benchmarks need pytest-benchmark: pip install "fastagg[bench]"')
    command = [sys.executable, "-m", "pytest", str(folder), "--benchmark-only", *context.args]
    raise typer.Exit(1 if subprocess.run(command, check=False).returncode else 0)


def _bench_folder() -> Path | None:
    # Beside the package too: an editable install is run from anywhere.
    for root in (Path.cwd(), Path(__file__).resolve().parents[1]):
        if (root / "bench").is_dir() and (root / "pyproject.toml").is_file():
            return root / "bench"
    return None


def _changes(seed: int | None, data_dir: Path | None, changes: Sequence[str] | None) -> dict[str, Any]:
    from fastagg.sim.config import parse_change

    values = dict(parse_change(text) for text in changes or ())
    if seed is not None:
        values["seed"] = seed
    if data_dir is not None:
        values["data.dir"] = str(data_dir)
    return values


def _compare(cells: Sequence[Cell], out: Path, **settings: Any) -> None:
    from fastagg.sim import sweep_tables
    from fastagg.sim.compare import compare as run_all
    from fastagg.sim.progress import CellsBar
    from fastagg.sim.report import claims_table, time_table

    with CellsBar(len(cells)) as bar:
        done = run_all(cells, out, bar, **settings)
    if done.groups:
        if (crossed := sweep_tables.terminal_pivot(done.groups)) is not None:
            _print(crossed)
        _print(sweep_tables.terminal(done.groups, settings.get("target"), settings.get("baseline")))
        if done.claims:
            _print(claims_table(done.claims))
        _print(time_table([(group.label, group.wall_seconds()) for group in done.groups]))
        for note in dict.fromkeys(note for result in done.results for note in result.summary.get("notes", [])):
            print(f"Note: {note}", file=sys.stderr)
        _say_where(out, done.pictures)
    _end_if_interrupted(done.results)
    if done.failed:
        one = next(iter(done.failed.items()))
        _fail(f"{len(done.failed)} of {len(cells)} runs failed, {one[0]}: {one[1]}")


def _show(result: Result, out: Path) -> None:
    from fastagg.sim.report import accuracy_table, time_table

    _print(accuracy_table([result]))
    _print(time_table([(result.label, result.summary["wall_seconds"])]))
    for note in result.summary.get("notes", []):
        print(f"Note: {note}", file=sys.stderr)
    _say_where(out, [out / "accuracy.png"])
    _end_if_interrupted([result])


def _say_where(out: Path, pictures: Sequence[Path]) -> None:
    print(f"Results: {out}")
    for picture in pictures:
        print(f"Plot:    {picture}")


def _end_if_interrupted(results: Sequence[Result]) -> None:
    if any(result.summary["interrupted"] for result in results):
        print("Interrupted: these are the results up to ctrl-C.", file=sys.stderr)
        raise typer.Exit(130)


def _print(renderable: Any) -> None:
    from rich.console import Console

    console = Console()
    # A pipe has no width; rich would fold the tables into 80 columns there.
    if not console.is_terminal:
        console = Console(width=140)
    console.print(renderable)


def _fail(message: str) -> NoReturn:
    from rich.console import Console

    line = " ".join(message.split())
    Console(stderr=True, soft_wrap=True, highlight=False).print(f"error: {line}", style="red", markup=False)
    raise typer.Exit(2)
