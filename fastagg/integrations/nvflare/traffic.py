"""A server behind FLARE's messages: what every way of running it here has in common."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from nvflare.apis.fl_constant import FLMetaKey
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType

import fastagg
from fastagg.errors import FastaggError, UnknownClient, UnknownVersion
from fastagg.integrations import preset
from fastagg.integrations.nvflare.arrays import as_sent, completed, is_numpy
from fastagg.serving import checkpoint
from fastagg.serving.dispatch import Dispatch, Receipt
from fastagg.storage import memory

KIND = "fastagg_kind"  # meta of a reply: "gradient" where the rule takes gradients (ACE, ASGD)
LOCAL_STEPS = "fastagg_local_steps"  # meta of a task, where the rule decides that (AsyncFedED)


class Traffic:
    """A fastagg server behind FLARE's messages: FLModels out, FLModels back, each reply counted once or refused.

    Args:
        algorithm: a preset's name, as in ``fastagg.FADAS``.
        settings: its keyword arguments.
        path: of a checkpoint that the server is saved to, and goes on from if it is there.
        clients: names of all clients, for rules that keep something of each of them (ACE, ACED, CA2FL).
        weight_key: what weighs a reply in its ``meta``, for ``weighting="samples"``.
        log: where it says what came of every message.

    Raises:
        ConfigError: no such preset.
    """

    def __init__(
        self,
        algorithm: str,
        settings: dict[str, Any] | None = None,
        path: str | None = None,
        clients: Sequence[str] | None = None,
        weight_key: str = FLMetaKey.NUM_STEPS_CURRENT_ROUND,
        log: Callable[[str], None] | None = None,
    ) -> None:
        self._make = preset(algorithm)
        self.algorithm, self.settings, self.clients = algorithm, dict(settings or {}), clients
        self.weight_key = weight_key
        self.log = log or logging.getLogger(__name__).info
        self.checkpoint = None if path is None else Path(path)
        self.server: fastagg.Server
        self.numpy = False  # whether models travel as NumPy arrays
        self._open: dict[tuple[str, int], Dispatch] = {}  # by client and round: what it has not answered yet
        self._seen: set[str] = set()
        self._told: set[tuple[str, str]] = set()  # client, and what the log says of it once
        self._lock = threading.Lock()

    def start(self, params: dict[str, Any]) -> bool:
        """Build the server from the first global model, then go on from the checkpoint; only the first call counts.

        Returns:
            Whether the checkpoint's model took the place of ``params`` in this call.

        Raises:
            FastaggError: a setting, the model or the checkpoint is refused.
        """
        with self._lock:
            if hasattr(self, "server"):
                return False
            self.numpy = is_numpy(params)
            fresh = self._make(params, **self.settings)
            goes_on = False
            if self.checkpoint is not None and self.checkpoint.exists():
                goes_on = True
                fresh.load_state_dict(checkpoint.read(self.checkpoint))
                self.log(f"fastagg: going on from {self.checkpoint}, version {fresh.version}")
            if fresh.layout.has_buffers and fresh.weighting == "samples":
                self.log("fastagg: running statistics take the clients' plain mean; FLARE's own weighs them by steps")
            # The sum so far and the next one: replies come one by one, and are checked and added in one pass with both.
            memory.set_aside(fresh.layout.size, 2)
            self.server = fresh
            return goes_on

    def send(self, client: str, number: int | None = None) -> FLModel:
        """The next task of ``client``. It is known by ``number``, by default the server's version."""
        with self._lock:
            if client not in self._seen:  # what it was sent before a restart went with the job that sent it
                self._seen.add(client)
                with suppress(UnknownClient):
                    self.server.forget(self._id(client))
            task = self.server.dispatch(self._id(client))
            number = task.version if number is None else number
            self._open[client, number] = task
        meta = {} if task.local_steps is None else {LOCAL_STEPS: task.local_steps}
        return FLModel(ParamsType.FULL, as_sent(task.views, self.numpy), current_round=number, meta=meta)

    def take(self, client: str, reply: FLModel) -> Receipt:
        """Fold a reply in. One that is refused changes nothing, and the log says why.

        Raises:
            FastaggError: it is refused.
        """
        try:
            number = -1 if reply.current_round is None else reply.current_round
            task = self._open.get((client, number))
            if task is None:
                owed = sorted(n for c, n in self._open if c == client)
                raise UnknownVersion(f"a reply to task {reply.current_round} came, but it owes {owed or 'none'}")
            kind, weight, whole = reply.meta.get(KIND, "delta"), self._weight(client, reply), _is_whole(reply)
            update, missing = completed(reply.params, task.views, whole)
            if missing:
                what = f"{len(missing)} arrays are not in its replies ({missing[0]!r})"
                self._once(client, f"{what}: they count as they were")
            if whole:
                receipt = self.server.receive_model(task, update, weight)
            elif kind == self.server.update_kind == "delta":
                receipt = self.server.receive_model(task, task.from_difference(update), weight, difference=True)
            else:
                receipt = self.server.receive(task.client, update, task.version, weight, kind=kind)
        except FastaggError as error:
            self.log(f"fastagg: client {client}: refused: {error}")
            raise
        del self._open[client, number]
        step = f"version {receipt.version}" if receipt.applied else "kept for the next step"
        self.log(f"fastagg: client {client}: update from version {task.version} taken, delay {receipt.delay}: {step}")
        return receipt

    def forget(self, client: str | None = None) -> None:
        """Drop the open tasks of ``client``, or of all: they will not be answered, or not be counted."""
        for name, number in list(self._open):
            if client in (None, name):
                task = self._open.pop((name, number))
                with suppress(FastaggError):
                    self.server.forget(task.client, task.version)
                self.log(f"fastagg: client {name}: task {number} was not answered; it is dropped")

    def model(self) -> dict[str, Any]:
        """The current model, in arrays that will not change."""
        return as_sent(self.server.snapshot(), self.numpy)

    def save(self) -> None:
        """Write the checkpoint, if there is to be one."""
        if self.checkpoint is not None:
            self.server.save(self.checkpoint)

    def _id(self, client: str) -> str | int:
        if self.server.num_clients is None:
            return client
        if self.clients is None or client not in self.clients:
            raise UnknownClient(
                f"client {client!r}: {self.algorithm} needs the names of all clients, got {self.clients}"
            )
        return list(self.clients).index(client)

    def _weight(self, client: str, reply: FLModel) -> Any:
        """What a reply weighs: where it does not say, 1, as in FLARE's own FedAvg."""
        weight = reply.meta.get(self.weight_key)
        if weight is None and self.server.weighting == "samples":
            self._once(client, f"its replies have no {self.weight_key}: each counts as 1")
            return 1.0
        return weight

    def _once(self, client: str, message: str) -> None:
        if (client, message) not in self._told:
            self._told.add((client, message))
            self.log(f"fastagg: client {client}: {message}")


def _is_whole(reply: FLModel) -> bool:
    return bool(reply.params_type == ParamsType.FULL)


def is_bad(message: str) -> bool:
    """Whether a line of :class:`Traffic` tells of something that went wrong."""
    return ": refused: " in message or "it is dropped" in message
