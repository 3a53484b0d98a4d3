"""Local training without torch. One call of the compiled extension (csrc/train) makes all local steps of a client.

Several threads may train clients at once. The bits of an update depend neither on the threads nor on the processor.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import torch
from torch import Tensor, nn

from fastagg._build import native
from fastagg.errors import ConfigError
from fastagg.model import ModelState
from fastagg.server.dispatch import Dispatch
from fastagg.sim.clients.client import LocalTrainer, Update, places
from fastagg.sim.clients.proof import SAMPLES, evaluate, joined, prove
from fastagg.sim.clients.translate import LayerTable, TranslationError
from fastagg.sim.clock.schedule import Job
from fastagg.sim.data.federated import FederatedData, Samples, batches
from fastagg.sim.recipes.sections import Client
from fastagg.sim.seeds import words
from fastagg.storage import memory

NOTHING = memory.empty(0)
Key = tuple[int, int]  # a client, and the number of one of the client's dispatches
PendingUpdate = tuple[ModelState, native.Training | None]


class FusedTrainer:
    """Trains clients. The results are those of :class:`fastagg.sim.clients.client.LocalTrainer`, up to rounding.

    Raises:
        TranslationError: torch must train these clients. The message says why.
    """

    def __init__(self, module: nn.Module, work: Client, seed: int, clients: Sequence[Samples], test: Samples) -> None:
        if work.optimizer != "sgd":
            raise TranslationError(f"the local optimizer is {work.optimizer}")
        if work.clip_norm is not None:
            raise TranslationError("client.clip_norm is set")
        shape = test.x.shape[1:]
        for samples in (*clients, test):
            if samples.x.shape[1:] != shape:
                raise TranslationError("inputs have several shapes")
            if samples.x.device.type != "cpu":
                raise TranslationError(f"clients train on {samples.x.device}")
            if samples.x.dtype is not torch.float32 or samples.y.dtype is not torch.int64 or samples.y.dim() != 1:
                raise TranslationError("samples are not fp32 with one label each")
        self._work, self._seed = work, seed
        self._layers = LayerTable(module, shape)
        parameters = dict(module.named_parameters())
        buffers = dict(module.named_buffers())
        self._sent = {name: p.detach() for name, p in parameters.items()}
        self._statistics = {name: b for name, b in buffers.items() if b.is_floating_point()}
        self._has_buffers = bool(buffers)
        self._size, held = (sum(a.numel() for a in arrays.values()) for arrays in (self._sent, self._statistics))
        try:
            self._table = native.Table(
                shape=self._layers.shape, layers=self._layers.layers, parameters=self._size,
                batch=min(work.batch_size, max(map(len, clients))), buffers=held,
            )  # fmt: skip
        except ConfigError as error:
            raise TranslationError(str(error)) from None
        # Torch's BatchNorm cannot train on one number per channel. So a batch of 1x1 images needs two samples.
        norms = (layer["input"] for layer in self._layers.layers if layer["kind"] == "batch_norm")
        self._needs_two = any(self._layers.shapes[image][1:] == (1, 1) for image in norms)
        self._prove(module, clients)

    def _prove(self, module: nn.Module, clients: Sequence[Samples]) -> None:
        """Compare the table with the module on the first batch of a client. If their results differ, try up to two
        other clients, because rounding alone can change a ReLU near zero. TranslationError: all comparisons fail."""
        tried = [client for client in range(len(clients)) if len(clients[client]) > self._needs_two][:3]
        for client in tried:
            samples = clients[client]
            first = places(self._work, len(samples), 1, self._seed, client, 0)[0][:SAMPLES]
            try:
                return prove(module, self._table, samples.x[first], samples.y[first])
            except TranslationError:
                if client == tried[-1]:
                    raise

    def train(self, task: Dispatch, samples: Samples, client: int, number: int) -> ModelState:
        """Train from ``task``'s model on ``samples`` and return the update in the form ``Server.receive`` takes."""
        return self.begin(task, samples, client, number)[0]

    def gradient(self, task: Dispatch, samples: Samples, client: int, number: int) -> ModelState:
        """Return the mini-batch gradient at ``task``'s model (weight decay included), and the buffers of that pass."""
        return self.begin(task, samples, client, number, gradient=True)[0]

    def model(self, params: Mapping[str, Tensor]) -> Callable[[Tensor], Tensor]:
        """Return a function that computes the module's outputs in evaluation mode with ``params``, up to rounding."""
        flat, statistics = (joined(params[name] for name in names) for names in (self._sent, self._statistics))
        return lambda x: evaluate(self._table, flat, statistics, x)

    def begin(
        self, task: Dispatch, samples: Samples, client: int, number: int, crew: native.Crew | None = None,
        gradient: bool = False,
    ) -> tuple[ModelState, native.Training | None]:  # fmt: skip
        """Begin training in the threads of ``crew``. Return the update and its training. Until the training ends, the
        update is uninitialized memory. Without ``crew``, the update is complete, and the training is None.
        ``gradient``: whether the update is a mini-batch gradient, as in :meth:`gradient`."""
        work, x, y, steps = self._work, samples.x, samples.y, 1 if gradient else task.local_steps
        if self._needs_two and 1 in work.lengths(len(y), steps):
            raise ConfigError(
                f"client.batch_size: client {client} has {len(y)} samples and so a batch of one, on which the "
                "BatchNorm of vectors cannot train"
            )
        index: Tensor | None = None
        if samples.augment is None:
            steps = work.steps_of(y.shape[0], steps)
            order: tuple[bytes, int] | tuple[int, list[int]] = words(self._seed, "batches", client, number), steps
        else:
            index, lengths = places(work, len(y), steps, self._seed, client, number)
            drawn = list(batches(samples, index.split(lengths), self._seed, client, number))
            x, y = (torch.cat(part) for part in zip(*drawn, strict=True))
            index, steps = torch.arange(len(index), dtype=torch.int64, device="cpu"), len(lengths)
            order = index.data_ptr(), lengths
        x, y = x.contiguous(), y.contiguous()
        flat, out, statistics, counters = task.flat.float(), memory.empty(self._size), NOTHING, []
        if self._has_buffers:
            _, sent, counters = task.state_dict()["model"]
            statistics = sent.clone()
        training = self._table.train(
            start=flat.data_ptr(), buffers=statistics.data_ptr(), x=x.data_ptr(), y=y.data_ptr(), samples=y.shape[0],
            order=order, lr=work.lr_of(number), momentum=work.momentum, weight_decay=work.weight_decay,
            mu=0.0 if gradient else work.mu, gradient=gradient, out=out.data_ptr(), crew=crew,
            kept=None if crew is None else (flat, statistics, x, y, index, out),
        )  # fmt: skip
        return ModelState(out, statistics, [counter + steps for counter in counters]), training


