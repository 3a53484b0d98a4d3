"""Simulates clients that lie. A liar sends another update than it has trained, or trains on wrong labels."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from fastagg._types import State
from fastagg.errors import ConfigError
from fastagg.sim.clients.client import Update, with_flat
from fastagg.sim.data.federated import FederatedData
from fastagg.sim.recipes.sections import Attack
from fastagg.sim.seeds import generator

_KNOWN = 16  # liars know at most this number of honest updates: the last ones

# By attack: a function of a liar's own update, honest updates [n, d] and the strength. It returns the update to send.
_SENDS: dict[str, Callable[[Tensor, Tensor, float], Tensor]] = {
    "sign_flip": lambda own, honest, strength: -strength * own,
    "scaling": lambda own, honest, strength: strength * own,
    "alie": lambda own, honest, strength: honest.mean(0) - strength * honest.std(0, correction=0),
    "inner_product": lambda own, honest, strength: -strength * honest.mean(0),
}
_STRENGTH = {"sign_flip": 1.0, "scaling": 10.0, "alie": 1.5, "inner_product": 0.5}


def liars_of(attack: Attack, clients: int, seed: int) -> frozenset[int]:
    """Return the clients that lie, a randomly drawn ``share`` of all clients. Without an attack, no client lies."""
    drawn = generator(seed, "attack").permutation(clients)[: round(attack.share * clients)]
    return frozenset(drawn.tolist()) if attack.name != "none" else frozenset()


def with_flipped_labels(data: FederatedData, attack: Attack, seed: int) -> FederatedData:
    """Return the data for training. With ``label_flip``, a liar's label y becomes classes - 1 - y.

    ConfigError: the labels are not one class for each sample.
    """
    if attack.name != "label_flip":
        return data
    if data.test.y.is_floating_point() or data.test.y.dim() != 1:
        raise ConfigError("attack.name: 'label_flip' needs one class for each sample")
    liars = liars_of(attack, len(data.clients), seed)
    flipped = [replace(s, y=data.classes - 1 - s.y) if k in liars else s for k, s in enumerate(data.clients)]
    return replace(data, clients=flipped)


class Liars:
    """Makes the updates that liars send. Liars know the last honest updates, as the papers assume."""

    def __init__(self, attack: Attack, clients: int, seed: int, trained: list[str]) -> None:
        """``trained``: the names of the parameters in an update."""
        self._sends = _SENDS.get(attack.name)
        self._strength = attack.strength or _STRENGTH.get(attack.name, 1.0)
        self._liars, self._trained = liars_of(attack, clients, seed), trained
        self._known = deque[Tensor](maxlen=_KNOWN)

    def __call__(self, client: int, update: Update) -> Update:
        """Return what the client sends: ``update``, or from a liar that knows honest updates the attack's update."""
        sends = self._sends
        if sends is None or not self._liars:
            return update

        def sent(own: Tensor) -> Tensor:
            if client not in self._liars:
                self._known.append(own.clone())
            elif self._known:
                return sends(own, torch.stack(list(self._known)), self._strength)
            return own

        return with_flat(update, self._trained, sent)

    def state_dict(self) -> State:
        return {"known": list(self._known)}

    def load_state_dict(self, state: State) -> None:
        self._known.clear()
        self._known.extend(state["known"])
