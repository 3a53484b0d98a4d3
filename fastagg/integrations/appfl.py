# ruff: noqa: E402 - what is required is checked before it is imported
"""APPFL on fastagg: aggregators to stand where its own FedAsync, FedBuff and FedAvg stand, named in YAML.

APPFL does not say which version an upload was trained from. It is the last model that this server sent to that client
(a client has one at a time); a client that sends ``version`` along with its metadata is taken at its word.
"""

from __future__ import annotations

import logging
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import fastagg
from fastagg.errors import ConfigError, FastaggError, UnknownClient, UnknownVersion
from fastagg.integrations import preset, require
from fastagg.serving import checkpoint
from fastagg.serving.dispatch import Dispatch
from fastagg.storage.pieces import as_tensor

require("appfl", "1.12.0", "appfl")

from appfl.algorithm.aggregator import BaseAggregator
from appfl.misc.utils import create_instance_from_file

_SAMPLED = 64  # elements of each array that tell one upload from another


class Aggregator(BaseAggregator):
    """Any asynchronous fastagg preset for APPFL's ``AsyncScheduler``, and for its virtual-time simulator.

    ``aggregator_kwargs`` in YAML:

    - ``algorithm``: a preset's name (FADAS, FedBuff, FedAsync, ACE, ...); ``settings``: its keyword arguments.
    - ``num_clients``: how many get the initial model, which APPFL hands out without saying to whom; or ``client_ids``,
      all of them by name, for rules that keep something of each (ACE, ACED, CA2FL).
    - ``model_path``, ``model_name``, ``model_kwargs``: where the model is, as in ``model_configs``; APPFL does not hand
      it to an aggregator from a file. Without it the first upload is the first model, and is no update.
    - ``checkpoint``, ``save_every``: a file to go on from, written every so many versions (10).

    An upload that is refused (shapes, NaN, the same one again, no known base) changes nothing; the log says why, and
    the client is sent the current model.

    Args:
        model: the model, where APPFL or you hand it over.
        aggregator_configs: the mapping above.
        logger: APPFL's.

    Raises:
        ConfigError: a setting is refused.
    """

    synchronous = False

    def __init__(
        self, model: torch.nn.Module | None = None, aggregator_configs: Any = None, logger: Any = None
    ) -> None:
        self.config = dict(aggregator_configs or {})
        self.settings = {key: _plain(value) for key, value in dict(self.config.get("settings") or {}).items()}
        if self.synchronous:
            self.settings["clients_per_round"] = None
        self.logger = logger or logging.getLogger(__name__)
        self.client_sample_size: dict[str | int, float] = {}
        self._ids = list(self.config["client_ids"]) if self.config.get("client_ids") else None
        self._server: fastagg.Server | None = None
        self._tasks: dict[str | int, Dispatch] = {}  # what each client was sent last
        self._unnamed: list[Dispatch] = []  # the initial model, for clients that have not said who they are
        self._begun = False
        self._last: dict[str | int, Tensor] = {}  # a sample of each client's last upload
        self._lock = threading.RLock()
        self._make = preset(self.config.get("algorithm"))
        if model is None and "model_path" in self.config:
            where = self.config["model_path"], self.config.get("model_name")
            model = create_instance_from_file(*where, **dict(self.config.get("model_kwargs") or {}))
        if model is not None:
            self._start(model)

    @property
    def server(self) -> fastagg.Server:
        """The server behind it.

        Raises:
            ConfigError: there is no model yet.
        """
        if self._server is None:
            raise ConfigError(
                "there is no model yet: name aggregator_kwargs.model_path, or let a client upload one first"
            )
        return self._server

    def get_parameters(self, client_id: str | int | None = None, **_: Any) -> dict[str, Tensor]:
        """The model for ``client_id``, or for nobody in particular; read it, do not write to it."""
        with self._lock:
            if not self._begun:  # the initial model: one call may stand for all of them
                self._begun = True
                if self._ids is not None:
                    for name in self._ids:
                        self._send(name)
                elif self.server.num_clients is None:
                    count = int(self.config.get("num_clients", 0))
                    self._unnamed = [self.server.dispatch(f"unnamed {n}") for n in range(count)]
            if client_id is not None:
                return self._send(client_id)
            if self._unnamed and self._unnamed[0].version != self.server.version:
                self._say("a model went out again without saying to whom: clients not seen yet need one by name")
                self._unnamed = []
            return dict(self.server.snapshot())

    def aggregate(self, client_id: Any, local_model: Any = None, **meta: Any) -> dict[str, Tensor]:
        """Take one client's upload; the model it goes on from."""
        with self._lock:
            if self._server is None:
                self._start(local_model)
                self._say(f"client {client_id}: its upload is the model to start from")
            else:
                self._take(client_id, local_model, meta)
                self._save()
            return self._send(client_id)

    def _start(self, model: Any) -> None:
        self._server = server = self._make(model, **self.settings)
        path = self.config.get("checkpoint")
        if path is not None and Path(path).exists():
            server.load_state_dict(checkpoint.read(Path(path)))
            self._say(f"going on from {path}, version {server.version}; uploads in flight were of the server before it")
        self._saved = server.version

    def _send(self, client: str | int) -> dict[str, Tensor]:
        number = self._id(client)
        if client in self._tasks:
            with suppress(FastaggError):  # what it was sent before, it will not answer
                self.server.forget(number, self._tasks[client].version)
        else:
            with suppress(UnknownClient):  # from before a restart
                self.server.forget(number)
        self._tasks[client] = task = self.server.dispatch(number)
        return dict(task.views)

    def _take(self, client: str | int, upload: Any, meta: dict[str, Any]) -> None:
        try:
            task = self._tasks.get(client) or (self._unnamed.pop() if self._unnamed else None)
            if task is None:
                raise UnknownVersion("this server never sent it a model: what it trained from is not known")
            if meta.get("version", task.version) != task.version:
                raise UnknownVersion(f"trained from version {meta['version']}, but it was last sent {task.version}")
            weight = self.client_sample_size.get(client)
            sample = _sample(upload)
            if client in self._last and torch.equal(sample, self._last[client]):
                raise UnknownVersion("the same upload came before, and was counted then")
            if self.server.update_kind == "gradient":
                receipt = self.server.receive(task.client, upload, task.version, weight)
            else:
                receipt = self.server.receive_model(task, upload, weight)
        except FastaggError as error:
            self.logger.warning(f"fastagg: client {client}: refused: {error}")
            return
        self._last[client] = sample
        self._tasks.pop(client, None)
        step = f"version {receipt.version}" if receipt.applied else "kept for the next step"
        self._say(f"client {client}: update from version {task.version} taken, delay {receipt.delay}: {step}")

    def _save(self) -> None:
        path, every = self.config.get("checkpoint"), int(self.config.get("save_every", 10))
        if path is not None and self.server.version >= self._saved + every:
            self.server.save(path)
            self._saved = self.server.version

    def _id(self, client: str | int) -> str | int:
        if self.server.num_clients is None:
            return client
        if self._ids is None or client not in self._ids:
            raise UnknownClient(f"client {client!r}: {self.config['algorithm']} needs aggregator_kwargs.client_ids")
        return self._ids.index(client)

    def _say(self, message: str) -> None:
        self.logger.info(f"fastagg: {message}")


