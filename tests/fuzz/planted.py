"""Defects of kinds that were in the history, put into the server or, where that is native, the other way round into its
model: what differs is the same."""

from collections.abc import Callable
from typing import Any

import numpy as np
from support import model
from support.model import Model, Optimizer

import fastagg
from fastagg.server import engine
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
def the_model_decays_twice(patch: Patch) -> None:
    def change(direction: Any, optimizer: dict[str, Any], settings: Any) -> None:
        if "weight_decay" in optimizer:
            optimizer["weight_decay"] *= 2

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
def a_new_rate_is_forgotten_when_the_folder_is_opened_again(patch: Patch) -> None:
    whole = beside.open_on

    def open_on(disk: Any, make: Any, *more: Any, **rest: Any) -> fastagg.Server:
        server: fastagg.Server = whole(disk, make, *more, **rest)
        server.lr = make().lr
        return server

    patch(beside, "open_on", open_on)


@defect
def a_leafs_sum_counts_as_one_update(patch: Patch) -> None:
    whole = fastagg.Leaf.take

    def take(self: fastagg.Leaf) -> fastagg.Partial:
        total = whole(self)
        return total._replace(updates=1, weight=1.0 if self.weighting == "uniform" else total.weight)

    patch(fastagg.Leaf, "take", take)


# -- in the model


@defect
def the_end_of_a_round_leaves_the_users_own_step_out(patch: Patch) -> None:
    whole = Model.close_round

    def close_round(self: Model, **how: Any) -> float | None:
        held = self.optimizer.part
        self.optimizer.part = {**held, "name": "SGD"} if held["name"] == "Lion" else held
        try:
            return whole(self, **how)
        finally:
            self.optimizer.part = held

    patch(Model, "close_round", close_round)


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
def a_round_that_was_closed_leaves_its_updates_behind(patch: Patch) -> None:
    whole = Model.close_round

    def close_round(self: Model, **how: Any) -> float | None:
        held, version = self.held, self.version
        rate = whole(self, **how)
        self.held = held if self.version > version else self.held
        return rate

    patch(Model, "close_round", close_round)


@defect
def an_answer_that_comes_twice_counts_twice(patch: Patch) -> None:
    whole = Model.end
    patch(Model, "end", lambda self, task, end="": None if end == "AlreadyCounted" else whole(self, task))


@defect
def the_bias_correction_is_a_step_behind(patch: Patch) -> None:
    whole = Optimizer.towards

    def towards(self: Optimizer, p: Any, d: Any) -> Any:
        self.steps += bool(p.get("bias_correction"))
        found = whole(self, p, d)
        self.steps -= bool(p.get("bias_correction"))
        return found

    patch(Optimizer, "towards", towards)


@defect
def a_row_is_not_replaced_before_all_are_there(patch: Patch) -> None:
    whole = Model.add

    def add(self: Model, a: Any, s: float) -> Any:
        held = self.rows.get(a.client)
        found = whole(self, a, s)
        if isinstance(found, str) and held is not None and self.name == "AllClients":
            self.rows[a.client] = held
        return found

    patch(Model, "add", add)


@defect
def the_look_ahead_is_that_of_the_rate_before(patch: Patch) -> None:
    def ahead(self: Optimizer) -> Any:
        return np.multiply(0.5 * self.part["momentum"], self.m) if self.part.get("look_ahead") else 0.0 * self.m

    patch(Optimizer, "ahead", property(ahead))


@defect
def statistics_of_a_step_that_was_dropped_are_kept(patch: Patch) -> None:
    whole = Model.advance

    def advance(self: Model, applied: bool) -> None:
        reported = self.reported
        whole(self, applied)
        self.reported = [] if applied else reported

    patch(Model, "advance", advance)
