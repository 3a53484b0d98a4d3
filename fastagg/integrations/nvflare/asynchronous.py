"""A FLARE controller for asynchronous training with FLARE's ordinary clients. FLARE calls it from several threads.

A reply counts once, or is refused and changes nothing.
"""

from __future__ import annotations

import math
import threading
import time
from dataclasses import fields

from nvflare.apis.controller_spec import ClientTask
from nvflare.apis.fl_constant import FLMetaKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.abstract.model import make_model_learnable
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.app_event_type import AppEventType
from nvflare.app_common.workflows.model_controller import ModelController

from fastagg import _keywords
from fastagg._types import Plain
from fastagg.errors import ConfigError, FastaggError, RunFailed
from fastagg.integrations.goals import Settings
from fastagg.integrations.nvflare.traffic import Traffic
from fastagg.integrations.replies import ClientFailure
from fastagg.integrations.run import FLARE, AdapterRun, Rule, check_limits
from fastagg.server.dispatch import Dispatch, Receipt


class AsyncController(ModelController):
    """Asynchronous training in FLARE: an idle client gets the newest model, and every reply is added as it arrives.

    Clients run FLARE's ordinary executors and scripts. A client fails if it reports an error, takes longer than
    ``timeout``, or sends a reply that is refused. Other clients never wait for a failed client. A permanent problem
    ends the job.

    The number of a FLARE round is the version. The controller fires the events of a round (``ROUND_STARTED``,
    ``BEFORE_AGGREGATION``, ``ROUND_DONE``) after as many replies as there are clients, so FLARE's model selectors work.

    A subclass may define ``evaluate(self, version, model)``, which returns metrics from an evaluation on the server,
    and ``on_version(self, version, metrics, model)``. If one of them raises ``StopIteration``, the job ends normally.

    Args:
        algorithm: a preset's name.
        settings: the preset's keyword arguments, as plain data.
        versions: the run ends with this version. Versions before a restart count, too.
        timeout: seconds after which a task ends. Later replies do not count. 0: never.
        end_timeout: the most seconds that the job's end waits for clients that still train. Without the wait, these
            clients would stop with an error. Their replies do not count. The model is saved before the wait.
        checkpoint: a file on the server, written every ``save_every`` versions and at the end. A restart continues
            from the file. A relative path is in a folder that FLARE keeps. The log's first line names the path.
        save_every: versions between checkpoints. A killed server loses the versions since the last checkpoint.
        clients: names of all clients, needed by rules that keep an update of each client (ACE, ACED, CA2FL).
        weight_key: the key of a reply's weight in its ``meta``, for ``weighting="samples"``.
        task_name: the task's name for the clients' executors.
        persistor_id: the id of FLARE's component that provides the first model and stores the last model.
        stop, best, trackers, max_failures, max_in_a_row, retry_after, max_seconds, evaluate_every: see
            :class:`fastagg.integrations.goals.Settings`, as plain data. The names of the clients' own metrics begin
            with ``clients/``, such as ``clients/accuracy``.

    Raises:
        ConfigError: a setting is refused.
    """

    @_keywords.checked
    def __init__(
        self,
        algorithm: str = "FADAS",
        settings: Plain | None = None,
        versions: int = 100,
        timeout: int = 0,
        checkpoint: str | None = None,
        save_every: int = 1,
        clients: list[str] | None = None,
        weight_key: str = FLMetaKey.NUM_STEPS_CURRENT_ROUND,
        task_name: str = AppConstants.TASK_TRAIN,
        persistor_id: str = AppConstants.DEFAULT_PERSISTOR_ID,
        stop: Plain | None = None,
        best: str | Plain | None = None,
        trackers: Plain | None = None,
        max_failures: int | None = 5,
        max_in_a_row: int | None = 50,
        retry_after: float = 5.0,
        max_seconds: float | None = None,
        evaluate_every: int = 1,
        end_timeout: float = 60.0,
    ) -> None:
        arguments = {name: value for name, value in locals().items() if name not in ("self", "__class__")}
        super().__init__(persistor_id=persistor_id, ignore_result_error=True, task_check_period=0.05)
        self.__dict__.update(arguments)  # FLARE exports a job with the arguments that it finds in __dict__
        self.timeout, self.end_timeout, self.persistor_id = timeout, end_timeout, persistor_id
        check_limits(versions=versions, timeout=timeout, save_every=save_every, end_timeout=end_timeout)
        known = {field.name for field in fields(Settings)} & arguments.keys()
        goals = Settings(on_version=getattr(self, "on_version", None), **{name: arguments[name] for name in known})
        rule = Rule(FLARE, algorithm, settings, rounds=False)
        run = AdapterRun(rule, goals, checkpoint, save_every, log=self.info, warn=self.warning)
        self._traffic = Traffic(run, clients, weight_key, getattr(self, "evaluate", None), versions)
        self._ended = False
        self._broken: FastaggError | None = None
        self._came = threading.Event()
        self._taking = threading.RLock()  # held while a reply is processed, because several threads pass replies

    def run(self) -> None:
        """Run the workflow. FLARE calls this method.

        Raises:
            ConfigError: the job has no model.
            RunFailed: the run cannot continue. The model and the checkpoint are saved.
        """
        traffic, model = self._traffic, self.load_model()
        if model is None or not model.params:
            do = f'job.to_server(PTModel(net), id="{self.persistor_id}")'
            raise ConfigError(f"there is no first model: the job has no persistor {self.persistor_id!r}; write {do}")
        traffic.start(model.params, self.fl_ctx)
        self.event(AppEventType.ROUND_STARTED)
        try:
            while not self.abort_signal.triggered and not self._is_over():
                self._give_up()
                self._send()
                self._came.wait(self._task_check_period)
                self._came.clear()
        except FastaggError as error:
            self._broken = error
        with self._taking:  # waits until the reply that made the last step is processed
            self._ended = True
        traffic.end()
        self.save_model(FLModel(ParamsType.FULL, traffic.model(), current_round=traffic.server.version))
        if self._broken is None:
            self._wait_for_the_last()
        self.cancel_all_tasks(fl_ctx=self.fl_ctx)
        if self._broken is not None:
            raise self._broken

    def set_fl_context(self, data: FLModel) -> None:
        """Set FLARE's round, except while an earlier round's reply is processed."""
        with self._taking:
            super().set_fl_context(data)

    def _is_over(self) -> bool:
        with self._taking:
            if self._broken is not None:
                raise self._broken
            return self._traffic.is_over([client.name for client in self.engine.get_clients()])

    def _send(self) -> None:
        """Send the newest model to all idle clients, except those that pause after a failure."""
        traffic = self._traffic
        with self._taking:
            busy = traffic.book.busy  # other threads only end tasks, so a client that is not in `busy` stays idle
        for client in self.engine.get_clients():
            with self._taking:
                if client.name in busy or traffic.session.failures.rests(client.name):
                    continue
                task = traffic.send(client.name, timeout=self.timeout or math.inf)
            self.send_model(self.task_name, task, [client.name], timeout=self.timeout, callback=self._take)

    def _give_up(self) -> None:
        with self._taking:
            for client, _ in self._traffic.book.late():
                self._traffic.forget(client)
                self._traffic.session.refused(client, ClientFailure(f"no answer in {self.timeout} s"))

    def _wait_for_the_last(self) -> None:
        deadline = time.monotonic() + self.end_timeout
        while not self.abort_signal.triggered and time.monotonic() < deadline:
            with self._taking:
                if len(self._traffic.book.late()) == len(self._traffic.book.keys_of()):
                    return
            self._came.wait(self._task_check_period)
            self._came.clear()

    def _take(self, reply: FLModel) -> bool:
        """Take a reply from FLARE. Return whether the reply was accepted."""
        if self._ended or self._traffic.is_done():
            return False
        try:
            return isinstance(self._traffic.take(reply.meta["client_name"], reply), Receipt)
        except RunFailed as error:  # FLARE would only log the error
            self._broken = error
            return False

    def _process_result(self, client_task: ClientTask, fl_ctx: FLContext) -> None:
        client, code = client_task.client.name, client_task.result.get_return_code()
        with self._taking:
            super()._process_result(client_task, fl_ctx)
            if self._ended:  # no line in the log, because `Traffic.end` has logged that these answers do not count
                self._traffic.book.end(self._traffic.book.keys_of(client))
                return
            unanswered = self._traffic.forget(client)  # the number of tasks that the client has not answered
            try:
                if unanswered and code not in (None, ReturnCode.OK):
                    self._traffic.session.refused(client, ClientFailure(str(code)))
                if (task := self._traffic.session.end_window(len(self.engine.get_clients()))) is not None:
                    self._tell_selectors(task, fl_ctx)
            except FastaggError as error:  # FLARE would only log the error
                self._broken = self._broken or error
        self._came.set()

    def _tell_selectors(self, task: Dispatch, fl_ctx: FLContext) -> None:
        """Fire the events of a FLARE round, so that FLARE's widgets read the clients' metrics. ``task``: a task of the
        version to which the metrics are assigned."""
        model = make_model_learnable(dict(task.views), {})
        self._set_ctx_prop_preserving_attrs(fl_ctx, AppConstants.CURRENT_ROUND, task.version)
        fl_ctx.set_prop(AppConstants.GLOBAL_MODEL, model, private=True, sticky=True)
        for event in (AppEventType.BEFORE_AGGREGATION, AppEventType.ROUND_DONE, AppEventType.ROUND_STARTED):
            self.event(event)
