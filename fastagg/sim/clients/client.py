"""Trains clients with torch. A client makes optimizer steps on its own samples, from the model that it was sent."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import nn

from fastagg._types import State
from fastagg.clients import GradientDifference, add_proximal_gradient_
from fastagg.model import ModelState
from fastagg.server.dispatch import Dispatch
from fastagg.sim.data.federated import Samples, Score, batches
from fastagg.sim.recipes.sections import Client
from fastagg.sim.seeds import permutations, seeded, words

# A client's update: the parameters' differences (or gradients) and the new buffers, by name or as vectors.
Update = dict[str, torch.Tensor] | ModelState
# Takes a batch's outputs and labels. Returns the mean loss as a tensor on which `backward()` can be called.
Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
# Takes the outputs and labels of a whole test set. Returns a number, of which larger values are better.
Metric = Callable[[torch.Tensor, torch.Tensor], float]


def places(work: Client, size: int, local_steps: int | None, seed: int, *key: int) -> tuple[torch.Tensor, list[int]]:
    """Return the indices of the samples of all mini-batches, one batch after the other, and each batch's length. The
    client has ``size`` samples. ``local_steps``: as in Client.steps_of.

    Every epoch has its own order of the samples. The orders depend only on (seed, key).
    """
    lengths = work.lengths(size, local_steps)
    index = permutations(-(-sum(lengths) // size), size, words(seed, "batches", *key))
    return index[: sum(lengths)], lengths


def build_optimizer(work: Client, module: nn.Module) -> torch.optim.Optimizer:
    if work.optimizer != "sgd":
        kind = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[work.optimizer]
        return kind(module.parameters(), lr=work.lr, weight_decay=work.weight_decay)
    return torch.optim.SGD(module.parameters(), lr=work.lr, momentum=work.momentum, weight_decay=work.weight_decay)


class Turn:
    """One dispatch of a client, for functions that train the client.

    Attributes:
        client, number: the client, and the number of its dispatches before this one.
        version: the version of the model that was sent.
        lr: the recipe's local learning rate, after its decay.
        sent: the weights that were sent, by name. Do not write to them.
        control: the server's control variate (FedAC). Otherwise None, or the same as ``extra``.
        extra: the further arrays that a user's own rule sent, by name.
    """

    def __init__(
        self, task: Dispatch, client: int, number: int, work: Client, seed: int, loss: Loss | None = None
    ) -> None:
        self.client, self.number = client, number
        self.lr = work.lr_of(number)
        self.version, self.control, self.extra = task.version, task.control, task.extra
        self.sent: Mapping[str, torch.Tensor] = task.views
        self._task, self._work, self._seed, self._passes = task, work, seed, 0
        self._loss: Loss = cross_entropy if loss is None else loss

    def batches(self, data: Samples, steps: int | None = None) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield ``steps`` mini-batches, drawn anew at each call. None: the server's number, or else the recipe's."""
        key = (self.client, self.number, self._passes) if self._passes else (self.client, self.number)
        self._passes += 1
        steps = self._task.local_steps if steps is None else steps
        index, lengths = places(self._work, len(data), steps, self._seed, *key)
        return batches(data, index.split(lengths), self._seed, self.client, self.number)

    def loss(self, model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Return the mean loss of a batch as a tensor on which ``backward()`` can be called."""
        return self._loss(model(x), y)

    def descend(
        self,
        model: nn.Module,
        data: Samples,
        extra: Callable[[nn.Module], object] | None = None,
        optimizer: torch.optim.Optimizer | None = None,
    ) -> None:
        """Make the local steps of this dispatch. ``extra(model)`` is called in each step before gradients are clipped,
        and may change ``.grad``. ``optimizer`` None: a new optimizer of the recipe's kind."""
        optimizer = build_optimizer(self._work, model) if optimizer is None else optimizer
        for group in optimizer.param_groups:
            group["lr"] = self.lr
        anchors = [self.sent[name] for name, _ in model.named_parameters()] if self._work.mu else []
        for x, y in self.batches(data):
            optimizer.zero_grad(set_to_none=True)
            self.loss(model, x, y).backward()
            if self._work.mu:
                add_proximal_gradient_(model, anchors, self._work.mu)
            if extra is not None:
                extra(model)
            if self._work.clip_norm is not None:
                nn.utils.clip_grad_norm_(model.parameters(), self._work.clip_norm)
            optimizer.step()

    def delta(self, model: nn.Module) -> dict[str, torch.Tensor]:
        """Return the update of a trained model. Parameters are differences from the model that was sent. Buffers are
        the trained model's own values."""
        return self._task.delta(model)


class LocalTrainer:
    """Trains all clients of a run with torch, one after the other, in the same module.

    The batches of a dispatch, and the random draws of layers (dropout), depend only on (seed, client, number). So the
    order in which clients are trained has no effect on the results.
    """

    def __init__(self, module: nn.Module, work: Client, seed: int, loss: Loss | None = None) -> None:
        self._module, self._work, self._seed, self._loss = module, work, seed, loss
        self._optimizer = build_optimizer(work, module)
        self._devices = {p.device for p in module.parameters() if p.device.type != "cpu"}  # each has its own generator

    @contextmanager
    def turn(self, task: Dispatch, client: int, number: int) -> Iterator[Turn]:
        """Load the model of this dispatch into the module, and seed the random draws of the module's layers."""
        turn = Turn(task, client, number, self._work, self._seed, self._loss)
        self._module.load_state_dict(turn.sent)
        self._module.train()
        with seeded(self._seed, "layers", client, number, devices=self._devices):
            yield turn

    def train(self, task: Dispatch, samples: Samples, client: int, number: int) -> Update:
        """Train from ``task.views`` on ``samples`` and return the update in the form ``Server.receive`` takes."""
        # Momentum belongs to one dispatch, so each client starts without it.
        self._optimizer.state.clear()
        with self.turn(task, client, number) as turn:
            turn.descend(self._module, samples, optimizer=self._optimizer)
        return task.delta(self._module)

    def gradient(self, task: Dispatch, samples: Samples, client: int, number: int) -> Update:
        """Return the mini-batch gradient at ``task.views`` (weight decay included), and the new buffers.

        With one SGD step, ``train`` returns this gradient times ``-lr``, but with the rounding errors of two models.
        """
        module = self._module
        module.zero_grad(set_to_none=True)
        with self.turn(task, client, number) as turn:
            turn.loss(module, *next(turn.batches(samples, 1))).backward()
        if self._work.clip_norm is not None:
            nn.utils.clip_grad_norm_(module.parameters(), self._work.clip_norm)
        update = dict(task.delta(module))
        for name, parameter in module.named_parameters():
            start = parameter.detach()
            gradient = torch.zeros_like(start) if parameter.grad is None else parameter.grad.detach()
            update[name] = gradient.add(start, alpha=self._work.weight_decay)
        return update


def with_flat(update: Update, names: Sequence[str], change: Callable[[torch.Tensor], torch.Tensor]) -> Update:
    """Return ``update`` with ``change`` applied to the vector of its parameters. ``names``: their names in a dict."""
    if isinstance(update, ModelState):
        return update._replace(flat=change(update.flat))
    arrays = [update[name] for name in names]
    pieces = change(torch.cat([array.float().reshape(-1) for array in arrays])).split([a.numel() for a in arrays])
    shaped = (piece.view_as(array).to(array.dtype) for piece, array in zip(pieces, arrays, strict=True))
    return {**update, **dict(zip(names, shaped, strict=True))}


class DifferenceSender:
    """Makes the updates of ACE with caches on clients. A client's first update is its gradient. A later update is the
    change of the client's gradient since the client's last update."""

    def __init__(self, parameters: Iterable[str]) -> None:
        self._names = list(parameters)
        self._clients: defaultdict[int, GradientDifference] = defaultdict(GradientDifference)

    def difference(self, client: int, update: Update) -> Update:
        """Return ``update`` with the gradients replaced by their change. Buffers stay as they are."""
        return with_flat(update, self._names, self._clients[client].difference)

    def state_dict(self) -> dict[int, State]:
        return {client: sender.state_dict() for client, sender in self._clients.items()}

    def load_state_dict(self, state: dict[int, State]) -> None:
        self._clients.clear()
        for client, sent in state.items():
            self._clients[client].load_state_dict(sent)


def cross_entropy(outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return the mean cross-entropy over all labels. ``outputs`` are [batch, classes]. If every token has a label,
    ``outputs`` are [batch, length, classes]."""
    return nn.functional.cross_entropy(outputs.flatten(0, -2), y.flatten())


def rated(
    model: Callable[[torch.Tensor], torch.Tensor],
    test: Samples,
    score: Score | None = None,
    loss: Loss | None = None,
    metric: Metric | None = None,
) -> tuple[float, float]:
    """Return the accuracy (0..1) and the mean cross-entropy of ``model``, a module or another function, over ``test``.

    If ``model`` is a module, ``score`` (if not None) returns both numbers. ``metric`` replaces the accuracy, and
    ``loss`` the cross-entropy. ``score`` is then not used. With fp32 labels and no ``metric``, the accuracy is 0.
    """
    correct, total, outputs = 0, 0.0, []
    with torch.inference_mode():
        if isinstance(model, nn.Module):
            model.eval()
            if score is not None and metric is None and loss is None:
                return score(model, test)
        for x, y in zip(test.x.split(2048), test.y.split(2048), strict=True):
            logits = model(x)
            if metric is not None:
                outputs.append(logits)
            elif not y.is_floating_point():
                correct += int((logits.argmax(dim=1) == y).sum())
            if loss is None:
                total += float(nn.functional.cross_entropy(logits, y, reduction="sum"))
            else:
                total += float(loss(logits, y)) * len(y)
        accuracy = correct / len(test) if metric is None else float(metric(torch.cat(outputs), test.y))
    return accuracy, total / len(test)
