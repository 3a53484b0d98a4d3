"""Defects of kinds that were in the history, put into the server or, where that is native, the other way round into its
model: what differs is the same."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from support import model
from support.formulas import Optimizer
from support.model import Model

import fastagg
from fastagg.durable.uploads import Uploads
from fastagg.server import engine
from fastagg.storage import memory
from fuzz import beside

Patch = Callable[..., None]
DEFECTS: dict[str, Callable[[Patch], None]] = {}


def defect(plant: Callable[[Patch], None]) -> None:
    DEFECTS[plant.__name__.replace("_", " ")] = plant


def _made_with(patch: Patch, change: Callable[[dict[str, Any], dict[str, Any], dict[str, Any]], None]) -> None:
    """Make servers of other parts than their models: a direction, an optimizer and settings are changed."""

    whole = beside.server_of

    def server_of(params: Any, direction: Any, optimizer: Any, staleness: Any, settings: Any) -> fastagg.Server:
        parts = dict(direction), dict(optimizer), dict(settings)
        change(*parts)
        return whole(params, parts[0], parts[1], staleness, parts[2])

    patch(beside, "server_of", server_of)


# -- in the server


@defect
def a_sum_is_divided_by_the_number_of_its_updates_and_not_by_their_weights(patch: Patch) -> None:
    def change(direction: dict[str, Any], optimizer: Any, settings: Any) -> None:
        if direction.get("normalize") == "weights":
            direction["normalize"] = "buffer"

    _made_with(patch, change)


@defect
def a_client_counts_for_more_samples_than_it_may(patch: Patch) -> None:
    _made_with(patch, lambda direction, optimizer, settings: settings.pop("max_samples", None))


@defect
def a_checkpoint_loses_a_moment(patch: Patch) -> None:
    whole = engine._load_moments

    def load(running: Any, moments: dict[str, Any], *more: Any) -> None:
        whole(running, {name: 0 * one if name == "m" else one for name, one in moments.items()}, *more)

    patch(engine, "_load_moments", load)


@defect
def a_leafs_sum_counts_as_one_update(patch: Patch) -> None:
    whole = fastagg.Leaf.take

    def take(self: fastagg.Leaf) -> fastagg.Partial:
        total = whole(self)
        return total._replace(updates=1, weight=1.0 if self.weighting == "uniform" else total.weight)

    patch(fastagg.Leaf, "take", take)


@defect
def what_is_handed_out_follows_the_model(patch: Patch) -> None:
    one = torch.empty(0)

    def flat(self: fastagg.Server) -> torch.Tensor:
        return one.resize_(self.layout.size).copy_(self._engine.flat)

    patch(fastagg.Server, "flat", property(flat))


@defect
def memory_of_torchs_own_type_and_device(patch: Patch) -> None:
    def empty(size: int, device: Any = "cpu", dtype: torch.dtype = torch.float32) -> torch.Tensor:
        if dtype is not torch.float32:
            return whole(size, device, dtype)
        return whole(2 * size).view(torch.get_default_dtype())[:size]  # room for all: this process is to live

    whole = memory.empty
    patch(memory, "empty", empty)


@defect
def a_checkpoint_removes_an_open_upload(patch: Patch) -> None:
    patch(Uploads, "needed", lambda self, *_: set())


@defect
def a_refusal_is_felt_later(patch: Patch) -> None:
    def refused(self: fastagg.Server, error: Exception) -> None:
        if isinstance(error, fastagg.NonFiniteUpdate) and self._log is not None:
            self.lr = self.lr * 2

    patch(fastagg.Server, "_refused", refused)


# -- in the model


@defect
def the_rate_follows_the_last_updates_delay_and_not_the_largest(patch: Patch) -> None:
    whole = model.rate_of
    patch(model, "rate_of", lambda p, lr, delays: whole(p, lr, delays[-1:]))


@defect
def an_update_is_clipped_after_its_weight(patch: Patch) -> None:
    whole, clip = Model.add, Model.clipped

    def add(self: Model, a: Any, s: float) -> Any:
        a.update = clip(self, s * a.update) / (s or 1.0)
        return whole(self, a, s)

    patch(Model, "clipped", lambda self, u: u)
    patch(Model, "add", add)


@defect
def an_answer_that_comes_twice_counts_twice(patch: Patch) -> None:
    whole = Model.end
    patch(Model, "end", lambda self, task, end="": None if end == "AlreadyCounted" else whole(self, task))


@defect
def the_look_ahead_is_that_of_the_rate_before(patch: Patch) -> None:
    def ahead(self: Optimizer) -> Any:
        return np.multiply(0.5 * self.part["momentum"], self.m) if self.part.get("look_ahead") else 0.0 * self.m

    patch(Optimizer, "ahead", property(ahead))
