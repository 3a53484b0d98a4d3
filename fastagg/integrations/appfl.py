# ruff: noqa: E402 - `require` is called before APPFL is imported
"""Aggregators that replace APPFL's FedAsync, FedBuff and FedAvg. APPFL's schedulers call an aggregator.

APPFL does not report the version from which an upload was trained. The aggregator assumes that the client trained the
last model that it was sent. An upload is refused if the client's metadata has another ``version`` than this model.
"""

from __future__ import annotations

import dataclasses
import logging
import sys
import threading
import weakref
from collections.abc import Mapping
from pathlib import Path

import torch

import fastagg
from fastagg._types import Arrays, Foreign
from fastagg.errors import ConfigError, FastaggError, UnknownVersion
from fastagg.integrations import check_names, number_of, replies, require
from fastagg.integrations.evaluation import Window
from fastagg.integrations.goals import Settings
from fastagg.integrations.run import APPFL, AdapterRun, App, Rule, check_limits
from fastagg.integrations.session import Book, OpenTask
from fastagg.server.answers import Answer
from fastagg.server.dispatch import Dispatch, Receipt
from fastagg.storage import raw
from fastagg.storage.pieces import as_tensor

require("appfl", "1.12.0", "appfl")

from appfl.algorithm.aggregator import BaseAggregator
from appfl.algorithm.scheduler import AsyncScheduler, CompassScheduler, QueueScheduler, SyncScheduler
from appfl.misc.utils import create_instance_from_file

_REFUSED = {  # settings of APPFL's aggregators or of fastagg's runs that would have no effect here, with the reasons
    "K": "a setting of APPFL's own aggregators; in settings it is buffer_size",
    "use_secure_agg": "only APPFL's own FedAvg reads masked updates",
    "stop": "APPFL sets the number of updates of a run, num_global_epochs",
    "evaluate_every": "APPFL's clients evaluate, and the server does not",
    "evaluate_aside": "APPFL's clients evaluate, and the server does not",
    "on_version": "not in a configuration file; subclass Aggregator",
    "retry_after": "APPFL's schedulers give a client its next task at once",
}
_RUN = [field.name for field in dataclasses.fields(Settings) if field.name not in _REFUSED]
_KNOWN = (
    "algorithm", "settings", "num_clients", "client_ids", "model_path", "model_name", "model_kwargs", "checkpoint",
    "save_every", "gradient_based", *_RUN,
)  # fmt: skip
_SCHEDULERS = (AsyncScheduler, CompassScheduler, QueueScheduler, SyncScheduler)
_NO_METRICS = ("round", "version")  # names of numbers in a client's metadata that are not metrics
Key = str | int | tuple[str, int]  # a client's name, or ("unnamed", number) if APPFL did not name the client


