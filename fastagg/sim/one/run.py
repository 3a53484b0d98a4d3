"""A run from its beginning to its end: the loop around a simulation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Literal

import torch

from fastagg._types import Plain
from fastagg.errors import ConfigError, NonFiniteUpdate, UpdateTooLarge
from fastagg.integrations.trackers import Given, Trackers
from fastagg.sim import engines
from fastagg.sim.clients.own import NAMES as FUNCTIONS
from fastagg.sim.clients.own import Own
from fastagg.sim.data.federated import FederatedData
from fastagg.sim.data.own import check as check_data
from fastagg.sim.one import output
from fastagg.sim.one.interrupt import on_ctrl_c
from fastagg.sim.one.metrics import ClientRow, DelayRow, Row
from fastagg.sim.one.metrics import summary as summary_of
from fastagg.sim.one.result import Folder, Result
from fastagg.sim.one.simulation import Factory, Simulation
from fastagg.sim.recipes.config import Config, changed, from_dict
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
    folder = None if out is None else Folder(out, config)
    begun = folder is not None and resume != "never" and folder.same_run(strict=resume == "go on")
    if folder is not None and begun and (result := folder.read()) and not result.summary["interrupted"]:
        return result
    with (
        on_ctrl_c() as asked,
        torch_threads(config.run.torch_threads),
        closing(Trackers(trackers)) as told,
        closing(Simulation(config, data, model, engine, workers, own)) as simulation,
    ):
        if folder is not None and not (begun and folder.restore(simulation)):
            folder.prepare()
        stopped = _loop(simulation, lambda: asked.is_set() or stop(), progress or Progress(), told, folder)
        summary, unit, delays = summary_of(simulation, stopped), simulation.schedule.unit, dict(simulation.delays)
        result = Result(config, simulation.rows, summary, unit, delays, simulation.clients(), out)
        if folder is not None:
            _finish(folder, result, simulation, picture)
            return result
        weights = {name: array.clone() for name, array in simulation.server.parameters().items()}
        return replace(result, weights=weights)


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
    simulation: Simulation, stop: Callable[[], bool], progress: Progress, told: Trackers, folder: Folder | None
) -> str:
    """Return why the run stopped: "finished", "interrupted" or "diverged"."""

    def evaluate() -> None:
        row = simulation.evaluate()
        progress.evaluated(row)
        told.log({key: value for key, value in asdict(row).items() if key != "version"}, row.version)

    if not simulation.rows:
        evaluate()
    stopped = "finished"
    while (share := simulation.done()) < 1.0:
        progress.advanced(share)
        if stop():
            stopped = "interrupted"
            break
        try:
            stepped = simulation.step()
        except (NonFiniteUpdate, UpdateTooLarge) as error:
            stopped, simulation.diverged = "diverged", str(error)
            break
        if stepped and simulation.due():
            evaluate()
        if folder is not None and folder.due():
            folder.keep(simulation)
    if stopped == "interrupted" and folder is not None:
        folder.keep(simulation)  # before the evaluation below, which an unbroken run has not
    if simulation.rows[-1].uploads != simulation.uploads:
        evaluate()
    if stopped == "finished" and folder is not None:
        folder.keep(simulation)  # if a later file fails, nothing must be trained again
    progress.advanced(1.0)
    return stopped


def _finish(folder: Folder, result: Result, simulation: Simulation, picture: str) -> None:
    from fastagg.sim.many.groups import grouped
    from fastagg.sim.recipes.tables import Cell
    from fastagg.sim.show import findings, plots, style

    out, groups = folder.out, grouped([(Cell(result.config), result)])
    delays = [DelayRow(*pair) for pair in sorted(result.delays.items())]
    with output.writing(out):
        output.write_text(out / "metrics.csv", output.rows_csv(Row, result.rows))
        output.write_text(out / "clients.csv", output.rows_csv(ClientRow, result.clients))
        output.write_text(out / "delays.csv", output.rows_csv(DelayRow, delays))
        figure = plots.curves(groups, result.config.about, ["time"])
        drawn = {"accuracy": style.save(figure, out / f"accuracy.{picture}")}
        page = findings.report(groups, findings.find(groups), drawn, result.config.about)
        output.write_text(out / "report.html", page)
        output.write_text(out / "summary.json", output.summary_json(result.summary))
        if not result.summary["interrupted"]:
            simulation.server.save(folder.checkpoint)  # open tasks are no longer needed
