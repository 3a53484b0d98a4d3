"""Clients that are in flight together train together: one batched step instead of one small step each.

What a client was sent is fixed when it is sent, and its batches are drawn from (seed, client, dispatch), so training it
early, and beside clients of other runs, changes nothing. Its batches are filled up to a length that depends on itself
alone (``filled``), and only jobs of one length share a stack. So no sum over a batch depends on who else is in the
stack.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from fastagg.sim import stacked
from fastagg.sim.client import LocalWork, Update
from fastagg.sim.data.federated import Samples
from fastagg.sim.seeds import generator

if TYPE_CHECKING:
    from fastagg.sim.schedule import Job

# What a stack holds at most, in bytes of parameters: a few copies of it are alive at a time.
STACK = 256 * 2**20
# What a layer writes at most in one step on a CPU, in bytes: about what a core's own cache holds. Beyond it every pass
# over it waits for memory, and where one client alone goes beyond, batching costs more time than it saves.
STEP = 2**20
SHORTEST = 8  # samples that every batch is filled up to
LARGE = 1_000_000  # parameters above which a step is bound by arithmetic and memory, not by the calls it takes


def refusal(module: nn.Module, work: LocalWork, clients: Sequence[Samples]) -> str | None:
    """Why clients cannot train in batches; None if they can."""
    if any(samples.augment is not clients[0].augment for samples in clients):
        return "clients' data is augmented in different ways"
    if work.optimizer != "sgd":
        return f"the local optimizer is {work.optimizer}"
    size = sum(p.numel() for p in module.parameters())
    if size > LARGE:
        return f"the model is large ({size:,} parameters): batching would not pay"
    if reason := stacked.refusal(module):
        return reason
    batch = min(work.batch_size, sum(map(len, clients)) // len(clients))
    if batch * _width(module, clients[0]) > _most_written(clients[0]):
        return "the images are large: batching would not pay"
    return None


def _width(module: nn.Module, samples: Samples) -> int:
    """Bytes of a sample in the widest layer."""
    return samples.x.element_size() * stacked.width(module, samples.x.shape[1:])


def _most_written(samples: Samples) -> float:
    return STEP if samples.x.device.type == "cpu" else math.inf


def filled(length: int, batch_size: int, *, finely: bool) -> int:
    """Return what a job's batches, of ``length`` samples at most, are filled up to: a power of two.

    ``finely``: or one and a half times a power of two, where arithmetic costs more than calls.
    """
    power = SHORTEST
    while power < length:
        if finely and length <= power + power // 2:
            return min(power + power // 2, batch_size)
        power *= 2
    return min(power, batch_size)


class Batch(NamedTuple):
    """One step's samples: x and y [clients, batch, ...], keep 1 for samples and 0 for what fills a shorter batch up."""

    x: Tensor
    y: Tensor
    keep: Tensor


class Row(NamedTuple):
    """A job in a stack.

    Attributes:
        place: its number among the jobs that are asked for.
        plan: indices of every batch's samples among all of its run.
        length: what its batches are filled up to.
        draws: what its augmentation draws from.
    """

    place: int
    trainer: BatchedTrainer
    job: Job
    plan: list[np.ndarray]
    length: int
    draws: np.random.Generator | None


