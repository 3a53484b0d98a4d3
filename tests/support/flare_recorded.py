"""FLARE components for tests: servers that record what they receive, so that it can be replayed."""

import os
from typing import Any

import torch
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.app_event_type import AppEventType

import fastagg
from fastagg.integrations.nvflare import Aggregator, AsyncController, Traffic
from support.replay import Event, listen


def record(traffic: Traffic, path: str) -> None:
    """Append every update that ``traffic``'s server takes to a file, with the first and the last model."""
    kept: dict[str, Any] = {"first": traffic.server.state_dict(), "updates": []}

    def heard(server: fastagg.Server, event: Event) -> None:
        client, version, update, weight = event
        update = {name: torch.as_tensor(value).clone() for name, value in update.items()}
        kept["updates"].append((client, version, update, weight))
        torch.save({**kept, "last": server.state_dict()}, path)

    listen(heard)


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
