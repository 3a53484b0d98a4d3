"""The command line: fastagg demo | run | compare | recipes | info | bench.

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
    from fastagg.sim.run import Result


class Commands(TyperGroup):
    """Turns the package's own errors into one line on stderr and exit code 2."""

    def invoke(self, ctx: Any) -> Any:
        from fastagg.errors import FastaggError

        try:
            return super().invoke(ctx)
        except FastaggError as error:
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

    _compare(configs(seed, quick), out or Path("runs/demo"), TITLE)


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
    from fastagg.sim.run import run as simulate

    if resume and Path(recipe).is_dir():
        out = out or Path(recipe)
        recipe = str(Path(recipe) / "config.toml")
    config = load(recipe, _changes(seed, data_dir, changes))
    out = out or Path("runs") / f"{config.name}-seed{config.seed}"
    with ProgressBar(config.label or config.name) as bar:
        result = simulate(config, out, bar, go_on=resume)
    _show([result], out)


@app.command()
def compare(
    recipes: Annotated[list[str], typer.Argument(help="Two or more recipe names or paths.")],
    out: Out = None,
    seed: Seed = None,
    data_dir: DataDir = None,
    changes: Change = None,
) -> None:
    """Run several recipes; one folder each, one table and one plot for all."""
    from fastagg.sim.recipes import load

    shared = _changes(seed, data_dir, changes)
    _compare([load(recipe, shared) for recipe in recipes], out or Path("runs/compare"))


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


def _compare(configs: Sequence[Any], out: Path, title: str = "") -> None:
    from fastagg.sim.compare import compare as run_all

    def finished(result: Result) -> None:
        wall = result.summary["wall_seconds"]["total"]
        print(f"{result.label}: {result.summary['final_accuracy']:.1%} after {wall:.1f} s", file=sys.stderr)

    _show(run_all(configs, out, title, finished), out)


def _show(results: Sequence[Result], out: Path) -> None:
    from fastagg.sim.report import accuracy_table, time_table

    _print(accuracy_table(results))
    _print(time_table(results))
    print(f"Results: {out}")
    print(f"Plot:    {out / 'accuracy.png'}")
    if results[-1].summary["interrupted"]:
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