class SyncAggregator(Aggregator):
    """Any synchronous fastagg preset for APPFL's ``SyncScheduler``, which hands a round's uploads over together.

    All of them were trained from the current model: the scheduler lets nobody go on before the round has ended.
    """

    synchronous = True

    def get_parameters(self, client_id: str | int | None = None, **_: Any) -> dict[str, Tensor]:
        """The current model."""
        return dict(self.server.snapshot())

    def aggregate(self, local_models: Any, **meta: Any) -> dict[str, Tensor]:  # type: ignore[override]
        """End a round: the new global model."""
        with self._lock:
            if self._server is None:
                self._start(next(iter(local_models.values())))
                self._say("the first upload is the model to start from")
                return dict(self.server.snapshot())
            self._last.clear()  # a client is in a round once
            for client, upload in local_models.items():
                self._send(client)
                self._take(client, upload, {})
            self.server.close_round()
            self._save()
            return dict(self.server.snapshot())


def _sample(upload: Any) -> Tensor:
    """Some numbers from all over an upload."""
    vectors = [as_tensor(value).detach().reshape(-1) for value in upload.values()]
    return torch.cat([vector[:: max(1, vector.numel() // _SAMPLED)].double() for vector in vectors])


def _plain(value: Any) -> Any:
    return list(value) if not isinstance(value, (str, dict)) and hasattr(value, "__iter__") else value
