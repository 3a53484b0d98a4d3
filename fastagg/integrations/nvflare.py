"""NVIDIA FLARE on fastagg: an aggregator for its FedAvg recipe, and asynchronous training that FLARE itself lacks.

Models travel as ``FLModel``. ``current_round`` is the base version of an update: FLARE's executors put the task's own
number into the reply, so that it never has to be guessed. Replies may be whole models (``ParamsType.FULL``) or
differences (``ParamsType.DIFF``), in NumPy or torch.
"""

# ruff: noqa: E402 - what is required is checked before it is imported
from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch

import fastagg
from fastagg import checkpoint
from fastagg.dispatch import Dispatch, Receipt
from fastagg.errors import ConfigError, FastaggError, UnknownClient, UnknownVersion
from fastagg.integrations import preset, require
from fastagg.pieces import as_tensor

require("nvflare", "2.9.0", "nvflare")

from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.fl_constant import FLMetaKey
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.abstract.model import make_model_learnable
from nvflare.app_common.aggregators.model_aggregator import ModelAggregator
from nvflare.app_common.aggregators.weighted_aggregation_helper import (
    WeightedAggregationHelper,
    filter_aggregatable_metrics,
)
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.app_event_type import AppEventType
from nvflare.app_common.utils.fl_model_utils import FLModelUtils
from nvflare.app_common.workflows.model_controller import ModelController
from nvflare.collab import collab
from nvflare.collab.api.exceptions import CollabCallError
from nvflare.edge.assessors.model_manager import ModelManager

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
        self._lock = threading.Lock()

    def start(self, params: dict[str, Any]) -> None:
        """Build the server from the first global model, then go on from the checkpoint; only the first call counts.

        Raises:
            FastaggError: a setting, the model or the checkpoint is refused.
        """
        with self._lock:
            if hasattr(self, "server"):
                return
            self.numpy = isinstance(next(iter(params.values())), np.ndarray)
            fresh = self._make(params, **self.settings)
            if self.checkpoint is not None and self.checkpoint.exists():
                fresh.load_state_dict(checkpoint.read(self.checkpoint))
                self.log(f"fastagg: going on from {self.checkpoint}, version {fresh.version}")
            self.server = fresh

    def same_model(self, params: dict[str, Any]) -> bool:
        """Whether ``params`` are the server's model, to the bit."""
        mine = self.server.snapshot()
        return all(torch.equal(as_tensor(params[name]), value.cpu()) for name, value in mine.items())

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
        return FLModel(ParamsType.FULL, self._outgoing(task.params), current_round=number, meta=meta)

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
            kind, weight, update = reply.meta.get(KIND, "delta"), reply.meta.get(self.weight_key), reply.params
            if reply.params_type == ParamsType.FULL:
                receipt = self.server.receive_model(task, update, weight)
            else:
                update = task.from_difference(update) if kind == "delta" else update
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
        return self._outgoing(self.server.snapshot())

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

    def _outgoing(self, params: dict[str, torch.Tensor]) -> dict[str, Any]:
        if not self.numpy:
            return dict(params)
        arrays = {name: value.cpu().numpy() for name, value in params.items()}
        for array in arrays.values():
            array.flags.writeable = False  # it is the server's own memory
        return arrays


