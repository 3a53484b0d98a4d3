"""A FLARE aggregator for synchronous rounds. FLARE calls the aggregator from several threads.

A reply counts once, or is refused and changes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from nvflare.apis.fl_constant import FLMetaKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.abstract.model import ModelLearnableKey
from nvflare.app_common.aggregators.model_aggregator import ModelAggregator
from nvflare.app_common.aggregators.weighted_aggregation_helper import (
    WeightedAggregationHelper,
    filter_aggregatable_metrics,
)
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.app_event_type import AppEventType
from nvflare.app_common.utils.fl_model_utils import FLModelUtils

from fastagg import _keywords
from fastagg._types import Arrays, Plain
from fastagg.errors import FastaggError, RunFailed
from fastagg.integrations.goals import Settings
from fastagg.integrations.models import holds, put
from fastagg.integrations.nvflare.traffic import Traffic
from fastagg.integrations.replies import LateReply
from fastagg.integrations.run import FLARE, AdapterRun, Rule, check_limits
from fastagg.server.server import Outcome
from fastagg.storage.pieces import as_tensor


class Aggregator(ModelAggregator):
    """FedAvg, FedAdam, FedYogi, FedAMS and the other synchronous presets for FLARE's ``FedAvgRecipe(aggregator=...)``.

    Replies are added to one sum, ``at_once`` of them in a pass over memory. FLARE decides when a round ends. The round
    then uses the replies that have arrived. The class also works in FLARE's ``ScatterAndGather``.

    A reply with wrong names, shapes or types is refused when it arrives. A reply with NaN or infinity is refused when
    it is added. The other replies of the same pass still count.

    Args:
        algorithm: a synchronous preset's name.
        settings: the preset's keyword arguments, as plain data, without ``clients_per_round``: FLARE chooses a round's
            clients. Clients are weighed by ``weight_key``, as in FLARE, unless ``weighting`` is set.
        checkpoint: a file on the server for the server's state (model, moments, version), written after each round.
            After a restart FLARE gets the file's model, whatever model the job starts from.
        weight_key: the key of a reply's weight in its ``meta``. The weight of a reply without this key is 1.
        at_once: the number of replies that are added in one pass. With 1, each reply is checked and then added to the
            sum in place, which needs the memory of one model besides the global model and the reply. With 4, adding
            takes a third of the time, and needs the memory of two models and of three waiting replies. With a user's
            own rule that decides itself when to step, all replies wait until the round ends.

    Raises:
        ConfigError: the preset is unknown, or not synchronous.
    """

    @_keywords.checked
    def __init__(
        self,
        algorithm: str = "FedAvg",
        settings: Plain | None = None,
        checkpoint: str | None = None,
        weight_key: str = FLMetaKey.NUM_STEPS_CURRENT_ROUND,
        at_once: int = 1,
    ) -> None:
        super().__init__()
        check_limits(at_once=at_once)
        self.at_once = at_once
        self.algorithm, self.settings, self.checkpoint, self.weight_key = algorithm, settings, checkpoint, weight_key
        rule = Rule(FLARE, algorithm, settings, rounds=True)
        say: dict[str, Any] = {"log": lambda line: self.info(line), "warn": lambda line: self.warning(line)}
        run = AdapterRun(rule, Settings(retry_after=0.0), checkpoint, **say)
        self._traffic = Traffic(run, None, weight_key, lean=at_once == 1)
        self._metrics = WeightedAggregationHelper()
        self._measured = True  # whether each reply of this round so far has metrics
        self._named: set[str] = set()  # names of metrics that are no numbers. The log has named them.
        self._round: set[str] = set()  # the clients that were sent the round's model
        self._number: int | None = None  # FLARE's number of the round
        self._resumed = False  # whether a checkpoint was loaded, and no round has ended since
        self._returned: dict[str, Arrays] | None = None  # the last model that aggregate_model returned

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Take FLARE's first model, and open each task before FLARE sends the task. An error ends the job."""
        super().handle_event(event_type, fl_ctx)
        if event_type not in (AppEventType.INITIAL_MODEL_LOADED, AppEventType.BEFORE_TRAIN_TASK):
            return
        self.fl_ctx = fl_ctx
        try:
            if event_type == AppEventType.INITIAL_MODEL_LOADED:
                self.begin(fl_ctx.get_prop(AppConstants.GLOBAL_MODEL)[ModelLearnableKey.WEIGHTS])
            else:
                shareable = fl_ctx.get_prop(AppConstants.TRAIN_SHAREABLE)
                self.sent(fl_ctx.get_peer_context().get_identity_name(), FLModelUtils.from_shareable(shareable))
        except FastaggError as error:  # FLARE only logs the errors of an event's handler
            self.system_panic(f"fastagg: {error}", fl_ctx)

    def begin(self, params: dict[str, Arrays]) -> None:
        """Take FLARE's first model. If there is a checkpoint, its model replaces the arrays in ``params``. Only the
        first call has an effect.

        Raises:
            FastaggError: the model, a setting or the checkpoint is refused.
        """
        if self._traffic.start(params, self.fl_ctx):
            self._resumed = True
            params.update(self._traffic.model())

    def sent(self, client: str, model: FLModel) -> None:
        """Open a task, because FLARE sends ``model`` to ``client``. The client's reply is an answer to this task.

        Raises:
            FastaggError: the model, a setting or the checkpoint is refused.
        """
        self.begin(model.params)
        if model.current_round != self._number:
            self._number = model.current_round
            self._follow(model.params)
        self._traffic.send(client, model.current_round)
        self._round.add(client)

    def _follow(self, params: dict[str, Arrays]) -> None:
        """If other code has changed ``params``, FLARE's model, make ``params`` the server's model. But before the first
        round after a restart, put the checkpoint's model into ``params``."""
        traffic = self._traffic
        is_own = self._returned is not None and all(params.get(name) is value for name, value in self._returned.items())
        if is_own or holds(traffic.server, params):
            return
        if self._resumed:  # FLARE has begun with the job's model, and must use the checkpoint's model
            params.update(traffic.model())
            return
        put(traffic.server, {name: as_tensor(value) for name, value in params.items()})
        traffic.run.log(
            "fastagg: FLARE's model is not the one it was given: somebody has changed it, and it is the model now"
        )

    def accept_model(self, model: FLModel) -> None:
        """Take one reply. A refused reply changes nothing.

        Raises:
            RunFailed: too many replies were refused. FLARE's job ends, too.
            FastaggError: the reply is refused in this call. But no error is raised if the server had ended the task
                (``lease``).
        """
        client = model.meta.get("client_name") or model.meta.get(FLMetaKey.SITE_NAME)
        with self._ending_the_job():
            # Only a synchronous rule waits for close_round. Another rule must not step while clients still get tasks.
            enough = self.at_once if self._traffic.server.direction.synchronous else math.inf
            outcome: Outcome | None = self._traffic.hold(client, model)
            if outcome is None and len(self._traffic.held) >= enough:
                outcome = self._add().get(client)
            if isinstance(outcome, FastaggError) and not isinstance(outcome, LateReply):
                raise outcome

    def _add(self) -> dict[str, Outcome]:
        """Add the replies that wait in ``Traffic.held``. Return each reply's receipt or error, by client."""
        added = self._traffic.add()
        for client, answer, metrics, outcome in added:
            if isinstance(outcome, FastaggError):
                continue
            self._measured = self._measured and metrics is not None
            if kept := filter_aggregatable_metrics(metrics, self._left_out, self._named):
                samples = 1.0 if answer.num_samples is None else answer.num_samples
                self._metrics.add(kept, samples, client, self._number)
        return {client: outcome for client, *_, outcome in added}

    def aggregate_model(self) -> FLModel:
        """End the round and return the new global model with all its arrays.

        Raises:
            RunFailed: too many replies were refused, or every client of this round was refused too often. FLARE's job
                ends, too.
        """
        traffic = self._traffic
        with self._ending_the_job():
            self._add()
            if traffic.session.close_round():
                traffic.session.stepped()
        traffic.session.settle()
        traffic.session.end_window(1)  # at least one reply is enough, because all clients evaluated the same version
        traffic.forget()
        traffic.run.save()
        with self._ending_the_job():
            traffic.session.failures.check(self._round)
        self._round.clear()
        # As in FLARE, a round has no metrics if any reply has none.
        metrics = self._metrics.get_result() or None if self._measured else None
        self.reset_stats()
        self._returned, self._resumed = traffic.model(), False
        return FLModel(ParamsType.FULL, dict(self._returned), metrics=metrics)

    def reset_stats(self) -> None:
        """Forget the metrics of the last round."""
        self._metrics, self._measured = WeightedAggregationHelper(), True

    def accept(self, shareable: Shareable, fl_ctx: FLContext) -> bool:
        """Take a reply for ScatterAndGather. Return whether the reply was accepted."""
        try:
            return super().accept(shareable, fl_ctx)
        except FastaggError:
            return False  # the log has the error

    @contextmanager
    def _ending_the_job(self) -> Iterator[None]:
        try:
            yield
        except RunFailed as error:
            if self.fl_ctx is not None:  # FLARE only logs an aggregator's errors
                self.system_panic(f"fastagg: {error}", self.fl_ctx)
            raise

    def _left_out(self, metric: str, kind: str) -> None:
        self.warning(f"fastagg: metric {metric!r} is a {kind}, which has no mean: it is left out")
