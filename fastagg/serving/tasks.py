"""Who was sent which version and has not answered it yet."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from torch import Tensor

from fastagg.errors import UnknownClient, UnknownVersion
from fastagg.serving.dispatch import Client
from fastagg.serving.versions import VersionStore


class Tasks:
    """The unanswered tasks of every client, each of which is answered once or forgotten.

    Args:
        num_clients: if given, clients are the whole numbers 0..num_clients-1.
        keeps_models: whether the models that went out are kept until they are answered, for rules that need them.
    """

    def __init__(self, num_clients: int | None, keeps_models: bool) -> None:
        self.num_clients, self.keeps_models = num_clients, keeps_models
        self.versions = VersionStore()
        self._open: dict[Client, list[int]] = {}
        self._last_sent: dict[Client, int] = {}

    def identify(self, client: Any) -> Client:
        """The client's id as it is kept.

        Raises:
            UnknownClient: it is neither an int nor a str, or outside 0..num_clients-1.
        """
        if isinstance(client, str) and self.num_clients is None:
            return str.__str__(client)  # a plain one, for checkpoints: not NumPy's
        try:
            number = operator.index(client)
        except TypeError:
            expected = "an int or a str" if self.num_clients is None else "a whole number"
            raise UnknownClient(f"client {client!r}: expected {expected}") from None
        if self.num_clients is not None and not 0 <= number < self.num_clients:
            raise UnknownClient(f"client {number}: expected 0..{self.num_clients - 1}")
        return number

    def send(self, client: Client, version: int, model: Tensor) -> None:
        """``client`` gets ``version``, whose parameters are ``model``; twice the same version is one task."""
        held = self._open.setdefault(client, [])
        if version not in held:
            if self.keeps_models:
                self.versions.acquire(version, model)
            held.append(version)
        self._last_sent[client] = version

    def owed(self, client: Client) -> list[int]:
        """The versions that ``client`` has not answered.

        Raises:
            UnknownClient: it was never sent one.
        """
        if client not in self._open:
            raise UnknownClient(f"client {client!r} was never sent a model")
        return self._open[client]

    def find(self, client: Client, version: Any = None) -> int:
        """The version of an unanswered task; None means the one last sent.

        Raises:
            UnknownClient: this client was never sent one.
            UnknownVersion: it does not owe this one.
        """
        held = self.owed(client)
        try:
            start = self._last_sent[client] if version is None else operator.index(version)
        except TypeError:
            raise UnknownVersion(f"client {client!r}: version: expected a whole number, got {version!r}") from None
        if start in held:
            return start
        owed = f"it owes versions {sorted(held)}" if held else "it has answered everything it was sent"
        raise UnknownVersion(f"client {client!r}: an update from version {start} came, but {owed}")

    def base(self, version: int) -> Tensor | None:
        """The parameters of a version in flight, [d]; None if they are not kept."""
        return self.versions.get(version) if self.keeps_models else None

    def close(self, client: Client, version: int) -> None:
        """The task is answered, or will not be."""
        self._open[client].remove(version)
        if self.keeps_models:
            self.versions.release(version)

    def forget(self, client: Client) -> None:
        """The client, whose tasks are closed, is unknown again."""
        del self._open[client], self._last_sent[client]

    def state_dict(self) -> dict[str, Any]:
        """Plain data, and the models that are kept."""
        return {
            "versions": self.versions.state_dict(),
            "in_flight": {client: list(held) for client, held in self._open.items()},
            "last_sent": dict(self._last_sent),
        }

    def load_state_dict(self, state: dict[str, Any], owned: Callable[[Tensor], Tensor]) -> None:
        """Inverse of :meth:`state_dict`; ``owned`` checks a model and copies it."""
        self.versions.load_state_dict({int(v): (owned(model), int(n)) for v, (model, n) in state["versions"].items()})
        self._open = {client: [int(v) for v in held] for client, held in state["in_flight"].items()}
        self._last_sent = {client: int(state["last_sent"][client]) for client in self._open}