class Aggregator(BaseAggregator):
    """Any asynchronous fastagg preset for APPFL's ``AsyncScheduler``, and for its virtual-time simulator.

    ``aggregator_kwargs`` in YAML:

    - ``algorithm``: a preset's name (FADAS, FedBuff, FedAsync, ACE, ...). ``settings``: the preset's keyword arguments.
      Clients count equally, as in APPFL, unless ``settings`` has ``weighting: samples``.
    - ``num_clients``: how many clients get the initial model. APPFL does not name these clients. The default is the
      scheduler's ``num_clients``.
    - ``client_ids``: the names of all clients, needed by rules that keep an update of each client (ACE, ACED, CA2FL).
    - ``model_path``, ``model_name``, ``model_kwargs``: where the model is, as in ``model_configs``. APPFL passes no
      model to an aggregator that it loads from a file. Without a model the first upload is the model, not an update.
    - ``checkpoint``, ``save_every``: a file to continue from, and the number of versions between two writes (default:
      1). The last version is also written when the aggregator or the program ends.
    - ``gradient_based``: whether clients upload the model that they were sent minus the trained model, as with APPFL's
      ``send_gradient: true``. The aggregator then keeps older models only for ``best``.
    - ``trackers``, ``best``, ``max_failures``, ``max_in_a_row``, ``max_seconds``: see
      :class:`fastagg.integrations.goals.Settings`. Numbers in the clients' metadata are metrics with names
      such as ``clients/pre_val_accuracy``.

    A refused upload changes nothing. The log says why, and the client gets the current model. If each client was
    refused too often, ``RunFailed`` ends the run. APPFL passes ``model``, ``aggregator_configs`` and ``logger``.

    Raises:
        ConfigError: a setting is refused.
    """

    synchronous, scheduler = False, AsyncScheduler

    def __init__(
        self,
        model: torch.nn.Module | None = None,
        aggregator_configs: Mapping[str, Foreign] | None = None,
        logger: logging.Logger | None = None,
    ) -> None:
        self.config = {key: _plain(value) for key, value in dict(aggregator_configs or {}).items()}
        check_names(self.config, _KNOWN, _REFUSED)
        check_limits(save_every=self.config.get("save_every", 1), num_clients=self.config.get("num_clients"))
        self.logger = logger or logging.getLogger(__name__)
        self.client_sample_size: dict[str | int, float] = {}
        self._ids = list(self.config["client_ids"]) if self.config.get("client_ids") else None
        self._server: fastagg.Server | None = None
        self.book: Book[Key, str | int | None]  # the open tasks: the last task of each client
        self._begun, self._is_unclear, self._is_counted, self._unnamed_count = False, False, False, 0
        self._last: dict[str | int, tuple[int, ...]] = {}  # by client: the checksums of the last upload's arrays
        self._lock = threading.RLock()
        rule = Rule(APPFL, self.config.get("algorithm"), self.config.get("settings"), rounds=self.synchronous)
        run = Settings(**{key: self.config[key] for key in _RUN if key in self.config}, retry_after=0.0)
        path, every = self.config.get("checkpoint"), self.config.get("save_every", 1)
        # The last version is saved when the aggregator is garbage-collected, so the run must not refer to it.
        self.run = AdapterRun(rule, run, path, every, log=self.logger.info, warn=self.logger.warning)
        folder = Path(getattr(self.logger, "log_filepath", "-")).parent  # the folder of APPFL's log, or the current one
        self.run.place(App("APPFL server", "", folder))
        if model is None and "model_path" in self.config:
            named = self.config["model_path"], self.config.get("model_name")
            model = create_instance_from_file(*named, **(self.config.get("model_kwargs") or {}))
        if model is not None:
            self._start(model)

    @property
    def server(self) -> fastagg.Server:
        """The fastagg server. Raises ConfigError if there is no server yet, because there is no model."""
        if self._server is None:
            raise ConfigError(
                "there is no model yet: name aggregator_kwargs.model_path, or let a client upload one first"
            )
        return self._server

    def get_parameters(self, client_id: str | int | None = None, **_: object) -> dict[str, Arrays]:
        """Return the model for ``client_id``, or for a client without a name. Do not write to the model.

        Raises:
            ConfigError: the caller is one of APPFL's schedulers that this aggregator cannot serve.
        """
        scheduler = sys._getframe(1).f_locals.get("self", self)  # the caller is APPFL's scheduler
        self._check(scheduler)
        with self._lock:
            begins, self._begun = not self._begun, True
            if begins and self._ids is not None:
                for name in self._ids:
                    self._send(name)
            elif begins and self.server.num_clients is None:  # one call may fetch the initial model for all clients
                total = getattr(scheduler, "scheduler_configs", {}).get("num_clients")
                number = int(self.config.get("num_clients") or total or 0)
                self._is_counted = number > 0
                self._send_unnamed(number or int(client_id is None))
            client = _asker() if client_id is None and not begins else client_id
            if client is not None:
                return self._send(client)
            if not begins and self.server.num_clients is None:
                self._send_unnamed(1)
            return dict(self.server.parameters())

    def _send_unnamed(self, count: int) -> None:
        """Note that ``count`` clients without a name got the model. New names are later taken for these clients, unless
        clients without a name have got different versions."""
        if any(task.holder is None and task.task.version != self.server.version for task in self.book):
            self.run.log("fastagg: a model went out again without saying to whom: new clients need one by name")
            self.book.end(self._unnamed())
            self._is_unclear = True
        for _ in range(0 if self._is_unclear else count):
            self._unnamed_count += 1
            self._put(("unnamed", self._unnamed_count), None, f"unnamed {self._unnamed_count}")

    def aggregate(self, client_id: str | int = "", local_model: Arrays = None, **meta: object) -> dict[str, Arrays]:
        """Take one client's upload. Return the model from which the client continues."""
        if not isinstance(local_model, Mapping):
            self._check(None)
        with self._lock:
            if self._server is None:
                self._start(local_model)
                self.run.log(f"fastagg: client {client_id}: its upload is the model to start from")
            else:
                self._take(client_id, local_model, meta)
                if self.run.is_due:
                    self.run.save()
            return self._send(client_id)

    def _check(self, caller: object) -> None:
        if caller is None or (isinstance(caller, _SCHEDULERS) and not isinstance(caller, self.scheduler)):
            name = "another" if caller is None else type(caller).__name__
            raise ConfigError(f"scheduler: {type(self).__name__} works with {self.scheduler.__name__}, not with {name}")

    def _start(self, model: Arrays) -> None:
        run, settings = self.run, self.run.rule.settings
        plain = run.rule.build(model)
        self._mixes = isinstance(plain.direction, fastagg.Mixing) and not settings.get("normalize")
        # FedAsync mixes by a step along the upload minus the current model. So older models need not be kept.
        if self._mixes:
            rest = {key: value for key, value in settings.items() if key not in ("alpha", "policy", "a", "b")}
            plain = fastagg.Server(model, fastagg.Single(), plain.optimizer, plain.staleness, **rest)
        run.begin(model, kinds=("clients",), server=plain)
        self._needs_models = not (self._mixes or self.config.get("gradient_based")) or run.settings.best is not None
        self._server, self.session, self.book = run.server, run.session, run.session.book
        self.session.window = Window()
        weakref.finalize(self, run.save_last)  # APPFL does not tell an aggregator when a run ends
        self.session.stepped()

    def _send(self, client: str | int) -> dict[str, Arrays]:
        number = number_of(self.server, client, self._ids, "aggregator_kwargs.client_ids")
        self.book.end([client])  # the client will not answer its last task
        task = self._put(client, client, number)
        # Once all clients that got the initial model without a name are known, the tasks without a name are not needed.
        if self._is_counted and len(self.book.known) >= self._unnamed_count:
            self.book.end(self._unnamed())
        return dict(task.views)

    def _put(self, key: Key, holder: str | int | None, client: str | int) -> Dispatch:
        task = self.server.dispatch(client)
        self.book.put(key, holder, task if self._needs_models else _without_model(task, self.server))
        return task

    def _take(self, client: str | int, upload: Arrays, meta: Mapping[str, object]) -> None:
        session, metrics = self.session, {name: value for name, value in meta.items() if name not in _NO_METRICS}
        task = self.book.pop(client) or self.book.pop(next(iter(self._unnamed()), client))
        try:
            if upload.get("type") == "masked_update_flat":
                raise ConfigError("a masked update of APPFL's secure aggregation: only its own FedAvg reads those")
            sums = _checksums(upload)
            if sums == self._last.get(client):
                raise UnknownVersion("the same upload came before, and was counted then")
            if task is None:
                raise UnknownVersion("this server never sent it a model: what it trained from is not known")
            answer = self._read(task.task, upload, meta, self.client_sample_size.get(client))
        except FastaggError as error:
            session.refuse(client, task, error)
        else:
            [outcome] = session.take([(OpenTask(client, task.task), answer, metrics)])
            if isinstance(outcome, Receipt):
                self._last[client] = sums
                if outcome.applied:
                    session.stepped()
                session.end_window(len(self.book.known))
                session.settle()
        session.failures.check(self.book.known)

    def _unnamed(self) -> list[Key]:
        """Return the keys of the tasks of clients without a name."""
        return [key for key in self.book.keys_of() if isinstance(key, tuple)]

    def _read(self, task: Dispatch, upload: Arrays, meta: Mapping[str, object], weight: float | None) -> Answer:
        stated = {"fastagg-version": meta["version"]} if "version" in meta else {}
        kind = "model"
        if meta.get("fastagg_kind") == "encoded":
            if self._mixes:
                raise ConfigError("an encoded update: FedAsync mixes whole models, as APPFL's does")
            kind = "encoded"
        elif self.server.update_kind == "gradient":
            kind = "gradient"
        elif self.config.get("gradient_based"):
            upload, kind = self._turned(upload), "delta"
        elif self._mixes:
            upload, kind = self.server.layout.difference(upload, self.server.flat), "delta"
        read = replies.answer(self.server, task, upload, stated, kind=kind, samples=weight)
        return read._replace(still=self.synchronous)  # `still` saves the memory of a second sum

    def _turned(self, upload: Arrays) -> dict[str, Arrays]:
        """Return APPFL's "gradient" as a delta: negate the parameters, and keep the client's running statistics."""
        trained = {entry.name for entry in self.server.layout.entries if entry.role == "parameter"}
        return {name: -as_tensor(value) if name in trained else value for name, value in upload.items()}


