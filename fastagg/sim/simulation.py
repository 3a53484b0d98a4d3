"""The main loop: take the next arrival, train it, pass it to the server, evaluate; then write the folder."""

from __future__ import annotations

import logging
import platform
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, astuple
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import nn

from fastagg._types import Plain, State
from fastagg.errors import CheckpointError, ConfigError, DataError, NonFiniteUpdate
from fastagg.integrations.trackers import Given
from fastagg.rules.directions import ActiveSet, AllClients, Differences
from fastagg.server.checkpoint import on_device
from fastagg.sim import build, checkpoints, engines, output
from fastagg.sim.client import DifferenceSender, evaluate, tested
from fastagg.sim.config import Config, changed, from_dict, to_toml
from fastagg.sim.data.federated import FederatedData
from fastagg.sim.data.own import check as check_data
from fastagg.sim.engines.ahead import Ahead, Here, Remote, Threads
from fastagg.sim.engines.training import Plan, begin, pickled, work_of
from fastagg.sim.interrupt import on_ctrl_c
from fastagg.sim.metrics import ACTIVITIES, LAST, ClientRow, DelayStatistics, Row, participation, spread, summarise
from fastagg.sim.own import NAMES as FUNCTIONS
from fastagg.sim.own import Own, OwnTrainer, Way, chosen
from fastagg.sim.progress import NoProgress, Progress, Tracking
from fastagg.sim.result import Result, read
from fastagg.timing import Stopwatch

_log = logging.getLogger("fastagg")

AHEAD = 2**24  # parameters of updates that are trained before they are due

Resume = Literal["never", "go on", "replace"]
Factory = Callable[..., nn.Module]  # called with the shape of an input and the number of classes


