"""Runs a simulation from its beginning to its end, and writes the files of its folder."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, nullcontext
from dataclasses import asdict
from dataclasses import replace as replaced
from functools import cache
from pathlib import Path

import torch

from fastagg import _checks, drawing
from fastagg._types import Plain
from fastagg.errors import NonFiniteUpdate, UpdateTooLarge
from fastagg.rules.directions import ActiveSet, AllClients
from fastagg.sim.functions import beside
from fastagg.sim.recipes.config import Config
from fastagg.sim.runs import build, output
from fastagg.sim.runs.inputs import digests
from fastagg.sim.runs.interrupt import on_ctrl_c
from fastagg.sim.runs.metrics import LAST, ClientRow, DelayRow, EvaluationRow, summarise
from fastagg.sim.runs.result import Folder, Result, Resume
from fastagg.sim.runs.simulation import Simulation
from fastagg.sim.show.progress import Progress
from fastagg.trackers import AnyTrackers, Trackers

MOST_WORKERS = 1024


def run(
    config: Config,
    out: Path | None = None,
    progress: Progress | None = None,
    *,
    trackers: AnyTrackers = None,
    resume: Resume = "never",
    replace: bool = False,
    stop: Callable[[], bool] = lambda: False,
    picture: str = "png",
    workers: int = 1,
) -> Result:
    """Run ``config`` to its end, to ctrl-C or to divergence. Write the folder ``out`` unless it is None.

    The same config gives the same rows, bit for bit, on one machine and torch version.

    Args:
        progress: callbacks about the run. None: no callbacks.
        trackers: objects that get every new row of metrics.csv, and are closed at the end (:mod:`fastagg.trackers`).
        resume: what happens if ``out`` has a run. "never" refuses that run with an error. "go on" continues that run
            from its last checkpoint, with the same result as an uninterrupted run. A finished run is only read. A run
            with another config, other data or other code of the user is refused. "again" is like "go on", but a run
            with other data or other code begins anew.
        replace: whether to delete a run that would otherwise be refused, and to begin anew.
        stop: a function that is called before every update. If it returns True, the run stops as after ctrl-C.
        picture: the format of the picture of the accuracy, such as "png".
        workers: the number of threads of this process that train clients. This number has no effect on the results.

    Raises:
        DataError: the data cannot be loaded, or ``out`` cannot be written. The first files are written before training.
        ConfigError: the run in ``out`` is refused, or a setting is invalid.
        CheckpointError: a checkpoint is damaged.
    """
    _checks.whole("workers", workers, least=1, most=MOST_WORKERS)
    _checks.fits("resume", resume, Resume)
    folder, begun, load = None if out is None else Folder(out, config), False, cache(lambda: build.build_data(config))
    with beside(config.folder), torch_settings(config.run.torch_threads), on_ctrl_c() as asked, ExitStack() as ends:
        if folder is not None:
            begun = folder.same_config(resume, replace)
            ended = folder.ended(load, {}) if begun else None
            if ended is None:
                folder.inputs = digests(config, load)
            if not begun:
                folder.warn()
            begun = begun and folder.same_inputs(resume, replace)
            if begun and ended is not None:
                return ended
        tracker = ends.enter_context(closing(Trackers(trackers)))
        simulation = ends.enter_context(closing(Simulation(config, load(), workers)))
        load.cache_clear()
        if folder is not None and not (begun and folder.restore(simulation)):
            folder.prepare()
        stopped = _loop(simulation, lambda: asked.is_set() or stop(), progress or Progress(), tracker, folder)
        said, unit, delays = summary(simulation, stopped), simulation.schedule.unit, dict(simulation.delays)
        said["inputs"] = {} if folder is None else folder.inputs
        result = Result(config, simulation.rows, said, unit, delays, simulation.clients(), out)
        if folder is not None:
            _finish(folder, result, simulation, picture)
            return result
        weights = {name: array.clone() for name, array in simulation.server.parameters().items()}
        return replaced(result, weights=weights)


@contextmanager
def torch_settings(threads: int) -> Iterator[None]:
    """Set the number of torch's threads, the default type fp32 and the default device CPU, for a ``with`` block."""
    before, dtype = torch.get_num_threads(), torch.get_default_dtype()
    torch.set_num_threads(threads)
    torch.set_default_dtype(torch.float32)
    try:
        # A device context is entered only if needed, because it slows down every call of torch.
        with torch.device("cpu") if torch.get_default_device().type != "cpu" else nullcontext():
            yield
    finally:
        torch.set_num_threads(before)
        torch.set_default_dtype(dtype)


