"""Local training: what a client does with the model it was sent, in real SGD steps."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import nn

from fastagg._types import State
from fastagg.clients import GradientDifference, add_proximal_gradient_
from fastagg.sim.data.federated import Samples, Score, batches
from fastagg.sim.seeds import generator, integer
from fastagg.sim.translate import QUIET

# What a client sends: arrays by name, parameters' changes and new buffers; one vector if the model has no buffers.
Update = dict[str, torch.Tensor] | torch.Tensor


class Task(Protocol):
    """What ``fastagg.Server.dispatch`` returns, as far as a client needs it."""

    @property
    def views(self) -> Mapping[str, torch.Tensor]: ...

    @property
    def flat(self) -> torch.Tensor: ...

    @property
    def local_steps(self) -> int | None: ...

    def state_dict(self) -> State: ...

    def delta(self, trained: nn.Module) -> dict[str, torch.Tensor]: ...


@dataclass(frozen=True)
class LocalWork:
    """SGD on a client: either ``epochs`` passes over its samples or ``steps`` mini-batches, the other None.

    lr is the papers' eta_l. A task with ``local_steps`` (AsyncFedED's adaptive K) overrides both. ``mu`` > 0 adds
    FedProx's proximal term, ``(mu/2)*|x - x_s|^2``, to the local loss. A client's ``number``-th dispatch trains with
    ``lr * lr_decay**number``. ``optimizer`` "adamw" has torch's defaults beyond lr and weight decay.
    """

    lr: float
    batch_size: int
    epochs: int | None = None
    steps: int | None = None
    momentum: float = 0.0
    weight_decay: float = 0.0
    mu: float = 0.0
    lr_decay: float = 1.0
    optimizer: str = "sgd"
    autocast: bool = False  # the forward pass in bf16, where torch.autocast does so

    def steps_of(self, size: int, local_steps: int | None) -> int:
        """How many mini-batches a client with ``size`` samples takes, told to take ``local_steps`` or nothing."""
        if local_steps is not None:
            return local_steps
        if self.steps is not None:
            return self.steps
        assert self.epochs is not None
        return self.epochs * -(-size // min(self.batch_size, size))

    def batches(self, size: int, local_steps: int | None, rng: np.random.Generator) -> Iterator[np.ndarray]:
        """Yield the indices of each mini-batch among a client's ``size`` samples. Every epoch has its own order."""
        batch_size = min(self.batch_size, size)
        per_epoch = -(-size // batch_size)
        for step in range(self.steps_of(size, local_steps)):
            start = (step % per_epoch) * batch_size
            if start == 0:
                order = rng.permutation(size)
            yield order[start : start + batch_size]

    def build_optimizer(self, module: nn.Module) -> torch.optim.Optimizer:
        if self.optimizer == "adamw":
            return torch.optim.AdamW(module.parameters(), lr=self.lr, weight_decay=self.weight_decay)
        return torch.optim.SGD(module.parameters(), lr=self.lr, momentum=self.momentum, weight_decay=self.weight_decay)


class LocalTrainer:
    """Trains every client of a run on one shared module.

    The batches of a dispatch, and what its layers draw (dropout), come from (seed, client, number) alone, so the order
    in which clients are trained does not change any result.
    """

    def __init__(self, module: nn.Module, work: LocalWork, seed: int) -> None:
        self._module = module
        self._work = work
        self._seed = seed
        self._optimizer = work.build_optimizer(module)
        self._loss = nn.CrossEntropyLoss()
        # Of a layer that is not known to draw nothing it cannot be known.
        self._draws = any(type(layer) not in QUIET for layer in module.modules())

    def train(self, task: Task, samples: Samples, client: int, number: int) -> Update:
        """Train from ``task.views`` on ``samples`` and return the update in the form ``Server.receive`` takes."""
        module = self._module
        module.load_state_dict(task.views)
        module.train()
        # Momentum belongs to one dispatch: the next client starts without the last one's.
        self._optimizer.state.clear()
        for group in self._optimizer.param_groups:
            group["lr"] = self._work.lr * self._work.lr_decay**number
        anchors = [p.detach().clone() for p in module.parameters()] if self._work.mu else []
        rng = generator(self._seed, "batches", client, number)
        indices = map(torch.from_numpy, self._work.batches(len(samples), task.local_steps, rng))
        with self._own_draws(client, number):
            for x, y in batches(samples, indices, self._seed, client, number):
                self._optimizer.zero_grad(set_to_none=True)
                self._batch_loss(x, y).backward()
                if self._work.mu:
                    add_proximal_gradient_(module, anchors, self._work.mu)
                self._optimizer.step()
        return task.delta(module)

    def gradient(self, task: Task, samples: Samples, client: int, number: int) -> dict[str, torch.Tensor]:
        """Return the mini-batch gradient at ``task.views`` (weight decay included), and the buffers of that pass.

        It is what one step of ``train`` from there divides by ``-lr``, without the rounding of the two models.
        """
        module = self._module
        module.load_state_dict(task.views)
        module.train()
        rng = generator(self._seed, "batches", client, number)
        indices = map(torch.from_numpy, self._work.batches(len(samples), 1, rng))
        x, y = next(batches(samples, indices, self._seed, client, number))
        module.zero_grad(set_to_none=True)
        with self._own_draws(client, number):
            self._batch_loss(x, y).backward()
        update = dict(task.delta(module))
        for name, parameter in module.named_parameters():
            start = parameter.detach()
            gradient = torch.zeros_like(start) if parameter.grad is None else parameter.grad.detach()
            update[name] = gradient.add(start, alpha=self._work.weight_decay)
        return update

    def _batch_loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        # [batch, classes], or [batch, length, classes] where every token has a label.
        with torch.autocast(x.device.type, torch.bfloat16, enabled=self._work.autocast):
            loss: torch.Tensor = self._loss(self._module(x).flatten(0, -2), y.flatten())
        return loss

    @contextmanager
    def _own_draws(self, client: int, number: int) -> Iterator[None]:
        """Give torch's one generator a state that belongs to this dispatch, and its old one back afterwards."""
        if not self._draws:
            yield
            return
        devices = {p.device for p in self._module.parameters() if p.device.type != "cpu"}
        with torch.random.fork_rng(devices=list(devices)):
            torch.manual_seed(integer(self._seed, "layers", client, number))
            yield


class DifferenceSender:
    """What the clients of ACE with client caches send: their gradient's change since the last one they sent."""

    def __init__(self, parameters: Iterable[str]) -> None:
        self._names = list(parameters)
        self._clients: defaultdict[int, GradientDifference] = defaultdict(GradientDifference)

    def difference(self, client: int, update: Update) -> Update:
        """Return ``update``, a dict or a vector, with gradients replaced by their change; buffers stay as they are."""
        if isinstance(update, torch.Tensor):
            return self._clients[client].difference(update)
        gradients = [update[name] for name in self._names]
        change = self._clients[client].difference(torch.cat([g.reshape(-1) for g in gradients]))
        pieces = change.split([g.numel() for g in gradients])
        changes = {n: p.view_as(g) for n, p, g in zip(self._names, pieces, gradients, strict=True)}
        return {**update, **changes}

    def state_dict(self) -> dict[int, State]:
        return {client: sender.state_dict() for client, sender in self._clients.items()}

    def load_state_dict(self, state: dict[int, State]) -> None:
        self._clients.clear()
        for client, sent in state.items():
            self._clients[client].load_state_dict(sent)


def evaluate(
    module: nn.Module, params: Mapping[str, torch.Tensor], test: Samples, score: Score | None = None
) -> tuple[float, float]:
    """Return accuracy (0..1) and mean cross-entropy of ``params`` loaded into ``module``, over ``test``.

    ``score`` says them instead, where the data has one.
    """
    module.load_state_dict(params)
    module.eval()
    correct, loss = 0, 0.0
    with torch.inference_mode():
        if score is not None:
            return score(module, test)
        for x, y in zip(test.x.split(2048), test.y.split(2048), strict=True):
            logits = module(x)
            correct += int((logits.argmax(dim=1) == y).sum())
            loss += float(nn.functional.cross_entropy(logits, y, reduction="sum"))
    return correct / len(test), loss / len(test)
