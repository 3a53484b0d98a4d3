"""Shared pieces of the simulator's tests: a recipe that runs in a fraction of a second."""

from __future__ import annotations

from typing import Any

import pytest

from fastagg.sim.recipes.config import Config, from_toml

TINY = """
name = "tiny"
label = "Tiny"

[algorithm]
name = "FedBuff"
lr = 1.0
buffer_size = 3

[data]
name = "digits"
clients = 12
alpha = 0.5

[model]
name = "mlp"
widths = [8]

[client]
lr = 0.1
batch_size = 32

[delay]
name = "three-class"

[participation]
rule = "concurrency"
concurrency = 6

[run]
uploads = 30
evaluate_every = 4
"""


@pytest.fixture
def tiny_toml() -> str:
    return TINY


@pytest.fixture
def tiny():
    """Return a function from changed keys ({"client.lr": 0.3}) to the tiny recipe's Config."""

    def build(changes: dict[str, Any] | None = None) -> Config:
        return from_toml(TINY, "tiny", changes)

    return build
