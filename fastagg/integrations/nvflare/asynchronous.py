"""Asynchronous training, which FLARE has no workflow for: as a controller of its ordinary clients, and for Collab."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from nvflare.apis.fl_constant import FLMetaKey
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.workflows.model_controller import ModelController
from nvflare.collab import collab
from nvflare.collab.api.exceptions import CollabCallError

from fastagg.errors import FastaggError
from fastagg.integrations.nvflare.traffic import Traffic, is_bad


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
        self.warning(message) if is_bad(message) else self.info(message)


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