class Simulation:
    """All parts of one run, advanced one client update at a time."""

    def __init__(
        self,
        config: Config,
        data: FederatedData | None = None,
        model: Factory | None = None,
        engine: engines.Name = "here",
        workers: int | None = None,
        own: Own | None = None,
    ) -> None:
        """``data``, ``model`` and ``own`` replace those of ``config``: see :func:`given`. :meth:`close` ends the
        workers."""
        self.config = config
        self.own = chosen(config.own, own)
        if self.own.train is not None and (engine != "here" or workers not in (None, 1)):
            raise ConfigError(
                'own.train needs engine "here" with one worker: what clients keep is in the run\'s own process'
            )
        self.stopwatch = Stopwatch(ACTIVITIES)
        with self.stopwatch.timing("setup"):
            device = build.build_device(config.run.device)
            engines.check_device(engine, device)
            sent = [] if engine == "here" else pickled(data, model, own, engines.dumps(engine))
            if data is None:
                data = build.build_data(config.data, config.seed)
            data, unlabelled = build.split_unlabelled(config, data)
            data = data.held_out(config.run.client_test, config.seed)
            self.data = data.to(device)
            self.module = build.build_module(config, data, model, device)
            distill = None
            if build.distils(config.algorithm):
                distill = build.build_distillation(config, self.module, unlabelled)
            # The server copies the model it starts from, so the module is free for training.
            self.server = build.build_server(
                config.algorithm, self.module, len(self.data.clients), config.seed, distill
            )
            self.trainer, self.by_torch = build.build_trainer(config, self.module, self.data, self.own)
            if self.by_torch is not None:
                _log.info("clients are trained by torch: %s", self.by_torch)
            build.check_clients(config, self.server)
            self.differences: DifferenceSender | None = None
            if isinstance(self.server.direction, Differences):
                self.differences = DifferenceSender(name for name, _ in self.module.named_parameters())
            self._way = Way(self.module, self.server.layout, build.build_work(config), config.seed, self.own)
            self._model_bytes = sum(array.nbytes for array in self.server.parameters().values())
            self.schedule = build.build_schedule(config, self.server, [len(samples) for samples in self.data.clients])
            self._lost = build.lost_clients(config)
            classes = build.delay_classes(config, [len(samples) for samples in self.data.clients])
            self.classes = None if classes is None else np.bincount(classes, minlength=3).tolist()
            self.slow = [] if classes is None else np.flatnonzero(classes == 2).tolist()
            self.ahead = self._ahead(engine, workers, sent)
        self.rows: list[Row] = []
        self.uploads = self.bytes_up = self.bytes_down = 0
        self.client_accuracy: list[float] = []  # at the last evaluation, if clients are tested
        self.delays = DelayStatistics()
        self._recent = DelayStatistics()
        self.rounds = DelayStatistics()  # the largest delay among the updates of each server version
        self.statistics = {"all": self.delays, "recent": self._recent, "rounds": self.rounds}
        self.largest = 0  # largest delay since the version changed
        self.dropped = False
        self.client_uploads: Counter[int] = Counter()
        self.warm_up = 0  # updates that were received before the first step and are not part of it
        with self.stopwatch.timing("server"):
            self.schedule.start()

    def _ahead(self, engine: engines.Name, workers: int | None, sent: list[bytes]) -> Ahead | Here:
        gradients = self.server.update_kind == "gradient"
        most = AHEAD // max(1, self.server.layout.size)
        if engine == "here":
            work = work_of(self.trainer, self.data, gradients=gradients)
            if workers in (None, 1):
                return Here(work)
            if self.by_torch is not None:
                raise ConfigError(
                    f"workers is {workers}, but torch trains this run's clients one at a time ({self.by_torch}): "
                    'choose engine "pool" or "ray"'
                )
            return Ahead(Threads(work, workers), max(4 * workers, most))
        crew = engines.start(engine, workers, begin, Plan(self.config, gradients, sent))
        return Ahead(Remote(crew), max(4 * crew.count, most))

    def close(self) -> None:
        """End the workers, if there are any."""
        self.ahead.close()

    def _drop(self) -> None:
        if self._lost and not self.dropped and self.done() >= self.config.dropout.after:
            self.schedule.drop(self._lost)
            self.ahead.forget(self._lost)
            self.dropped = True

    def step(self) -> bool:
        """Receive the next update. Return whether the model changed. NonFiniteUpdate if training diverges."""
        self._drop()
        job, before = self.schedule.next(), self.server.version
        samples = self.data.clients[job.client]
        with self.stopwatch.timing("training"):
            update = self.ahead.take(job, self.schedule.in_flight)
            if self.differences is not None:
                update = self.differences.difference(job.client, update)
            update, size = self._way(update, job.task, job.client, job.number)
        with self.stopwatch.timing("server"):
            receipt = self.server.receive(job.client, update, version=job.task.version, num_samples=len(samples))
            self.schedule.arrived(job)
        with self.stopwatch.timing("training"):
            self.ahead.look(self.schedule.in_flight)
        self.uploads += 1
        self.bytes_up += size
        self.bytes_down += self._model_bytes + (0 if job.task.control is None else job.task.control.nbytes)
        self.client_uploads[job.client] += 1
        self.largest = max(self.largest, receipt.delay)
        self.warm_up += receipt.version == 0
        if receipt.version != before:
            self.rounds.add(self.largest)
            self.largest = 0
        self.delays.add(receipt.delay)
        self._recent.add(receipt.delay)
        return receipt.applied

    def evaluate(self) -> Row:
        """Test the server's model and record a row."""
        with self.stopwatch.timing("evaluation"):
            accuracy, loss = evaluate(
                self.module, self.server.parameters(), self.data.test, self.data.score, self.own.loss, self.own.metric
            )
            self.client_accuracy = self._by_client()
        row = Row(
            self.server.version,
            self.schedule.now,
            self.uploads,
            accuracy,
            loss,
            self._recent.mean,
            self._recent.maximum,
            self.bytes_up,
            self.bytes_down,
            *(spread(self.client_accuracy) if self.client_accuracy else ()),
        )
        self.rows.append(row)
        self._recent.clear()
        return row

    def _by_client(self) -> list[float]:
        """Test every client on its own samples, if there are any, each with its personal model if it has one."""
        found = []
        own, states = self.own, self.trainer.states if isinstance(self.trainer, OwnTrainer) else {}
        for client, samples in enumerate(self.data.tests or ()):
            if own.personal is not None and (state := states.get(client)) is not None:
                self.module.load_state_dict(self.server.parameters())
                with torch.no_grad():
                    own.personal(self.module, state)
                found.append(tested(self.module, samples, None, own.loss, own.metric)[0])
                self.module.load_state_dict(self.server.parameters())
            else:
                found.append(tested(self.module, samples, None, own.loss, own.metric)[0])
        return found

    def clients(self) -> list[ClientRow]:
        """Return the lines of clients.csv."""
        accuracies: Sequence[float | None] = self.client_accuracy or [None] * len(self.data.clients)
        return [
            ClientRow(client, len(samples), self.client_uploads[client], accuracy)
            for client, (samples, accuracy) in enumerate(zip(self.data.clients, accuracies, strict=True))
        ]

    def due(self) -> bool:
        """Return whether the version that was just made is to be tested."""
        run = self.config.run
        if self.server.version % run.evaluate_every == 0 or self.last_versions():
            return True
        every = run.evaluate_time
        return every is not None and self.schedule.now // every > self.rows[-1].time // every

    def done(self) -> float:
        """Return the finished share of the run: 1.0 when a limit is reached."""
        limits = self.config.run
        shares = [0.0]
        if limits.versions is not None:
            shares.append(self.server.version / limits.versions)
        if limits.uploads is not None:
            shares.append(self.uploads / limits.uploads)
        if limits.time is not None:
            # Updates that would arrive after the end are not received.
            shares.append(1.0 if self.schedule.next_time() > limits.time else self.schedule.now / limits.time)
        return min(max(shares), 1.0)

    def last_versions(self) -> bool:
        """Return whether the run probably ends within the next ``LAST`` versions.

        With a limit of uploads or time this is estimated from the versions so far. Time passes unevenly, so a
        limit of time counts twice as many versions. Testing too many versions is better than testing too few.
        """
        limits, share, version = self.config.run, self.done(), self.server.version
        if limits.versions is not None and limits.versions - version < LAST:
            return True
        if version == 0 or not 0 < share < 1 or (limits.uploads is None and limits.time is None):
            return False
        return version * (1 - share) / share < (LAST if limits.time is None else 2 * LAST)

    def state_dict(self) -> State:
        """Return the state needed to continue, as plain data and tensors.

        It is the server's state, which ``fastagg.load`` reads, with the simulator's state under "run". Nothing is
        copied, so write it to a file before the next step.
        """
        return {**self.server.state_dict(copy=False), "run": self._remembered()}

    def load_state_dict(self, state: State) -> None:
        """Inverse of :meth:`state_dict`, for a simulation of the same config that has not begun.

        CheckpointError if the state is damaged or belongs to another config. If it is damaged, do not use the
        simulation any more.
        """
        server = dict(state)
        run = server.pop("run")
        if run["config"] != to_toml(self.config):
            raise CheckpointError("the checkpoint is of another run than this config's")
        self.server.load_state_dict(server)
        try:
            self._remember(on_device(run, self.server.device))
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise CheckpointError(f"the checkpoint is damaged: {type(error).__name__}: {error}") from error

    def _remembered(self) -> State:
        distillation = self.server.distillation
        return {
            "config": to_toml(self.config),
            "rows": [astuple(row) for row in self.rows],
            "uploads": self.uploads,
            "client_uploads": dict(self.client_uploads),
            "client_accuracy": list(self.client_accuracy),
            "states": dict(self.trainer.states) if isinstance(self.trainer, OwnTrainer) else {},
            "bytes": [self.bytes_up, self.bytes_down],
            "largest": self.largest,
            "warm_up": self.warm_up,
            "dropped": self.dropped,
            "delays": {name: part.state_dict() for name, part in self.statistics.items()},
            "differences": None if self.differences is None else self.differences.state_dict(),
            "distillation": None if distillation is None else asdict(distillation),
            "schedule": self.schedule.state_dict(),
            "wall_seconds": self.stopwatch.split(),
        }

    def _remember(self, run: State) -> None:
        self.rows[:] = [Row(*row) for row in run["rows"]]
        self.uploads, self.largest, self.dropped = run["uploads"], run["largest"], run["dropped"]
        self.warm_up = run["warm_up"]
        self.client_uploads = Counter(run["client_uploads"])
        self.client_accuracy = list(run["client_accuracy"])
        self.bytes_up, self.bytes_down = run["bytes"]
        if isinstance(self.trainer, OwnTrainer):
            self.trainer.states = dict(run["states"])
        for name, part in self.statistics.items():
            part.load_state_dict(run["delays"][name])
        if self.differences is not None:
            self.differences.load_state_dict(run["differences"])
        for name, value in (run["distillation"] or {}).items():
            setattr(self.server.distillation, name, value)
        self.schedule.load_state_dict(run["schedule"])
        self.stopwatch.restore(run["wall_seconds"])

    def _distillation(self) -> Plain:
        record = self.server.distillation
        if record is None:
            return {}
        return {"distillation": {k: round(v, 6) for k, v in asdict(record).items() if v == v}}

    def notes(self) -> list[str]:
        """Return notes for the reader of the results, one line each."""
        notes = []
        if self.classes is not None:
            notes.append("clients: {} with short, {} with medium and {} with long delays".format(*self.classes))
            if not self.classes[2]:
                notes.append("no client is in the class of large delays: set delay.counts to have some")
            elif self.schedule.now and self.uploads and self.config.delay.name != "version":
                late = [n for n in self.slow if self.client_uploads[n] == 0]
                if late:
                    notes.append(f"{len(late)} of {len(self.slow)} clients of large delays never answered in this run")
        share = self.warm_up / max(1, self.uploads)
        if isinstance(self.server.direction, AllClients | ActiveSet) and share > 0.1:
            notes.append(
                f'{share:.0%} of the updates came before the first step: algorithm.warmup = "partial" steps from the '
                "first on"
            )
        return notes

    def summary(self, stopped: str) -> Plain:
        config, wall = self.config, self.stopwatch.split()
        return {
            "name": config.name,
            "algorithm": config.algorithm.name,
            "seed": config.seed,
            "stopped": stopped,
            "interrupted": stopped == "interrupted",
            **summarise(self.rows, config.run.target),
            "time_unit": self.schedule.unit,
            "delay_mean": self.delays.mean,
            "delay_median": self.delays.median,
            "delay_max": self.delays.maximum,
            "tau_avg": self.rounds.mean,
            "tau_median": self.rounds.median,
            "tau_max": self.rounds.maximum,
            **participation(self.client_uploads, len(self.data.clients)),
            "warm_up_share": round(self.warm_up / max(1, self.uploads), 6),
            "clients": len(self.data.clients),
            "delay_classes": self.classes,
            "notes": self.notes(),
            "parameters": sum(p.numel() for p in self.module.parameters()),
            **self._distillation(),
            "fused": self.by_torch or True,
            "wall_seconds": {key: round(value, 4) for key, value in wall.items()},
            "server_share": round(wall["server"] / wall["total"], 6),  # share of the wall seconds
            "torch": str(torch.__version__),
            "python": platform.python_version(),
        }


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
    :class:`fastagg.sim.own.Own`) replace ``config``'s. Pass them again to resume.
    ``trackers`` (see :mod:`fastagg.integrations.trackers`) get every new row, and are closed at the end.

    ``engine`` is where clients train: "here", in a "pool" of processes or on "ray", with so many ``workers``, which are
    threads for "here" (None: one thread; one process for each core). The files are the same to the bit. Any engine goes
    on with a run of another. What ``data``, ``model`` and ``own`` hold must be possible to pickle for "pool" and "ray".

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
        Tracking(progress or NoProgress(), trackers) as told,
        closing(Simulation(config, data, model, engine, workers, own)) as simulation,
    ):
        if out is not None and not (begun and checkpoints.restore(simulation, out)):
            _prepare(out, config)
        keeper = None if out is None else checkpoints.Checkpoints(out, config.run.checkpoint_every)
        stopped = _loop(simulation, lambda: asked.is_set() or stop(), told, keeper)
        unit, delays = simulation.schedule.unit, simulation.delays.state_dict()
        summary, clients = simulation.summary(stopped), simulation.clients()
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
        raise ConfigError(f"own: expected fastagg.sim.own.Own(...), got a {type(own).__name__}")
    changes.update({f"own.{name}": "given" for name in FUNCTIONS if getattr(own, name, None) is not None})
    return from_dict(changed(config.model_dump(), changes), "the config") if changes else config


def _loop(
    simulation: Simulation, stop: Callable[[], bool], progress: Progress, keeper: checkpoints.Checkpoints | None
) -> str:
    """Return why the run stopped: "finished", "interrupted" or "diverged"."""
    if not simulation.rows:
        progress.evaluated(simulation.evaluate())
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
            progress.evaluated(simulation.evaluate())
        if keeper is not None and keeper.due():
            keeper.write(simulation)
    if simulation.rows[-1].uploads != simulation.uploads:
        progress.evaluated(simulation.evaluate())
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
    from fastagg.sim import findings, pages, plots, style
    from fastagg.sim.groups import grouped
    from fastagg.sim.sweep import Cell

    try:
        output.write_text(out / "metrics.csv", output.rows_csv(Row, result.rows))
        output.write_text(out / "clients.csv", output.rows_csv(ClientRow, result.clients))
        output.write_text(out / "delays.csv", output.delays_csv(result.delays))
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
