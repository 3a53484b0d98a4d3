"""One run, step by step. A step takes the update that arrives next, trains it, and passes it to the server."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, astuple
from typing import Any

import numpy as np
import torch

from fastagg._types import State
from fastagg.errors import CheckpointError, ConfigError
from fastagg.rules.directions import Differences
from fastagg.server.checkpoint import on_device
from fastagg.server.dispatch import Dispatch
from fastagg.sim.clients.attack import Liars, with_flipped_labels
from fastagg.sim.clients.client import DifferenceSender, Update, rated
from fastagg.sim.clients.encoder import UpdateEncoder
from fastagg.sim.clients.fused import FusedTrainer, JobTrainer, Key
from fastagg.sim.clients.own import OwnTrainer, UpdatePreparer, chosen
from fastagg.sim.clock.schedule import Job
from fastagg.sim.clock.view import History
from fastagg.sim.data.federated import FederatedData
from fastagg.sim.recipes.config import Config, differences, from_toml, to_toml
from fastagg.sim.runs import build
from fastagg.sim.runs.metrics import ACTIVITIES, LAST, ClientRow, DelayStatistics, EvaluationRow, spread
from fastagg.timing import Stopwatch

_log = logging.getLogger("fastagg")

AHEAD = 2**24  # this number of elements, in all updates together, may be trained before the updates are due
# The simulation's attributes that a checkpoint contains unchanged.
KEPT = ("uploads", "bytes_up", "bytes_down", "largest", "warm_up", "dropped", "client_accuracy")

PreparedUpdate = tuple[Update, int, Mapping[str, torch.Tensor] | None]


def _nbytes(sent: torch.Tensor | Mapping[str, torch.Tensor] | None) -> int:
    """Return the number of bytes of the arrays that are sent with a task or an update."""
    arrays = sent.values() if isinstance(sent, Mapping) else () if sent is None else (sent,)
    return sum(array.nbytes for array in arrays)


class Simulation:
    """All parts of one run. :meth:`step` receives one client update."""

    def __init__(self, config: Config, data: FederatedData | None = None, workers: int = 1) -> None:
        """``data`` None: load the config's data. ``workers``: the number of training threads. ``close`` ends them."""
        self.config = config
        self.own = chosen(config)
        self.stopwatch = Stopwatch(ACTIVITIES)
        with self.stopwatch.timing("setup"):
            device = build.build_device(config.run.device)
            data = data or build.build_data(config)
            data, unlabelled = build.split_unlabelled(config, data)
            data = data.held_out(config.run.client_test, config.seed)
            data = with_flipped_labels(data, config.attack, config.seed)
            self.data = data.to(device)
            self.module = build.build_model(config, data).to(device)
            distill = build.build_distillation(config, self.module, unlabelled)
            # The server copies its first model, so the module may be used for training.
            count = len(self.data.clients)
            self.server = build.build_server(config, self.module, count, distill)
            self.trainer, self.by_torch = build.build_trainer(config, self.module, self.data, self.own)
            if self.by_torch is not None:
                _log.info("clients are trained by torch: %s", self.by_torch)
            build.check_clients(config, self.server, self.own)
            caches, names = isinstance(self.server.direction, Differences), dict(self.module.named_parameters())
            self.differences = DifferenceSender(names) if caches else None
            self._prepare = UpdatePreparer(self.module, self.server.layout, config.client, config.seed, self.own)
            trained = [name for name, parameter in names.items() if parameter.requires_grad]
            self._liars = Liars(config.attack, count, config.seed, trained)
            self._encoder = UpdateEncoder(config.encoding, self.server.layout, config.seed)
            self._model_bytes = sum(array.nbytes for array in self.server.parameters().values())
            sizes = [len(samples) for samples in self.data.clients]
            # If an update's size affects its delay, and only training tells the size, clients are trained at dispatch.
            own_size = self.own.train is not None or self.own.change is not None
            self._early = own_size and getattr(config.delay, "up", None) is not None
            self._made: dict[Key, PreparedUpdate] = {}  # by client and number: updates that are not due yet
            self.history = History(self.server, sizes)
            self._takes = {**self.server.direction.takes, **self.server.staleness.takes}
            self.schedule = build.build_schedule(config, self.server, sizes, self._bytes, self.history)
            self._lost = build.lost_clients(config)
            classes = self.schedule.classes
            self.classes = None if classes is None else np.bincount(classes, minlength=3).tolist()
            self.slow = [] if classes is None else np.flatnonzero(classes == 2).tolist()
            self.job_trainer = self._build_job_trainer(workers)
            self._parts: dict[str, Any] = {"liars": self._liars, "encoder": self._encoder, "schedule": self.schedule}
            self._parts["history"] = self.history
            if self.differences is not None:
                self._parts["differences"] = self.differences
        self.rows: list[EvaluationRow] = []
        self.uploads = self.bytes_up = self.bytes_down = 0
        self.client_accuracy: list[float] = []  # by client, at the last evaluation. Empty: no client was tested.
        self.delays = DelayStatistics()
        self._recent = DelayStatistics()
        self.rounds = DelayStatistics()  # by largest delay of a version's updates: the number of server versions
        self.statistics = {"all": self.delays, "recent": self._recent, "rounds": self.rounds}
        self.largest = 0  # the largest delay of an update since the version changed
        self.dropped = False
        self.diverged = ""  # the error with which the run diverged. Empty: it has not diverged.
        self.client_uploads: Counter[int] = Counter()
        self.warm_up = 0  # the number of updates before the update that made the first step
        with self.stopwatch.timing("training" if self._early else "server"):
            self.schedule.start()

    def _build_job_trainer(self, workers: int) -> JobTrainer:
        if workers > 1 and not isinstance(self.trainer, FusedTrainer):
            why = f"torch trains this run's clients one at a time ({self.by_torch})"
            raise ConfigError(f"workers is {workers}, but {why}: compare runs side by side, or set run.torch_threads")
        gradients, limit = self.server.update_kind == "gradient", AHEAD // max(1, self.server.layout.size)
        return JobTrainer(self.trainer, self.data, gradients, workers - 1, max(4 * workers, limit))

    def close(self) -> None:
        self.job_trainer.close()

    def _drop(self) -> None:
        if self._lost and not self.dropped and self.done() >= self.config.dropout.after:
            self.schedule.drop(self._lost)
            self.job_trainer.forget(self._lost)
            self.dropped = True

    def _in_flight(self) -> list[Job]:
        return [] if self._early else self.schedule.in_flight()

    def _make(self, job: Job) -> PreparedUpdate:
        """Return a job's update before its encoding, the number of bytes to send, and the further arrays to send."""
        update = self.job_trainer.take(job, self._in_flight)
        if self.differences is not None:
            update = self.differences.difference(job.client, update)
        extra = {name: array.clone() for name, array in (getattr(self.trainer, "extra", None) or {}).items()} or None
        update, size = self._prepare(update, job.task, job.client, job.number)
        return self._liars(job.client, update), self._encoder.size(size) + _nbytes(extra), extra

    def _facts(self, job: Job, sent: Mapping[str, torch.Tensor] | None) -> Mapping[str, Any] | None:
        """Return the further inputs of a user's own rule: the arrays that the client ``sent``, and facts about the
        client. None: the rule takes no further inputs."""
        if not self._takes:
            return None
        return self.history.facts(self._takes, job.client, self.schedule.now, job.task.version, sent or {})

    def _down(self, task: Dispatch) -> int:
        return (self._model_bytes if task.encoded is None else task.encoded.nbytes) + _nbytes(task.control)

    def _bytes(self, job: Job) -> tuple[int, int]:
        """Return the numbers of bytes of a job's model and of its update."""
        down = self._down(job.task)
        if not self._early:
            return down, self._encoder.size(self._prepare.whole)
        update, size, extra = self._make(job)
        assert isinstance(update, dict)
        self._made[job.client, job.number] = {name: array.clone() for name, array in update.items()}, size, extra
        return down, size

    def step(self) -> bool:
        """Receive the next update. Return whether the model changed.

        NonFiniteUpdate, UpdateTooLarge: training diverges.
        """
        self._drop()
        job, before = self.schedule.next(), self.server.version
        samples = self.data.clients[job.client]
        with self.stopwatch.timing("training"):
            key = job.client, job.number
            made = self._made.pop(key) if key in self._made else self._make(job)
            sent = self._encoder(job.client, job.number, made[0])
        with self.stopwatch.timing("server"):
            receipt = self.server.receive(
                job.client, sent, version=job.task.version, num_samples=len(samples), extra=self._facts(job, made[2])
            )
            self.history.answer(job.client, self.schedule.now, job.task.version, receipt.delay, made[2])
            if not self._early:
                self.schedule.arrived(job)
        with self.stopwatch.timing("training"):
            if self._early:
                self.schedule.arrived(job)
            self.job_trainer.look(self._in_flight)
        self.uploads += 1
        self.bytes_up += made[1]
        self.bytes_down += self._down(job.task)
        self.client_uploads[job.client] += 1
        self.largest = max(self.largest, receipt.delay)
        self.warm_up += receipt.version == 0
        if receipt.version != before:
            self.rounds[self.largest] += 1
            self.largest = 0
        self.delays[receipt.delay] += 1
        self._recent[receipt.delay] += 1
        return receipt.applied

    def evaluate(self) -> EvaluationRow:
        with self.stopwatch.timing("evaluation"):
            model, own = self._model(), self.own
            accuracy, loss = rated(model, self.data.test, self.data.score, own.loss, own.metric)
            self.client_accuracy = self._by_client(model)
        recent, apart = self._recent, spread(self.client_accuracy) if self.client_accuracy else ()
        row = EvaluationRow(
            self.server.version, self.schedule.now, self.uploads, accuracy, loss, recent.mean, recent.maximum,
            self.bytes_up, self.bytes_down, *apart,
        )  # fmt: skip
        self.rows.append(row)
        self._recent.clear()
        return row

    def _model(self) -> Callable[[torch.Tensor], torch.Tensor]:
        params = self.server.parameters()
        if isinstance(self.trainer, FusedTrainer) and self.data.score is None:
            return self.trainer.model(params)
        self.module.load_state_dict(params)
        return self.module

    def _by_client(self, model: Callable[[torch.Tensor], torch.Tensor]) -> list[float]:
        """Return every client's accuracy on its own test samples. Empty: there are no such samples. A client with a
        personal model is tested with that model."""
        accuracies, own, states = [], self.own, getattr(self.trainer, "states", {})
        for client, samples in enumerate(self.data.tests or ()):
            personal = own.personal if (state := states.get(client)) is not None else None
            if personal is not None:
                with torch.no_grad():
                    personal(self.module, state)
            accuracies.append(rated(model, samples, None, own.loss, own.metric)[0])
            if personal is not None:
                self.module.load_state_dict(self.server.parameters())
        return accuracies

    def clients(self) -> list[ClientRow]:
        accuracies: Sequence[float | None] = self.client_accuracy or [None] * len(self.data.clients)
        return [
            ClientRow(client, len(samples), self.client_uploads[client], accuracy)
            for client, (samples, accuracy) in enumerate(zip(self.data.clients, accuracies, strict=True))
        ]

    def due(self) -> bool:
        """Return whether the current version is to be tested."""
        return self.server.version % self.config.run.evaluate_every == 0 or self.last_versions()

    def done(self) -> float:
        """Return the finished share of the run. 1.0: a limit is reached."""
        limits = self.config.run
        counts = (self.server.version, limits.versions), (self.uploads, limits.uploads)
        shares = [0.0, *(count / limit for count, limit in counts if limit is not None)]
        if limits.time is not None:
            # Updates that would arrive after the end are not received. The factor allows for rounding of the times.
            over = self.schedule.next_time() > limits.time * (1 + 1e-9)
            shares.append(1.0 if over else min(self.schedule.now / limits.time, 1 - 1e-9))
        return min(max(shares), 1.0)

    def last_versions(self) -> bool:
        """Return whether the run probably ends within the next ``LAST`` versions.

        With a limit of uploads or time, the end is estimated from the versions so far. With a limit of time, twice as
        many versions are tested, because time passes unevenly. Too many tests are better than too few.
        """
        limits, share, version = self.config.run, self.done(), self.server.version
        if limits.versions is not None and limits.versions - version < LAST:
            return True
        if version == 0 or not 0 < share < 1 or (limits.uploads is None and limits.time is None):
            return False
        return version * (1 - share) / share < (LAST if limits.time is None else 2 * LAST)

    def state_dict(self) -> State:
        """Return the state needed to continue, as plain data and tensors.

        The state is the server's, which ``fastagg.load`` reads, with the simulator's state under "run". Arrays are not
        copied, so write the state to a file before the next step.
        """
        return {**self.server.state_dict(copy=False), "run": self._remembered()}

    def load_state_dict(self, state: State) -> None:
        """Restore a state of :meth:`state_dict` in a new simulation of the same config.

        CheckpointError: the state is damaged or belongs to another config. After an error about a damaged state, do not
        use the simulation any more.
        """
        server = dict(state)
        run = server.pop("run")
        if differences(from_toml(run["config"], "the checkpoint's config"), self.config):
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
            "kept": {name: getattr(self, name) for name in KEPT},
            "client_uploads": dict(self.client_uploads),
            "made": self._made,
            "states": dict(self.trainer.states) if isinstance(self.trainer, OwnTrainer) else {},
            "delays": {name: dict(part) for name, part in self.statistics.items()},
            **{name: part.state_dict() for name, part in self._parts.items()},
            "distillation": None if distillation is None else asdict(distillation),
            "wall_seconds": self.stopwatch.split(),
        }

    def _remember(self, run: State) -> None:
        self.rows[:] = [EvaluationRow(*row) for row in run["rows"]]
        for name in KEPT:
            setattr(self, name, run["kept"][name])
        self.client_uploads = Counter(run["client_uploads"])
        self._made = dict(run["made"])
        if isinstance(self.trainer, OwnTrainer):
            self.trainer.states = dict(run["states"])
        for name, part in self.statistics.items():
            part.clear()
            part.update(run["delays"][name])
        for name, part in self._parts.items():
            part.load_state_dict(run[name])
        for name, value in (run["distillation"] or {}).items():
            setattr(self.server.distillation, name, value)
        self.stopwatch.restore(run["wall_seconds"])
