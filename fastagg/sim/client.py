"""Local training: what a client does with the model it was sent, in real SGD steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import nn

from fastagg.sim.data.federated import Samples
from fastagg.sim.seeds import generator


class Task(Protocol):
    """What ``fastagg.Server.dispatch`` returns, as far as a client needs it."""

    @property
    def params(self) -> Any: ...

    @property
    def local_steps(self) -> int | None: ...

    def delta(self, trained: Any) -> Any: ...


@dataclass(frozen=True)
class LocalWork:
    """SGD on a client: either ``epochs`` passes over its samples or ``steps`` mini-batches, the other None.

    lr is the papers' eta_l. A task with ``local_steps`` (AsyncFedED's adaptive K) overrides both.
    """

    lr: float
    batch_size: int
    epochs: int | None = None
    steps: int | None = None
    momentum: float = 0.0
    weight_decay: float = 0.0


class LocalTrainer:
    """Trains every client of a run on one shared module.

    The batches of a dispatch are drawn from (seed, client, number) alone, so the order in which clients are
    trained does not change any result.
    """

    def __init__(self, module: nn.Module, work: LocalWork, seed: int) -> None:
        self._module = module
        self._work = work
        self._seed = seed
        self._optimizer = torch.optim.SGD(
            module.parameters(), lr=work.lr, momentum=work.momentum, weight_decay=work.weight_decay
        )
        self._loss = nn.CrossEntropyLoss()

    def train(self, task: Task, samples: Samples, client: int, number: int) -> Any:
        """Train from ``task.params`` on ``samples`` and return the update in the form ``Server.receive`` takes."""
        module = self._module
        module.load_state_dict(task.params)
        module.train()
        # Momentum belongs to one dispatch: the next client starts without the last one's.
        self._optimizer.state.clear()
        rng = generator(self._seed, "batches", client, number)
        for batch in self._batches(len(samples), task.local_steps, rng):
            self._optimizer.zero_grad(set_to_none=True)
            self._loss(module(samples.x[batch]), samples.y[batch]).backward()
            self._optimizer.step()
        return task.delta(module)

    def _batches(self, size: int, local_steps: int | None, rng: np.random.Generator) -> Iterator[torch.Tensor]:
        batch_size = min(self._work.batch_size, size)
        per_epoch = -(-size // batch_size)
        steps = local_steps if local_steps is not None else self._work.steps
        if steps is None:
            assert self._work.epochs is not None
            steps = self._work.epochs * per_epoch
        for step in range(steps):
            start = (step % per_epoch) * batch_size
            if start == 0:
                order = torch.from_numpy(rng.permutation(size))
            yield order[start : start + batch_size]


def evaluate(module: nn.Module, params: Mapping[str, torch.Tensor], test: Samples) -> tuple[float, float]:
    """Return accuracy (0..1) and mean cross-entropy of ``params`` loaded into ``module``, over ``test``."""
    module.load_state_dict(params)
    module.eval()
    correct, loss = 0, 0.0
    with torch.inference_mode():
        for x, y in zip(test.x.split(2048), test.y.split(2048), strict=True):
            logits = module(x)
            correct += int((logits.argmax(dim=1) == y).sum())
            loss += float(nn.functional.cross_entropy(logits, y, reduction="sum"))
    return correct / len(test), loss / len(test)