class JobTrainer:
    """Trains jobs, the dispatches of clients. Threads of the extension may train a job from its dispatch on. If no
    thread has begun a job when its update is due, the calling thread trains the job.

    An update does not depend on the time of its training, because a JobTrainer keeps no state of clients.

    Args:
        trainer: with ``threads`` above 0 it must be a FusedTrainer.
        gradients: whether updates are gradients, not differences of parameters.
        threads: the number of threads besides the caller's.
        limit: how many of the jobs that are due next may be trained early. At most twice as many updates are kept.
    """

    def __init__(
        self, trainer: LocalTrainer | FusedTrainer, data: FederatedData, gradients: bool, threads: int, limit: int
    ) -> None:
        self._trainer, self._data, self._gradients, self._limit = trainer, data, gradients, limit
        self._crew = native.Crew(threads) if threads else None
        self.out: dict[Key, PendingUpdate] = {}  # updates that are trained or in training, and not yet due

    def take(self, job: Job, in_flight: Callable[[], list[Job]]) -> Update:
        """Return the update of ``job``, which is due. ``in_flight`` returns the jobs that are due later, in order."""
        if self._crew is None:
            train = self._trainer.gradient if self._gradients else self._trainer.train
            return train(job.task, self._data.clients[job.client], job.client, job.number)
        begun = self.out.pop((job.client, job.number), None)
        if begun is None:
            begun = self._begin(job)
            self.look(in_flight)
        update, training = begun
        if training is not None:
            training.wait()
        return update

    def look(self, in_flight: Callable[[], list[Job]]) -> None:
        for job in in_flight()[: self._limit] if self._crew else ():
            if (job.client, job.number) not in self.out and len(self.out) < 2 * self._limit:
                self.out[job.client, job.number] = self._begin(job)

    def _begin(self, job: Job) -> PendingUpdate:
        assert isinstance(self._trainer, FusedTrainer)
        samples = self._data.clients[job.client]
        return self._trainer.begin(job.task, samples, job.client, job.number, self._crew, self._gradients)

    def forget(self, clients: Collection[int]) -> None:
        """Drop the updates of these clients, which will not be received."""
        self.out = {key: begun for key, begun in self.out.items() if key[0] not in clients}

    def close(self) -> None:
        self.out.clear()
        self._crew = None  # the crew's threads end