class Aggregator(ModelAggregator):
    """FedAvg, FedAdam, FedYogi, FedAMS and the other synchronous presets for FLARE's ``FedAvgRecipe(aggregator=...)``.

    Replies are folded into one sum as they come. A round takes whoever answers: its end is FLARE's to call. It also
    works in FLARE's ``ScatterAndGather``.

    Args:
        algorithm: a synchronous preset's name.
        settings: its keyword arguments, as plain data; ``clients_per_round`` is FLARE's.
        checkpoint: a file on the server that its state (moments, version) is saved to after each round, and goes on
            from. FLARE must then be given that state's model to start from.
        weight_key: what weighs a reply in its ``meta``, for ``weighting="samples"``.

    Raises:
        ConfigError: the preset is unknown, or not synchronous.
    """

    def __init__(
        self,
        algorithm: str = "FedAvg",
        settings: dict[str, Any] | None = None,
        checkpoint: str | None = None,
        weight_key: str = FLMetaKey.NUM_STEPS_CURRENT_ROUND,
    ) -> None:
        super().__init__()
        self.algorithm, self.settings, self.checkpoint, self.weight_key = algorithm, settings, checkpoint, weight_key
        open_end = {**(settings or {}), "clients_per_round": None}
        self._traffic = Traffic(algorithm, open_end, checkpoint, None, weight_key, self._say)
        try:
            preset(algorithm)(torch.zeros(1), **open_end)
        except TypeError as error:
            raise ConfigError(f"algorithm: expected a synchronous preset and its settings: {error}") from None
        self._metrics = WeightedAggregationHelper()

    def handle_event(self, event_type: str, fl_ctx: Any) -> None:
        """Follow FLARE's run; before a task is sent, note which model its client gets."""
        super().handle_event(event_type, fl_ctx)
        if event_type == AppEventType.BEFORE_TRAIN_TASK:
            self.fl_ctx = fl_ctx
            shareable = fl_ctx.get_prop(AppConstants.TRAIN_SHAREABLE)
            self.sent(fl_ctx.get_peer_context().get_identity_name(), FLModelUtils.from_shareable(shareable))

    def sent(self, client: str, model: FLModel) -> None:
        """FLARE sends ``model`` to ``client``; replies are measured against it."""
        first = not hasattr(self._traffic, "server")
        self._traffic.start(model.params)
        if first and not self._traffic.same_model(model.params):
            raise ConfigError(f"{self.checkpoint}: its model is not the one FLARE starts from; give FLARE that model")
        self._traffic.send(client, model.current_round)

    def accept_model(self, model: FLModel) -> None:
        """Fold one reply in; raises a named error, and changes nothing, if it is refused."""
        client = model.meta.get("client_name") or model.meta.get(FLMetaKey.SITE_NAME)
        self._traffic.take(client, model)
        if model.metrics:
            weight = model.meta.get(self.weight_key, 1.0)
            self._metrics.add(filter_aggregatable_metrics(model.metrics), weight, client, model.current_round)

    def aggregate_model(self) -> FLModel:
        """End the round: the new global model, whole."""
        traffic = self._traffic
        traffic.server.close_round()
        traffic.forget()
        traffic.save()
        metrics = self._metrics.get_result() or None
        self.reset_stats()
        return FLModel(ParamsType.FULL, traffic.model(), metrics=metrics)

    def reset_stats(self) -> None:
        """Begin a round."""
        self._metrics = WeightedAggregationHelper()

    def accept(self, shareable: Any, fl_ctx: Any) -> bool:
        """ScatterAndGather's way in: whether the reply was taken."""
        try:
            return super().accept(shareable, fl_ctx)
        except FastaggError:
            return False  # the log has it

    def _say(self, message: str) -> None:
        self.warning(message) if _is_bad(message) else self.info(message)


