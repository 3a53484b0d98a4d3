"""Rules of a user's own, for servers that are drawn: two of docs/rules.md, as they stand there, and two more.
tests/support/model.py has their formulas once more."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor

import fastagg

State = dict[str, Tensor]


PAGE = Path(__file__).parents[2] / "docs" / "rules.md"
page: dict[str, Any] = {"__name__": __name__}  # what its first two programs make: HalfLife and Lion
with mock.patch.dict(fastagg.registry._parts):
    for program in re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)[:2]:
        exec(compile(program, "docs/rules.md", "exec", dont_inherit=True), page)


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


OWN: tuple[Any, ...] = page["Lion"], page["HalfLife"], Rare, Trail
