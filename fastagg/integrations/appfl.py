# ruff: noqa: E402 - what is required is checked before it is imported
"""Aggregators that replace APPFL's FedAsync, FedBuff and FedAvg. YAML names them.

APPFL does not report which version an upload was trained from. The aggregator assumes the last model that it sent to
this client (a client has one at a time). If the client's metadata has ``version``, the aggregator checks it.
"""

from __future__ import annotations

import logging
import sys
import threading
import weakref
from collections.abc import Mapping
from pathlib import Path

import torch

import fastagg
from fastagg import _checks
from fastagg._types import Arrays, Foreign, State
from fastagg.errors import ConfigError, FastaggError, UnknownVersion
from fastagg.integrations import as_in, check_names, check_settings, number_of, preset, replies, require, resolved
from fastagg.integrations.evaluation import Window
from fastagg.integrations.goals import of_clients
from fastagg.integrations.models import resume
from fastagg.integrations.session import Book, Session, Settings
from fastagg.server import checkpoint
from fastagg.server.answers import Answer
from fastagg.server.dispatch import Dispatch
from fastagg.storage import raw
from fastagg.storage.pieces import as_tensor

require("appfl", "1.12.0", "appfl")

from appfl.algorithm.aggregator import BaseAggregator
from appfl.algorithm.scheduler import AsyncScheduler, CompassScheduler, QueueScheduler, SyncScheduler
from appfl.misc.utils import create_instance_from_file

_RUN = ("trackers", "best", "max_failures", "max_in_a_row", "max_seconds")  # of a run's settings
_KNOWN = (
    "algorithm", "settings", "num_clients", "client_ids", "model_path", "model_name", "model_kwargs", "checkpoint",
    "save_every", "gradient_based", *_RUN,
)  # fmt: skip
_OURS = {  # what APPFL's own aggregators call it, and what settings call it
    "K": "buffer_size", "alpha": "alpha (FedAsync) or lr", "staleness_fn": "policy", "staleness_fn_kwargs": "a, b",
    "server_learning_rate": "lr", "server_adapt_param": "eps", "server_momentum_param_1": "betas or beta",
    "server_momentum_param_2": "betas", "client_weights_mode": "weighting (equal: uniform, sample_size: samples)",
    "use_secure_agg": "none, since only APPFL's own FedAvg reads masked updates", "optimize_memory": "none",
}  # fmt: skip
_SCHEDULERS = (AsyncScheduler, CompassScheduler, QueueScheduler, SyncScheduler)
_NO_METRICS = ("round", "version")  # numbers in a client's metadata that are none
Key = str | int | tuple[str, int]  # a client, or a task that went out without saying to whom


