"""A run from its beginning to its end: the loop around a simulation, and the folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Literal

import torch

from fastagg._types import Plain
from fastagg.errors import ConfigError, DataError, NonFiniteUpdate
from fastagg.integrations.trackers import Given, Trackers
from fastagg.sim import engines
from fastagg.sim.clients.own import NAMES as FUNCTIONS
from fastagg.sim.clients.own import Own
from fastagg.sim.data.federated import FederatedData
from fastagg.sim.data.own import check as check_data
from fastagg.sim.one import checkpoints, output
from fastagg.sim.one.interrupt import on_ctrl_c
from fastagg.sim.one.metrics import ClientRow, DelayRow, Row
from fastagg.sim.one.result import Result, read
from fastagg.sim.one.simulation import Factory, Simulation
from fastagg.sim.one.summary import summary as summary_of
from fastagg.sim.recipes.config import Config, changed, from_dict, to_toml
from fastagg.sim.show.progress import Progress

Resume = Literal["never", "go on", "replace"]


def run(
    config: Config,
    out: Path | None = None,
    progress: Progress | None = None,
    *,
    data: FederatedData | None = None,
    model: Factory | None = None,
    own: Own | None = None,
    trackers: Given = None,
    resume: Resume = "never",
    stop: Callable[[], bool] = lambda: False,
    picture: str = "png",
    engine: engines.Name = "here",
    workers: int | None = None,
) -> Result:
    """Run ``config`` to its end, to ctrl-C or to divergence; write the folder ``out`` unless it is None.

    The same config gives the same rows, bit for bit (on one machine and torch version). ``resume`` says what to do
    with a run that is in ``out``. "never" replaces it. "go on" continues from its last checkpoint, with the same
    result as an uninterrupted run, or only reads the run if it is finished. "replace" does the same if the config is
    equal, and otherwise replaces the run. ``stop`` is called before every update, and stops the run like ctrl-C.
    ``picture`` is the format of the plot. ``data``, ``model`` and the functions in ``own`` (see
    :class:`fastagg.sim.clients.own.Own`) replace ``config``'s. Pass them again to resume.
    ``trackers`` (see :mod:`fastagg.integrations.trackers`) get every new row, and are closed at the end.

    ``engine`` is where clients train: "here" or on "ray", with so many ``workers``, which are threads for "here" (None:
    one thread; one worker for each core). The files are the same to the bit. Any engine goes on with a run of another.
    What ``data``, ``model`` and ``own`` hold must be possible to pickle for "ray".

    DataError if ``out`` cannot be written, before any training. ConfigError if "go on" finds a run of another config.
    CheckpointError if a checkpoint is damaged. RunFailed if training fails in a worker, or workers keep dying.
    MissingDependency without the extra ``ray``.
    """
    engines.check(engine, workers)
    config = given(config, data, model, own)
    begun = out is not None and resume != "never" and checkpoints.same_run(out, config, strict=resume == "go on")
    if begun and out is not None and (result := read(out, config)) is not None and not result.summary["interrupted"]:
        return result
    with (
        on_ctrl_c() as asked,
        torch_threads(config.run.torch_threads),
        closing(Trackers(trackers)) as told,
        closing(Simulation(config, data, model, engine, workers, own)) as simulation,
    ):
        if out is not None and not (begun and checkpoints.restore(simulation, out)):
            _prepare(out, config)
        keeper = None if out is None else checkpoints.Checkpoints(out, config.run.checkpoint_every)
        progress = progress or Progress()

        def evaluate() -> None:
            row = simulation.evaluate()
            progress.evaluated(row)
            told.log({key: value for key, value in asdict(row).items() if key != "version"}, row.version)

        stopped = _loop(simulation, lambda: asked.is_set() or stop(), progress, evaluate, keeper)
        unit, delays = simulation.schedule.unit, dict(simulation.delays)
        summary, clients = summary_of(simulation, stopped), simulation.clients()
        if out is None:
            weights = {name: array.clone() for name, array in simulation.server.parameters().items()}
            return Result(config, simulation.rows, summary, unit, delays, clients, weights=weights)
        result = Result(config, simulation.rows, summary, unit, delays, clients, out)
        _write(out, result, simulation, picture)
    return result


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def given(config: Config, data: FederatedData | None, model: Factory | None, own: Own | None = None) -> Config:
    """Return ``config`` for a run whose data, model or functions a program passes. They have the name "given" in it.

    DataError if the data cannot be used for training.
    """
    changes: Plain = {}
    if data is not None:
        check_data(data, "data")
        changes["data"] = {"name": "given", "clients": len(data.clients)}
    if model is not None:
        changes["model"] = {"name": "given"}
    if own is not None and not isinstance(own, Own):
        raise ConfigError(f"own: expected fastagg.sim.clients.own.Own(...), got a {type(own).__name__}")
    changes.update({f"own.{name}": "given" for name in FUNCTIONS if getattr(own, name, None) is not None})
    return from_dict(changed(config.model_dump(), changes), "the config") if changes else config


def _loop(
    simulation: Simulation,
    stop: Callable[[], bool],
    progress: Progress,
    evaluate: Callable[[], None],
    keeper: checkpoints.Checkpoints | None,
) -> str:
    """Return why the run stopped: "finished", "interrupted" or "diverged"."""
    if not simulation.rows:
        evaluate()
    stopped = "finished"
    while (share := simulation.done()) < 1.0:
        progress.advanced(share)
        if stop():
            stopped = "interrupted"
            if keeper is not None:
                keeper.write(simulation)  # before the evaluation below, which an unbroken run has not
            break
        try:
            stepped = simulation.step()
        except NonFiniteUpdate:
            stopped = "diverged"
            break
        if stepped and simulation.due():
            evaluate()
        if keeper is not None and keeper.due():
            keeper.write(simulation)
    if simulation.rows[-1].uploads != simulation.uploads:
        evaluate()
    if stopped == "finished" and keeper is not None:
        keeper.write(simulation)  # if a later file fails, nothing must be trained again
    progress.advanced(1.0)
    return stopped


def _prepare(out: Path, config: Config) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
        output.tidy(out)
        # Remove an earlier run's files, the summary first, so that it is not taken for this run's.
        for name in ("summary.json", checkpoints.FILE, "metrics.csv", "clients.csv", "delays.csv", "report.html"):
            (out / name).unlink(missing_ok=True)
        for plot in out.glob("accuracy.*"):
            plot.unlink()
        output.write_text(out / "config.toml", to_toml(config))
    except OSError as error:
        raise DataError(f"cannot write results to {out}: {error}") from error


def _write(out: Path, result: Result, simulation: Simulation, picture: str) -> None:
    from fastagg.sim.many.groups import grouped
    from fastagg.sim.recipes.tables import Cell
    from fastagg.sim.show import findings, pages, plots, style

    try:
        output.write_text(out / "metrics.csv", output.rows_csv(Row, result.rows))
        output.write_text(out / "clients.csv", output.rows_csv(ClientRow, result.clients))
        delays = [DelayRow(*pair) for pair in sorted(result.delays.items())]
        output.write_text(out / "delays.csv", output.rows_csv(DelayRow, delays))
        style.save(plots.accuracy_figure(result), out / f"accuracy.{picture}")
        groups = grouped([(Cell(result.config), result)])
        output.write_text(
            out / "report.html", pages.comparison_page(groups, findings.find(groups), result.config.about)
        )
        output.write_text(out / "summary.json", output.summary_json(result.summary))
        if not result.summary["interrupted"]:
            simulation.server.save(out / checkpoints.FILE)  # open tasks are no longer needed
    except OSError as error:
        raise DataError(f"cannot write results to {out}: {error}") from error