class BatchedTrainer:
    """One run's part in stacks: its data, its draws and its rates. :func:`train` trains jobs of one run or several.

    Args:
        module: the architecture; its weights are not used.
        work: the local work.
        seed: of the batches.
        clients: every client's samples.
        gradients: whether clients send one gradient instead of a delta.

    Attributes:
        kind: jobs of trainers of one kind may share a stack.
        most: how many clients a stack holds at most.
    """

    def __init__(
        self, module: nn.Module, work: LocalWork, seed: int, clients: Sequence[Samples], *, gradients: bool
    ) -> None:
        self._module, self._work, self._seed, self._gradients = module.train(), work, seed, gradients
        self._sizes = [len(samples) for samples in clients]
        self._starts = np.cumsum([0, *self._sizes[:-1]])
        self._augment = clients[0].augment  # of the whole training set, as its one form
        self._x = torch.cat([samples.x for samples in clients])
        self._y = torch.cat([samples.y for samples in clients])
        self._shapes = {name: p.shape for name, p in module.named_parameters()}
        self._lengths = [p.numel() for p in module.parameters()]
        buffers = dict(module.named_buffers())
        self._statistics = {name: b.shape for name, b in buffers.items() if b.is_floating_point()}
        self._counters = [name for name, b in buffers.items() if not b.is_floating_point()]
        # Where arithmetic costs more than calls, filling up costs more than smaller stacks.
        self._heavy = any(isinstance(layer, nn.Conv2d) for layer in module.modules())
        self._columns = _most_written(clients[0]) // _width(module, clients[0])
        self.most = max(1, STACK // (4 * max(1, sum(self._lengths))))
        # The names of layers that run in stacks tell all that they do.
        self.kind = (
            repr(module), self._x.shape[1:], self._x.dtype, self._x.device, gradients,
            work.momentum, work.weight_decay, work.mu,
        )  # fmt: skip

    def train(self, jobs: Sequence[Job]) -> list[Update]:
        """The jobs' updates, in their order, in the form ``Server.receive`` takes."""
        return train([(self, job) for job in jobs])

    def row(self, place: int, job: Job) -> Row:
        """Draw what the job trains on."""
        client, number = job.client, job.number
        rng = generator(self._seed, "batches", client, number)
        steps = 1 if self._gradients else job.task.local_steps
        first = self._starts[client]
        plan = [index + first for index in self._work.batches(self._sizes[client], steps, rng)]
        length = filled(max(map(len, plan), default=0), self._work.batch_size, finely=self._heavy)
        draws = generator(self._seed, "augment", client, number) if self._augment else None
        return Row(place, self, job, plan, length, draws)

    def stacks(self, rows: Sequence[Row]) -> Iterator[list[Row]]:
        """Which rows share a stack: of one length, as many as fit the cache, in stacks of about equal size.

        Those that train longest are the first of their stack, so those that still train are always its first rows.
        """
        alike: dict[int, list[Row]] = {}
        for row in sorted(rows, key=lambda row: -len(row.plan)):
            alike.setdefault(row.length, []).append(row)
        for length, found in alike.items():
            fit = int(max(1, min(self.most, self._columns // max(1, length))))
            count = -(-len(found) // fit)
            for i in range(count):
                yield found[i * len(found) // count : (i + 1) * len(found) // count]

    def updates(self, rows: Sequence[Row]) -> Iterator[Update]:
        """Train a stack of :meth:`stacks`, whose rows may be of other runs of this kind, too."""
        models = [row.job.task.state_dict()["model"] for row in rows]
        start = torch.stack([flat for flat, _, _ in models])  # [clients, d]
        flat = start.clone()
        buffers: dict[str, Tensor] = {}
        if self._statistics:
            values = torch.stack([values for _, values, _ in models])
            buffers = _cut(values, self._statistics, [shape.numel() for shape in self._statistics.values()])
        for place, name in enumerate(self._counters):
            buffers[name] = torch.stack([counters[place] for _, _, counters in models])
        lr = torch.tensor([row.trainer.rate(row.job) for row in rows], device=flat.device).unsqueeze(1)
        with torch.inference_mode():  # autograd's bookkeeping, unused here, is a fifth of a small model's step
            gradient = self._steps(start, flat, buffers, lr, self._batches(rows))
        vectors = gradient.clone() if self._gradients else flat - start
        if not buffers:  # one vector is taken by the server as it is; names are looked up and checked one by one
            return iter(vectors.unbind())
        sent = {**self._views(vectors), **buffers}
        return (dict(zip(sent, arrays, strict=True)) for arrays in zip(*map(torch.unbind, sent.values()), strict=True))

    def rate(self, job: Job) -> float:
        """The job's local learning rate."""
        return self._work.lr * self._work.lr_decay**job.number

    def _steps(
        self, start: Tensor, flat: Tensor, buffers: dict[str, Tensor], lr: Tensor, batches: Iterable[Batch]
    ) -> Tensor:
        """Train ``flat`` and ``buffers`` in place; the last gradient."""
        velocity = torch.zeros_like(flat) if self._work.momentum else None
        gradient = torch.zeros_like(flat)
        for batch in batches:
            live = len(batch.y)
            gradient = self._gradient(flat[:live], {name: b[:live] for name, b in buffers.items()}, batch)
            if self._work.weight_decay:
                gradient.add_(flat[:live], alpha=self._work.weight_decay)
            if self._gradients:
                break
            if self._work.mu:
                gradient.add_(flat[:live] - start[:live], alpha=self._work.mu)
            if velocity is not None:
                gradient = velocity[:live].mul_(self._work.momentum).add_(gradient)
            flat[:live].addcmul_(gradient, lr[:live], value=-1.0)
        return gradient

    def _batches(self, rows: Sequence[Row]) -> Iterator[Batch]:
        """Step by step the batches of all that still train, filled up."""
        length = rows[0].length
        places = np.arange(length)
        for step in range(len(rows[0].plan)):
            live = [row for row in rows if len(row.plan) > step]
            index = np.zeros((len(live), length), np.int64)
            lengths = np.empty((len(live), 1), np.int64)
            for i, row in enumerate(live):
                batch = row.plan[step]
                index[i, : len(batch)] = batch
                lengths[i] = len(batch)
            keep = torch.from_numpy((places < lengths).astype(np.float32)).to(self._x.device)
            x, y = self._samples(live, torch.from_numpy(index).to(self._x.device))
            for i, row in enumerate(live):
                if row.draws is not None and row.trainer._augment is not None:  # as federated.batches does for one
                    own = x[i, : len(row.plan[step])]
                    own.copy_(row.trainer._augment(own, row.draws))
            yield Batch(x, y, keep)

    def _samples(self, rows: Sequence[Row], index: Tensor) -> tuple[Tensor, Tensor]:
        """Return x and y of ``index`` [clients, batch], each row's from its own run's data."""
        x = self._x.new_empty(*index.shape, *self._x.shape[1:])
        y = self._y.new_empty(index.shape)
        begin = 0
        for trainer, members in groupby(rows, key=lambda row: row.trainer):
            end = begin + sum(1 for _ in members)
            wanted = index[begin:end].flatten()
            torch.index_select(trainer._x, 0, wanted, out=x[begin:end].flatten(0, 1))
            torch.index_select(trainer._y, 0, wanted, out=y[begin:end].flatten())
            begin = end
        return x, y

    def _gradient(self, flat: Tensor, buffers: dict[str, Tensor], batch: Batch) -> Tensor:
        """Gradients of each client's own mean loss on its own batch, like ``flat`` [clients, d]."""
        found = stacked.gradients(self._module, batch.x, batch.y, {**self._views(flat), **buffers}, batch.keep)
        return torch.cat([found[name].flatten(1) for name in self._shapes], dim=1)

    def _views(self, flat: Tensor) -> dict[str, Tensor]:
        return _cut(flat, self._shapes, self._lengths)


def train(asked: Sequence[tuple[BatchedTrainer, Job]]) -> list[Update]:
    """Train jobs of trainers of one kind; the same update for each as :class:`LocalTrainer`'s up to rounding.

    It does not depend on the other jobs by a bit. Updates are in the order of ``asked``, in the form ``Server.receive``
    takes.
    """
    found: dict[int, Update] = {}
    if asked:
        first = asked[0][0]
        for rows in first.stacks([trainer.row(place, job) for place, (trainer, job) in enumerate(asked)]):
            for row, update in zip(rows, first.updates(rows), strict=True):
                found[row.place] = update
    return [found[place] for place in range(len(asked))]


def _cut(vectors: Tensor, shapes: dict[str, torch.Size], lengths: list[int]) -> dict[str, Tensor]:
    """Cut vectors [clients, d] into arrays [clients, *shape] by name."""
    pieces = vectors.split(lengths, dim=-1)
    return {name: piece.view(len(vectors), *shape) for (name, shape), piece in zip(shapes.items(), pieces, strict=True)}