def _loop(
    simulation: Simulation, stop: Callable[[], bool], progress: Progress, tracker: Trackers, folder: Folder | None
) -> str:
    """Advance the simulation until it stops. Return the reason: "finished", "interrupted" or "diverged"."""

    def evaluate() -> None:
        row = simulation.evaluate()
        progress.evaluated(row)
        tracker.log({key: value for key, value in asdict(row).items() if key != "version"}, row.version)

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
        folder.keep(simulation)  # without the evaluation below, which an uninterrupted run would not have
    if simulation.rows[-1].uploads != simulation.uploads:
        evaluate()
    if stopped == "finished" and folder is not None:
        folder.keep(simulation)  # no training is lost if writing another file fails
    progress.advanced(1.0)
    return stopped


def _notes(simulation: Simulation, warm_up: float, tested: int) -> Iterator[str]:
    """Yield notes about the results, one line each. Tables and reports show the notes with the run's name."""
    if simulation.diverged:
        yield f"diverged after {simulation.uploads} updates: {simulation.diverged}"
    elif tested < (made := min(LAST, simulation.server.version)):
        yield f"the accuracy is of {tested} of the last {made} versions: the others were not tested"
    if simulation.classes is not None:
        yield "clients: {} with short, {} with medium and {} with long delays".format(*simulation.classes)
        late, slow = sum(simulation.client_uploads[client] == 0 for client in simulation.slow), len(simulation.slow)
        if not slow:
            yield "no client is in the class of large delays: set delay.counts to have some"
        elif late and simulation.uploads and simulation.schedule.now:
            yield f"{late} of {slow} clients of large delays never answered"
    if isinstance(simulation.server.direction, AllClients | ActiveSet) and warm_up > 0.1:
        yield (
            f'{warm_up:.0%} of the updates came before the first step: algorithm.warmup = "partial" steps from the '
            "first on"
        )
    if simulation.config.algorithm.name == "FedAC" and simulation.own.train is None:
        yield "FedAC's clients train without their control variates: this is the server's part, not the paper's FedAC"


def summary(simulation: Simulation, stopped: str) -> Plain:
    """Return the contents of summary.json. ``stopped``: "finished", "interrupted" or "diverged"."""
    config, wall = simulation.config, simulation.stopwatch.split()
    delays, rounds, distillation = simulation.delays, simulation.rounds, simulation.server.distillation
    warm_up = simulation.warm_up / max(1, simulation.uploads)
    results = summarise(simulation.rows, config.run.target, stopped)
    numbers = {} if distillation is None else {k: round(v, 6) for k, v in asdict(distillation).items() if v == v}
    return {
        "name": config.name,
        "algorithm": build.algorithm_name(config),
        "seed": config.seed,
        "stopped": stopped,
        "interrupted": stopped == "interrupted",
        **results,
        "time_unit": simulation.schedule.unit,
        "delay_mean": delays.mean,
        "delay_median": delays.median,
        "delay_max": delays.maximum,
        "tau_avg": rounds.mean,
        "tau_median": rounds.median,
        "tau_max": rounds.maximum,
        "warm_up_share": round(warm_up, 6),
        "clients": len(simulation.data.clients),
        "delay_classes": simulation.classes,
        "weighting": simulation.server.weighting,
        "notes": list(_notes(simulation, warm_up, results["last5_versions"])),
        "parameters": sum(p.numel() for p in simulation.module.parameters()),
        **({} if distillation is None else {"distillation": numbers}),
        "fused": simulation.by_torch or True,
        "wall_seconds": {key: round(value, 4) for key, value in wall.items()},
        "server_share": round(wall["server"] / wall["total"], 6),  # the server's share of the wall-clock time
        "torch": str(torch.__version__),
        "python": platform.python_version(),
    }


def _finish(folder: Folder, result: Result, simulation: Simulation, picture: str) -> None:
    from fastagg.sim.comparison.groups import grouped
    from fastagg.sim.recipes.tables import Cell
    from fastagg.sim.show import findings, plots

    out, groups = folder.out, grouped([(Cell(result.config), result)])
    delays = [DelayRow(*pair) for pair in sorted(result.delays.items())]
    with output.writing(out):
        output.write_text(out / "metrics.csv", output.rows_csv(EvaluationRow, result.rows))
        output.write_text(out / "clients.csv", output.rows_csv(ClientRow, result.clients))
        output.write_text(out / "delays.csv", output.rows_csv(DelayRow, delays))
        figure = plots.curves(groups, result.config.about, ["time"])
        drawn = {"accuracy": drawing.save(figure, out / f"accuracy.{picture}")}
        page = findings.report(groups, findings.find(groups), drawn, result.config.about)
        output.write_text(out / "report.html", page)
        output.write_text(out / "summary.json", output.summary_json(result.summary))
        if not result.summary["interrupted"]:
            simulation.server.save(folder.checkpoint)  # without the simulator's state, which is no longer needed