class Aggregator(BaseAggregator):
    """Any asynchronous fastagg preset for APPFL's ``AsyncScheduler``, and for its virtual-time simulator.

    ``aggregator_kwargs`` in YAML:

    - ``algorithm``: a preset's name (FADAS, FedBuff, FedAsync, ACE, ...); ``settings``: its keyword arguments. Clients
      count equally, as in APPFL, unless ``settings`` has ``weighting: samples``.
    - ``num_clients``: how many clients get the initial model (APPFL does not say which). Or ``client_ids``: names of
      all clients, for rules that keep an update of each (ACE, ACED, CA2FL).
    - ``model_path``, ``model_name``, ``model_kwargs``: where the model is, as in ``model_configs``. APPFL does not pass
      the model to an aggregator from a file. Without it the first upload is the first model and not an update.
    - ``checkpoint``, ``save_every``: a file to continue from, and after how many versions to write it (1). The last
      version is written, too, when the aggregator or the program ends.
    - ``gradient_based``: clients upload the model that they were sent minus the trained model, as with APPFL's
      ``send_gradient: true``. The server then keeps no version for them.
    - ``trackers``, ``best``, ``max_failures``, ``max_in_a_row``, ``max_seconds``: see
      :class:`fastagg.integrations.session.Settings`. Numbers in the clients' metadata are metrics with names
      such as ``clients/pre_val_accuracy``.

    FedAsync mixes in uploaded models directly, so the server keeps no version for it either.

    A refused upload (wrong shapes, NaN, a repeated upload, an unknown base) changes nothing. The log says why, and the
    client gets the current model. When every client is refused too often, ``RunFailed`` ends the run.

    Args:
        model: the model, if APPFL or you pass it.
        aggregator_configs: the mapping above.
        logger: APPFL's logger.

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
        self.config = dict(aggregator_configs or {})
        refused = {
            name: f"a setting of APPFL's own aggregators; in settings it is {ours}" for name, ours in _OURS.items()
        }
        check_names(self.config, _KNOWN, refused)
        self._every = _checks.whole("save_every", self.config.get("save_every", 1), least=1)
        self.settings = {key: _plain(value) for key, value in dict(self.config.get("settings") or {}).items()}
        if self.synchronous:
            self.settings["clients_per_round"] = None
        self.logger = logger or logging.getLogger(__name__)
        self.client_sample_size: dict[str | int, float] = {}
        self._ids = list(self.config["client_ids"]) if self.config.get("client_ids") else None
        self._server: fastagg.Server | None = None
        self.book: Book[Key, str | int | None]  # by client: what it was sent last
        self._begun = False
        self._last: dict[str | int, tuple[int, ...]] = {}  # checksums of each client's last upload, by array
        self._known: set[str | int] = set()  # who was sent a model by name
        self._lock = threading.RLock()
        self._make = preset(self.config.get("algorithm"))
        check_settings(self._make, self.settings)
        chosen = {key: _plain(self.config[key]) for key in _RUN if key in self.config}
        self._run = Settings(**chosen, retry_after=0.0)
        of_clients(self._run.best)
        self._window = Window()
        if model is None and "model_path" in self.config:
            where = self.config["model_path"], self.config.get("model_name")
            model = create_instance_from_file(*where, **dict(self.config.get("model_kwargs") or {}))
        if model is not None:
            self._start(model)

    @property
    def server(self) -> fastagg.Server:
        """The fastagg server.

        Raises:
            ConfigError: there is no model yet.
        """
        if self._server is None:
            raise ConfigError(
                "there is no model yet: name aggregator_kwargs.model_path, or let a client upload one first"
            )
        return self._server

    def get_parameters(self, client_id: str | int | None = None, **_: object) -> dict[str, Arrays]:
        """The model for ``client_id``, or for any client. Do not write to it.

        Raises:
            ConfigError: the caller is one of APPFL's schedulers that this aggregator cannot serve.
        """
        self._check(sys._getframe(1).f_locals.get("self", self))  # APPFL does not say which scheduler there is
        with self._lock:
            if not self._begun:  # the initial model: one call may stand for all of them
                self._begun = True
                if self._ids is not None:
                    for name in self._ids:
                        self._send(name)
                elif self.server.num_clients is None:
                    for n in range(int(self.config.get("num_clients", 0))):
                        self.book.put(("unnamed", n), None, self.server.dispatch(f"unnamed {n}"))
            if client_id is not None:
                return self._send(client_id)
            if any(one.who is None and one.task.version != self.server.version for one in self.book):
                self._say("a model went out again without saying to whom: clients not seen yet need one by name")
                self.book.end(self._unnamed())
            return dict(self.server.parameters())

    def aggregate(self, client_id: str | int = "", local_model: Arrays = None, **meta: object) -> dict[str, Arrays]:
        """Take one client's upload. Return the model that it continues from."""
        if not isinstance(local_model, Mapping):
            self._check(None)
        with self._lock:
            if self._server is None:
                self._start(local_model)
                self._say(f"client {client_id}: its upload is the model to start from")
            else:
                self._take(client_id, local_model, meta)
                self._save()
            return self._send(client_id)

    def _check(self, caller: object) -> None:
        if caller is None or (isinstance(caller, _SCHEDULERS) and not isinstance(caller, self.scheduler)):
            other = "another" if caller is None else type(caller).__name__
            raise ConfigError(
                f"scheduler: {type(self).__name__} works with {self.scheduler.__name__}, not with {other}"
            )

    def _start(self, model: Arrays) -> None:
        server = self._make(model, **{**as_in("appfl", self._make), **resolved(self.settings)})
        self._mixes = isinstance(server.direction, fastagg.Mixing) and not self.settings.get("normalize")
        if self._mixes:  # a step along what the upload is less the model as it is: FedAsync, and nothing to keep
            rest = {key: value for key, value in self.settings.items() if key not in ("alpha", "policy", "a", "b")}
            server = fastagg.Server(model, fastagg.Single(), server.optimizer, server.staleness, **rest)
        path, kept = self.config.get("checkpoint"), State()
        if path is not None and Path(path).exists():
            kept = checkpoint.read(Path(path))
            resume(server, kept)
            self._say(f"going on from {path}, version {server.version}; uploads in flight were of the server before it")
        self._needs_models = not (self._mixes or self.config.get("gradient_based")) or self._run.best is not None
        self._saved, self._server, self.book = [server.version], server, Book(server)
        self.session = Session(server, self._run, say=self.logger.info)
        self.session.load_state_dict(kept.get("session", {}))
        if path is not None:  # APPFL does not say when a run ends
            weakref.finalize(self, _save, server, self.session, Path(path), self._saved)
        self.session.stepped()

    def _send(self, client: str | int) -> dict[str, Arrays]:
        number = number_of(self.server, client, self._ids, "aggregator_kwargs.client_ids")
        self.book.end([client])  # it will not answer that
        task = self.server.dispatch(number)
        self.book.put(client, client, task if self._needs_models else _without_model(task, self.server))
        self._known.add(client)
        return dict(task.views)

    def _take(self, client: str | int, upload: Arrays, meta: Mapping[str, object]) -> None:
        one = self.book.pop(client) or self.book.pop(next(iter(self._unnamed()), client))
        try:
            if upload.get("type") == "masked_update_flat":
                raise ConfigError("a masked update of APPFL's secure aggregation: only its own FedAvg reads those")
            sums = _checksums(upload)
            if sums == self._last.get(client):
                raise UnknownVersion("the same upload came before, and was counted then")
            if one is None:
                raise UnknownVersion("this server never sent it a model: what it trained from is not known")
            answer = self._read(one.task, upload, meta, self.client_sample_size.get(client))
        except FastaggError as error:
            self._refuse(client, self.book.refuse(one, error))
            return
        [outcome] = self.book.take([(one, answer)])
        if isinstance(outcome, FastaggError):
            self._refuse(client, outcome)
            return
        self.session.taken(client, outcome)
        self._last[client], task = sums, one.task
        self._window.add(task, meta)
        if outcome.applied:
            self.session.stepped()
        if ended := self._window.end(len(self._known)):
            newest, means = ended
            model = newest.views if self._run.best is not None else None  # others may have no model
            if found := {name: value for name, value in means.items() if name not in _NO_METRICS}:
                self.session.clients_found(newest.version, found, model)
        self.session.settle()
        step = f"version {outcome.version}" if outcome.applied else "kept for the next step"
        self._say(f"client {client}: update from version {task.version} taken, delay {outcome.delay}: {step}")

    def _unnamed(self) -> list[Key]:
        """The keys of the initial models, for clients that have not said who they are."""
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
        return replies.answer(self.server, task, upload, stated, kind=kind, samples=weight)

    def _turned(self, upload: Arrays) -> dict[str, Arrays]:
        """APPFL's "gradient" as an update: parameters change sign, statistics stay the client's own."""
        trained = {entry.name for entry in self.server.layout.entries if entry.role == "parameter"}
        return {name: -as_tensor(value) if name in trained else value for name, value in upload.items()}

    def _refuse(self, client: str | int, error: FastaggError) -> None:
        self.logger.warning(f"fastagg: client {client}: refused: {error}")
        self.session.refused(client, error)
        self.session.failures.check(self._known)

    def _save(self) -> None:
        path = self.config.get("checkpoint")
        if path is not None and self.server.version >= self._saved[0] + self._every:
            _save(self.server, self.session, Path(path), self._saved)

    def _say(self, message: str) -> None:
        self.logger.info(f"fastagg: {message}")


