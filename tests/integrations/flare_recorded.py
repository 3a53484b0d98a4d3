"""FLARE components for tests: servers that record what they receive, so that it can be replayed."""

from __future__ import annotations

import os
from typing import Any

import torch
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.app_event_type import AppEventType

import fastagg
from fastagg.integrations.nvflare import Aggregator, AsyncController, Traffic


def record(traffic: Traffic, path: str) -> None:
    """Append every update that ``traffic``'s server takes to a file, with the first and the last model."""
    server, receive_models = traffic.server, traffic.server.receive_models
    kept: dict[str, Any] = {"first": server.state_dict(), "updates": []}

    def recording(answers: Any, differences: bool = False) -> Any:
        outcomes = receive_models(answers, differences=differences)
        for (task, trained, weight), outcome in zip(answers, outcomes, strict=True):
            if isinstance(outcome, fastagg.Receipt):
                update = trained if differences else task.delta(trained)
                update = {name: torch.as_tensor(value).clone() for name, value in update.items()}
                kept["updates"].append((task.client, task.version, update, weight))
        kept["last"] = server.state_dict()
        torch.save(kept, path)
        return outcomes

    server.receive_models = recording  # type: ignore[method-assign]


class RecordedAggregator(Aggregator):
    def begin(self, params: dict[str, Any]) -> None:
        first = not hasattr(self._traffic, "server")
        super().begin(params)
        if first:
            record(self._traffic, os.environ["FASTAGG_TEST_RECORD"])


class RecordedController(AsyncController):
    def handle_event(self, event_type: str, fl_ctx: Any) -> None:
        super().handle_event(event_type, fl_ctx)
        if event_type == AppEventType.INITIAL_MODEL_LOADED:
            self._traffic.start(fl_ctx.get_prop(AppConstants.GLOBAL_MODEL)["weights"])
            record(self._traffic, os.environ["FASTAGG_TEST_RECORD"])
