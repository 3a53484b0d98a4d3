"""Rules of a user's own, for servers that are drawn. tests/support/model.py has their formulas once more."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import fastagg

State = dict[str, Tensor]


@dataclass(frozen=True)
class Lion(fastagg.Optimizer):
    """``x <- x + lr*sign(b1*m + (1-b1)*D); m <- b2*m + (1-b2)*D`` (docs/rules.md)."""

    beta1: float = 0.9
    beta2: float = 0.99

    def step(self, x: Tensor, direction: Tensor, state: State, lr: float, round: int) -> tuple[Tensor, State]:
        m = state.get("m", torch.zeros_like(x))
        towards = torch.sign(self.beta1 * m + (1 - self.beta1) * direction)
        return x + lr * towards, {"m": self.beta2 * m + (1 - self.beta2) * direction}


@dataclass(frozen=True)
class HalfLife(fastagg.Staleness):
    """A weight by the delay, and a rate by the largest one (docs/rules.md)."""

    versions: float = 5.0
    most: int = 20
    weighs = True

    def weight(self, delay: int) -> float:
        return float(0.5 ** (delay / self.versions))

    def rate(self, lr: float, delays: Sequence[int]) -> float:
        return lr / 10 if max(delays, default=0) > self.most else lr


@dataclass(frozen=True)
class Rare(fastagg.Staleness):
    """A client counts for less, the more often it has taken part."""

    weighs = counts = True

    def weigh(self, facts: fastagg.Facts) -> float:
        return float((1 + facts.taken_part) ** -0.5)


@dataclass(frozen=True)
class Trail(fastagg.Direction):
    """The sum of so many updates over their number, and a quarter of the last one again in the next sum."""

    size: int = 2

    def combine(self, update: Tensor, facts: fastagg.Facts, state: State) -> tuple[Tensor | None, State]:
        total = state.get("sum", torch.zeros_like(update)) + update
        count = int(state.get("count", torch.zeros(1))) + 1
        if count < self.size:
            return None, {"sum": total, "count": torch.full((1,), float(count))}
        return total / self.size, {"sum": 0.25 * update, "count": torch.zeros(1)}


OWN: tuple[Any, ...] = Lion, HalfLife, Rare, Trail