class SyncAggregator(Aggregator):
    """Any synchronous fastagg preset for APPFL's ``SyncScheduler``, which passes all uploads of a round at once.

    All of them start from the current model, because no client continues before the round ends.
    """

    synchronous, scheduler = True, SyncScheduler

    def get_parameters(self, client_id: str | int | None = None, **_: object) -> dict[str, Arrays]:
        """The current model."""
        self._check(sys._getframe(1).f_locals.get("self", self))
        return dict(self.server.parameters())

    def aggregate(  # type: ignore[override]
        self, local_models: Mapping[str, Arrays], *others: object, **meta: object
    ) -> dict[str, Arrays]:
        """End a round. Return the new global model."""
        if others or not isinstance(local_models, Mapping):
            self._check(None)
        with self._lock:
            if self._server is None:
                self._start(next(iter(local_models.values())))
                self._say("the first upload is the model to start from")
                return dict(self.server.parameters())
            self._last.clear()  # a client is in a round once
            for client in local_models:  # all are from this version, even if a rule steps in the middle of the round
                self._send(client)
            for client, upload in local_models.items():
                self._take(client, upload, {})
            if self.server.close_round() is not None:
                self.session.stepped()
                self.session.settle()
            self._save()
            return dict(self.server.parameters())


def _checksums(upload: Mapping[str, Arrays]) -> tuple[int, ...]:
    """A checksum of all bytes of each array. One array that changes has the same one with a probability of 2^-32."""
    vectors = [as_tensor(value).detach().cpu().reshape(-1).contiguous() for value in upload.values()]
    return tuple(raw.crc32c([vector.view(torch.uint8).numpy()]) for vector in vectors)


def _save(server: fastagg.Server, session: Session, path: Path, saved: list[int]) -> None:
    """Write the checkpoint, if there is a version that it does not have. ``saved`` is the last one that it has."""
    if server.version > saved[0]:
        checkpoint.write({**server.state_dict(copy=False), "session": session.state_dict()}, path)
        saved[0] = server.version


def _without_model(task: Dispatch, server: fastagg.Server) -> Dispatch:
    """A task with version and statistics but without its model, which only the client keeps."""
    flat, *statistics = task.state_dict()["model"]
    return Dispatch.from_state({**task.state_dict(), "model": (flat[:0].clone(), *statistics)}, server.layout)


def _plain(value: Foreign) -> Foreign:
    """YAML's values without OmegaConf's containers."""
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    return list(value) if not isinstance(value, str) and hasattr(value, "__iter__") else value
