"""Clients that are in flight together train together: one batched step instead of one small step each.

What a client was sent is fixed when it is sent, and its batches are drawn from (seed, client, dispatch), so training it
early changes nothing but rounding.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from fastagg.sim import stacked
from fastagg.sim.client import LocalTrainer, LocalWork
from fastagg.sim.data.federated import Samples
from fastagg.sim.seeds import generator

if TYPE_CHECKING:
    from fastagg.sim.schedule import Job

# What a stack holds at most, in bytes of parameters: a few copies of it are alive at a time.
STACK = 256 * 2**20
# What a layer writes at most in one step on a CPU, in bytes: about what a core's own cache holds. Beyond it every pass
# over it waits for memory, and where one client alone goes beyond, batching costs more time than it saves.
STEP = 2**20
PADDING = 1.5  # longest over shortest batch in a stack of convolutional models
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


class Batch(NamedTuple):
    """One step's samples: x and y [clients, batch, ...], keep 1 for samples and 0 for what fills a shorter batch up."""

    x: Tensor
    y: Tensor
    keep: Tensor


class BatchedTrainer:
    """Trains a group of jobs in one go; the same update for each as :class:`LocalTrainer`'s up to rounding.

    Args:
        module: the architecture; its weights are not used.
        work: the local work.
        seed: of the batches.
        clients: every client's samples.
        gradients: whether clients send one gradient instead of a delta.
    """

    def __init__(
        self, module: nn.Module, work: LocalWork, seed: int, clients: Sequence[Samples], *, gradients: bool
    ) -> None:
        self._module, self._work, self._seed, self._gradients = module.train(), work, seed, gradients
        self._trainer = LocalTrainer(module, work, seed)  # for its batches
        self._sizes = [len(samples) for samples in clients]
        self._starts = torch.tensor([0, *self._sizes]).cumsum(0)[:-1]
        self._places = torch.arange(work.batch_size)
        self._augment = clients[0].augment  # of the whole training set, as its one form
        self._x = torch.cat([samples.x for samples in clients])
        self._y = torch.cat([samples.y for samples in clients])
        self._shapes = {name: p.shape for name, p in module.named_parameters()}
        self._lengths = [p.numel() for p in module.parameters()]
        self._buffers = [name for name, _ in module.named_buffers()]
        self._heavy = any(isinstance(layer, nn.Conv2d) for layer in module.modules())
        self._columns = _most_written(clients[0]) // _width(module, clients[0])
        self.most = max(1, STACK // (4 * max(1, sum(self._lengths))))

    def train(self, jobs: Sequence[Job]) -> list[Any]:
        """The jobs' updates, in their order, in the form ``Server.receive`` takes."""
        plans = [self._plan(job) for job in jobs]
        updates: list[Any] = [None] * len(jobs)
        for group in self._groups([max(map(len, plan), default=0) for plan in plans]):
            found = self._train([jobs[i] for i in group], [plans[i] for i in group])
            for i, update in zip(group, found, strict=True):
                updates[i] = update
        return updates

    def _groups(self, lengths: list[int]) -> list[list[int]]:
        """Which jobs share a stack: as many as fit the cache.

        Padding costs arithmetic: where that counts, batches are of similar lengths.
        """
        order = sorted(range(len(lengths)), key=lambda i: lengths[i])
        groups: list[list[int]] = []
        for i in order:
            fits = groups and len(groups[-1]) < self.most and (len(groups[-1]) + 1) * lengths[i] <= self._columns
            if fits and (not self._heavy or lengths[i] <= PADDING * lengths[groups[-1][0]]):
                groups[-1].append(i)
            else:
                groups.append([i])
        return groups

    def _train(self, jobs: Sequence[Job], plans: list[list[Tensor]]) -> list[Any]:
        # Longest first: those that still train are always the first rows of the stack.
        order = sorted(range(len(jobs)), key=lambda i: -len(plans[i]))
        group, plans = [jobs[i] for i in order], [plans[i] for i in order]
        start = torch.stack([job.task.flat for job in group])  # [clients, d]
        flat = start.clone()
        params = [job.task.views for job in group] if self._buffers else []
        buffers = {name: torch.stack([p[name] for p in params]) for name in self._buffers}
        rates = [self._work.lr * self._work.lr_decay**job.number for job in group]
        lr = torch.tensor(rates, device=flat.device).unsqueeze(1)
        with torch.inference_mode():  # autograd's bookkeeping, unused here, is a fifth of a small model's step
            gradient = self._steps(start, flat, buffers, lr, self._batches(group, plans))
        vectors = gradient.clone() if self._gradients else flat - start
        updates: list[Any] = [None] * len(jobs)
        sent = {**self._views(vectors), **buffers} if buffers else {}
        for row, i in enumerate(order):
            # One vector is taken by the server as it is; names are looked up and checked one by one.
            updates[i] = {name: stack[row] for name, stack in sent.items()} if sent else vectors[row]
        return updates

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

    def _plan(self, job: Job) -> list[Tensor]:
        """Indices into all samples of every batch the job trains on."""
        rng = generator(self._seed, "batches", job.client, job.number)
        steps = 1 if self._gradients else job.task.local_steps
        first = self._starts[job.client]
        return [index + first for index in self._trainer.batches(self._sizes[job.client], steps, rng)]

    def _batches(self, group: Sequence[Job], plans: list[list[Tensor]]) -> Iterator[Batch]:
        """Step by step the batches of all that still train, filled up to the longest."""
        draws = [generator(self._seed, "augment", job.client, job.number) for job in group] if self._augment else []
        steps = [[plan[step] for plan in plans if len(plan) > step] for step in range(len(plans[0]))]
        for batches in steps:
            index = pad_sequence(batches, batch_first=True)
            lengths = torch.tensor([len(batch) for batch in batches])
            keep = (self._places[: index.shape[1]] < lengths.unsqueeze(1)).to(torch.float32)
            rows = index.flatten().to(self._x.device)
            x, y = self._x.index_select(0, rows).unflatten(0, index.shape), self._y.index_select(0, rows)
            if self._augment:
                for own, batch, rng in zip(x, batches, draws, strict=False):  # as federated.batches does for one
                    own[: len(batch)] = self._augment(own[: len(batch)], rng)
            yield Batch(x, y.view(index.shape), keep.to(self._x.device))

    def _gradient(self, flat: Tensor, buffers: dict[str, Tensor], batch: Batch) -> Tensor:
        """Gradients of each client's own mean loss on its own batch, like ``flat`` [clients, d]."""
        found = stacked.gradients(self._module, batch.x, batch.y, {**self._views(flat), **buffers}, batch.keep)
        return torch.cat([found[name].flatten(1) for name in self._shapes], dim=1)

    def _views(self, flat: Tensor) -> dict[str, Tensor]:
        """A vector [..., d] cut into parameters [..., *shape]."""
        pieces = flat.split(self._lengths, dim=-1)
        return {
            name: piece.view(*flat.shape[:-1], *shape)
            for (name, shape), piece in zip(self._shapes.items(), pieces, strict=True)
        }
