"""The task that all simulators run, and what each process prints. Synchronous frameworks train 25 clients per round, so
they do the same number of client updates."""

from __future__ import annotations

import json
from typing import Any

import torch
from cases import simulator
from torch import nn

from fastagg.sim.runs import build

UPDATES = simulator.UPLOADS
GIVEN = simulator.recipe(simulator.MODELS[0][1])
COHORT = 25
WARM = 100  # client updates before the clock starts: the first ones import what a run needs
ROUNDS = UPDATES // COHORT
EVERY = 2  # rounds between two tests of the model: 50 client updates, as in fastagg's run
LR, EPOCHS, BATCH = GIVEN.client.lr, GIVEN.client.epochs or 1, GIVEN.client.batch_size


def data() -> Any:
    """The clients' digits and the test set."""
    return build.build_data(GIVEN)


def model() -> nn.Module:
    """The model to start from."""
    return build.build_model(GIVEN, data())


@torch.inference_mode()
def tested(module: nn.Module, test: Any) -> float:
    """The model's loss on the test set."""
    module.eval()
    found = float(nn.functional.cross_entropy(module(test.x), test.y))
    module.train()
    return found


def train(module: nn.Module, samples: Any) -> None:
    """Train as a client does, with torch's own SGD."""
    optimizer = torch.optim.SGD(module.parameters(), lr=LR)
    for _ in range(EPOCHS):
        for batch in torch.randperm(len(samples.x)).split(BATCH):
            optimizer.zero_grad()
            nn.functional.cross_entropy(module(samples.x[batch]), samples.y[batch]).backward()
            optimizer.step()


def done(seconds: float, updates: int, loss: float) -> None:
    """Print what the run took per client update. ``loss`` must be that of a model that learned."""
    if not loss < simulator.UNTRAINED:
        raise SystemExit(f"after {updates} client updates the loss is {loss:.3f}")
    print(json.dumps({"seconds": seconds / updates, "loss": loss}))