class AsyncController(ModelController):
    """Asynchronous training in FLARE: whoever is idle gets the newest model, and every reply is folded in as it comes.

    Clients run FLARE's ordinary executors and scripts. One that fails, vanishes beyond ``timeout``, or sends what is
    refused gets a new task when it is there again; the others never wait for it.

    Args:
        algorithm: a preset's name.
        settings: its keyword arguments, as plain data.
        versions: the run ends when the model has stepped so often, restarts included.
        timeout: seconds after which a task is given up; what then still comes is not counted. 0: never.
        checkpoint: a file on the server that it goes on from, saved every ``save_every`` versions and at the end.
        save_every: versions between checkpoints.
        clients: names of all clients, for rules that keep something of each of them (ACE, ACED, CA2FL).
        weight_key: what weighs a reply in its ``meta``, for ``weighting="samples"``.
        task_name: what clients' executors know the task as.
        persistor_id: FLARE's component that has the first model and keeps the last.
    """

    def __init__(
        self,
        algorithm: str = "FADAS",
        settings: dict[str, Any] | None = None,
        versions: int = 100,
        timeout: int = 0,
        checkpoint: str | None = None,
        save_every: int = 10,
        clients: list[str] | None = None,
        weight_key: str = FLMetaKey.NUM_STEPS_CURRENT_ROUND,
        task_name: str = AppConstants.TASK_TRAIN,
        persistor_id: str = AppConstants.DEFAULT_PERSISTOR_ID,
    ) -> None:
        super().__init__(persistor_id=persistor_id, ignore_result_error=True, task_check_period=0.05)
        self.algorithm, self.settings, self.versions, self.timeout = algorithm, settings, versions, timeout
        self.checkpoint, self.save_every, self.clients = checkpoint, save_every, clients
        self.weight_key, self.task_name, self.persistor_id = weight_key, task_name, persistor_id
        self._traffic = Traffic(algorithm, settings, checkpoint, clients, weight_key, self._say)
        self._busy: dict[str, float] = {}  # client: when its task is given up
        self._came = threading.Event()
        self._taking = threading.Lock()

    def run(self) -> None:
        """FLARE's way in."""
        traffic = self._traffic
        traffic.start(self.load_model().params)
        saved = traffic.server.version
        while traffic.server.version < self.versions and not self.abort_signal.triggered:
            self._give_up()
            for client in self.engine.get_clients():
                if client.name not in self._busy:
                    self._busy[client.name] = time.monotonic() + (self.timeout or float("inf"))
                    task = traffic.send(client.name)
                    self.send_model(self.task_name, task, [client.name], timeout=self.timeout, callback=self._take)
            self._came.wait(self._task_check_period)
            self._came.clear()
            if traffic.server.version >= saved + self.save_every:
                traffic.save()
                saved = traffic.server.version
        with self._taking:  # the reply of the last step is still being written down
            traffic.forget()
        self.cancel_all_tasks(fl_ctx=self.fl_ctx)
        traffic.save()
        self.save_model(FLModel(ParamsType.FULL, traffic.model(), current_round=traffic.server.version))

    def _give_up(self) -> None:
        late = [client for client, until in self._busy.items() if time.monotonic() > until]
        for client in late:
            self._traffic.forget(client)
            self._busy.pop(client, None)

    def _take(self, reply: FLModel) -> bool:
        with self._taking:
            if self._traffic.server.version >= self.versions:
                return False
            self._traffic.take(reply.meta["client_name"], reply)
            return True

    def _process_result(self, client_task: Any, fl_ctx: Any) -> None:
        client = client_task.client.name
        super()._process_result(client_task, fl_ctx)
        self._traffic.forget(client)  # nothing, unless it failed or was refused
        self._busy.pop(client, None)
        self._came.set()

    def _say(self, message: str) -> None:
        self.warning(message) if _is_bad(message) else self.info(message)


class AsyncCollab:
    """The same as a server object for FLARE's Collab API; clients publish ``train(task: FLModel) -> FLModel``.

    Args:
        model: an nn.Module (FLARE makes it from its class and its constructor's arguments).
        algorithm, settings, versions, checkpoint, save_every, clients, weight_key: as in :class:`AsyncController`.
        timeout: seconds after which a call is given up.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        algorithm: str = "FADAS",
        settings: dict[str, Any] | None = None,
        versions: int = 100,
        timeout: float = 3600.0,
        checkpoint: str | None = None,
        save_every: int = 10,
        clients: list[str] | None = None,
        weight_key: str = FLMetaKey.NUM_STEPS_CURRENT_ROUND,
    ) -> None:
        self.model, self.algorithm, self.settings, self.versions = model, algorithm, settings, versions
        self.timeout, self.checkpoint, self.save_every = timeout, checkpoint, save_every
        self.clients, self.weight_key = clients, weight_key
        self._traffic = Traffic(algorithm, settings, checkpoint, clients, weight_key)

    @collab.main
    def run(self) -> dict[str, Any]:
        """FLARE's way in. Returns the final model."""
        traffic, sites = self._traffic, list(collab.clients)
        traffic.start(self.model.state_dict())
        with ThreadPoolExecutor(len(sites)) as pool:
            for done in [pool.submit(self._drive, site) for site in sites]:
                done.result()
        traffic.save()
        self.model.load_state_dict(traffic.model())
        return traffic.model()

    def _drive(self, site: Any) -> None:
        """Keep one client busy."""
        traffic = self._traffic
        while traffic.server.version < self.versions:
            task = traffic.send(site.name)
            try:
                reply = site(timeout=self.timeout).train(task)
                if reply.current_round is None:
                    reply.current_round = task.current_round  # it is the answer to this very call
                if traffic.server.version < self.versions and traffic.take(site.name, reply).applied:
                    self._save()
            except (CollabCallError, FastaggError) as error:
                traffic.log(f"fastagg: client {site.name}: {error}")
                time.sleep(1.0)  # it may be away for a while
            traffic.forget(site.name)

    def _save(self) -> None:
        if self._traffic.server.version % self.save_every == 0:
            self._traffic.save()