class SyncAggregator(Aggregator):
    """Any synchronous fastagg preset for APPFL's ``SyncScheduler``, which passes all uploads of a round in one call.

    All uploads were trained from the current model, because no client continues before the round ends.
    """

    synchronous, scheduler = True, SyncScheduler

    def get_parameters(self, client_id: str | int | None = None, **_: object) -> dict[str, Arrays]:
        """Return the current model."""
        self._check(sys._getframe(1).f_locals.get("self", self))
        return dict(self.server.parameters())

    def aggregate(  # type: ignore[override]
        self, local_models: Mapping[str, Arrays], *others: object, **meta: object
    ) -> dict[str, Arrays]:
        """Take all uploads of a round, and end the round. Return the global model."""
        if others or not isinstance(local_models, Mapping):
            self._check(None)
        with self._lock:
            if self._server is None:
                self._start(next(iter(local_models.values())))
                self.run.log("fastagg: the first upload is the model to start from")
                return dict(self.server.parameters())
            self._last.clear()  # no need to look for repeated uploads: a round has one upload of each client
            for client in local_models:  # first open all tasks, because taking an upload may change the model
                self._send(client)
            for client, upload in local_models.items():
                self._take(client, upload, {})
            if self.session.close_round():
                self.session.stepped()
                self.session.settle()
            if self.run.is_due:
                self.run.save()
            return dict(self.server.parameters())


