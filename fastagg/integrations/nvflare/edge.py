"""FLARE's edge workflow, in which relays add up the updates of their devices."""

from __future__ import annotations

import hashlib
from contextlib import suppress

import numpy as np
from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.fl_context import FLContext
from nvflare.app_common.abstract.model import make_model_learnable
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.app_event_type import AppEventType
from nvflare.edge.assessors.model_manager import ModelManager

from fastagg._types import Foreign, Plain
from fastagg.errors import FastaggError, UnknownVersion
from fastagg.integrations import preset
from fastagg.integrations.named import check_settings
from fastagg.integrations.replies import Reply, take
from fastagg.server.dispatch import Dispatch


class EdgeModelManager(ModelManager):
    """The model of FLARE's edge workflow (``ModelUpdateAssessor``'s ``model_manager_id``), where relays add up updates.

    A relay's report is one update: the mean of its devices' differences, weighted by the number of devices. A device
    counts once for a version. Versions are FLARE's: the first model is version 1.

    Args:
        num_updates_for_model: devices' updates in a step (the buffer's size, for rules that have one).
        algorithm: an asynchronous preset's name, FedBuff or FADAS.
        settings: its keyword arguments, as plain data; Updates are weighted by number of devices.
        max_model_history: an update is dropped if its version is this much, or more, older than the current one. None:
            never.

    Raises:
        ConfigError: a setting is refused.
    """

    def __init__(
        self,
        num_updates_for_model: int,
        algorithm: str = "FedBuff",
        settings: Plain | None = None,
        max_model_history: int | None = None,
    ) -> None:
        super().__init__()
        self.num_updates_for_model, self.algorithm, self.settings = num_updates_for_model, algorithm, settings
        self.max_model_history = max_model_history
        self._make = preset(algorithm)
        self._rules = {"weighting": "samples", **(settings or {}), "buffer_size": None}
        check_settings(self._make, self._rules)
        self._counted: dict[int, set[str]] = {}  # by version: devices that have answered
        self._tasks: dict[int, Dispatch] = {}
        self._waiting = 0

    def initialize_model(self, model: DXO, fl_ctx: FLContext) -> None:
        """Take the first model from FLARE: a DXO of lists or arrays."""
        arrays = {name: np.asarray(value, np.float32) for name, value in model.data.items()}
        self.server = self._make(arrays, **self._rules)
        self.current_model = model

    def generate_new_model(self, fl_ctx: FLContext) -> None:
        """Make the next version from the updates so far. FLARE requests the first version itself."""
        if self.current_model_version:
            self.server.close_round()
        self.current_model_version += 1
        self._waiting = 0
        self._tasks[self.current_model_version] = self.server.dispatch(f"version {self.current_model_version}")
        self._counted[self.current_model_version] = set()
        model = {name: value.tolist() for name, value in self.server.snapshot().items()}
        self.current_model = DXO(DataKind.WEIGHTS, data=model)
        self.log_info(fl_ctx, f"fastagg: version {self.current_model_version}")
        fl_ctx.set_prop(AppConstants.GLOBAL_MODEL, make_model_learnable(model, {}), private=True, sticky=True)
        fl_ctx.set_prop(AppConstants.CURRENT_ROUND, self.current_model_version, private=True, sticky=True)
        self.fire_event(AppEventType.GLOBAL_WEIGHTS_UPDATED, fl_ctx)

    def prune_model_versions(self, versions_to_keep: set[int], fl_ctx: FLContext) -> None:
        """Forget versions that no device uses any more."""
        for version in [v for v in self._tasks if v not in versions_to_keep and v != self.current_model_version]:
            self._drop(version)

    def process_updates(self, model_updates: dict[int, Foreign], fl_ctx: FLContext) -> bool:
        """Take relays' reports, by version. Return whether all were accepted."""
        taken = [self._take(version, update, fl_ctx) for version, update in model_updates.items() if version > 0]
        if self._waiting >= self.num_updates_for_model:
            self.generate_new_model(fl_ctx)
        if self.max_model_history is not None:
            for version in [v for v in self._tasks if v <= self.current_model_version - self.max_model_history]:
                self._drop(version)
        return all(taken)

    def _take(self, version: int, update: Foreign, fl_ctx: FLContext) -> bool:
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
            relay = self.server.hand_on(self._tasks[version], _name_of(devices))
            outcome = take(self.server, [(relay, Reply(mean, "difference", samples=count))])[0]
            with suppress(FastaggError):
                self.server.forget(relay.client)
            if isinstance(outcome, FastaggError):
                raise outcome
        except FastaggError as error:
            self.log_warning(fl_ctx, f"fastagg: devices {devices}: refused: {error}")
            return False
        self._counted[version].update(devices)
        self._waiting += count
        self.log_info(fl_ctx, f"fastagg: devices {devices}: {count} updates from version {version} taken")
        return True

    def _drop(self, version: int) -> None:
        task = self._tasks.pop(version)
        with suppress(FastaggError):  # the server may have ended it: lease, max_delay
            self.server.forget(task.client)
        del self._counted[version]


def _name_of(devices: list[str]) -> str:
    """One id for all of them, no longer than an id may be."""
    name = ", ".join(devices)
    return name if len(name) <= 256 else f"{name[:190]}, ... {hashlib.sha256(name.encode()).hexdigest()[:48]}"