class EdgeModelManager(ModelManager):
    """The model of FLARE's edge workflow (``ModelUpdateAssessor``'s ``model_manager_id``), where relays sum up devices.

    A relay's report is one update: the mean of its devices' differences, with their number as its weight. A device
    counts once for a version. Versions are FLARE's own: 1 is the first model.

    Args:
        num_updates_for_model: devices' updates in a step (the buffer's size, for rules that have one).
        algorithm: an asynchronous preset's name, FedBuff or FADAS.
        settings: its keyword arguments, as plain data; ``weighting`` is by number of devices.
        max_model_history: updates of versions so much older than the current one are dropped; None for none.
    """

    def __init__(
        self,
        num_updates_for_model: int,
        algorithm: str = "FedBuff",
        settings: dict[str, Any] | None = None,
        max_model_history: int | None = None,
    ) -> None:
        super().__init__()
        self.num_updates_for_model, self.algorithm, self.settings = num_updates_for_model, algorithm, settings
        self.max_model_history = max_model_history
        self._make = preset(algorithm)
        self._counted: dict[int, set[str]] = {}  # by version: devices that have answered
        self._tasks: dict[int, Dispatch] = {}
        self._waiting = 0

    def initialize_model(self, model: Any, fl_ctx: Any) -> None:
        """FLARE hands over the first model, a DXO of lists or arrays."""
        arrays = {name: np.asarray(value, np.float32) for name, value in model.data.items()}
        rules = {"weighting": "samples", **(self.settings or {}), "buffer_size": None}
        self.server = self._make(arrays, **rules)
        self.current_model = model

    def generate_new_model(self, fl_ctx: Any) -> None:
        """The next version, of what has come; FLARE asks for the first one itself."""
        if self.current_model_version:
            self.server.close_round()
        self.current_model_version += 1
        self._waiting = 0
        self._tasks[self.current_model_version] = self.server.dispatch(f"version {self.current_model_version}")
        self._counted[self.current_model_version] = set()
        model = {name: value.numpy().tolist() for name, value in self.server.snapshot().items()}
        self.current_model = DXO(DataKind.WEIGHTS, data=model)
        self.log_info(fl_ctx, f"fastagg: version {self.current_model_version}")
        fl_ctx.set_prop(AppConstants.GLOBAL_MODEL, make_model_learnable(model, {}), private=True, sticky=True)
        fl_ctx.set_prop(AppConstants.CURRENT_ROUND, self.current_model_version, private=True, sticky=True)
        self.fire_event(AppEventType.GLOBAL_WEIGHTS_UPDATED, fl_ctx)

    def prune_model_versions(self, versions_to_keep: set[int], fl_ctx: Any) -> None:
        """Forget versions that no device is on any more."""
        for version in [v for v in self._tasks if v not in versions_to_keep and v != self.current_model_version]:
            self._drop(version)

    def process_updates(self, model_updates: dict[int, Any], fl_ctx: Any) -> bool:
        """Take relays' reports, by version; whether all of them were taken."""
        taken = [self._take(version, update, fl_ctx) for version, update in model_updates.items() if version > 0]
        if self._waiting >= self.num_updates_for_model:
            self.generate_new_model(fl_ctx)
        if self.max_model_history is not None:
            for version in [v for v in self._tasks if v <= self.current_model_version - self.max_model_history]:
                self._drop(version)
        return all(taken)

    def _take(self, version: int, update: Any, fl_ctx: Any) -> bool:
        devices = sorted(update.devices) if update else []
        try:
            if version not in self._tasks:
                raise UnknownVersion(f"version {version} is not one that devices are on: {sorted(self._tasks)}")
            again = self._counted[version].intersection(devices)
            if again or not devices:
                raise UnknownVersion(f"of version {version}, counted before: {sorted(again)}")
            data = from_shareable(update.update).data
            count = data.get("count", len(devices))
            mean = {name: np.asarray(value, np.float32) / np.float32(count) for name, value in data["dict"].items()}
            relay = self.server.hand_on(self._tasks[version], ", ".join(devices))
            try:
                self.server.receive(relay.client, mean, relay.version, count)
            finally:
                with suppress(FastaggError):
                    self.server.forget(relay.client)
        except FastaggError as error:
            self.log_warning(fl_ctx, f"fastagg: devices {devices}: refused: {error}")
            return False
        self._counted[version].update(devices)
        self._waiting += count
        self.log_info(fl_ctx, f"fastagg: devices {devices}: {count} updates from version {version} taken")
        return True

    def _drop(self, version: int) -> None:
        task = self._tasks.pop(version)
        self.server.forget(task.client)
        del self._counted[version]


def _is_bad(message: str) -> bool:
    return ": refused: " in message or "it is dropped" in message