def _asker() -> str | int | None:
    """Return the client whose request APPFL's communicator serves, from the communicator's local variables. The
    communicator does not pass the client's name to the aggregator."""
    frame = sys._getframe(2)
    while frame.f_back is not None and not frame.f_globals.get("__name__", "").startswith("appfl.comm."):
        frame = frame.f_back
    client: str | int | None = frame.f_locals.get("client_id") if frame.f_back is not None else None
    return client


def _checksums(upload: Mapping[str, Arrays]) -> tuple[int, ...]:
    """Return a CRC-32C of each array's bytes. A changed array has the same checksum with a probability of 2^-32."""
    vectors = [as_tensor(value).detach().cpu().reshape(-1).contiguous() for value in upload.values()]
    return tuple(raw.crc32c([vector.view(torch.uint8).numpy()]) for vector in vectors)


def _without_model(task: Dispatch, server: fastagg.Server) -> Dispatch:
    """Return a copy of a task without the model's parameters, so that the server need not keep them."""
    flat, *statistics = task.state_dict()["model"]
    return Dispatch.from_state({**task.state_dict(), "model": (flat[:0].clone(), *statistics)}, server.layout)


def _plain(value: Foreign) -> Foreign:
    """Return YAML's values as plain Python objects instead of OmegaConf's containers."""
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    return list(value) if not isinstance(value, str) and hasattr(value, "__iter__") else value
