"""NVIDIA FLARE's own filters beside its own aggregation: what comes out, round by round, from the same replies."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch

pytest.importorskip("nvflare")

import numpy as np
from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.dxo_filter import DXOFilter
from nvflare.apis.fl_context import FLContext
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.aggregators.weighted_aggregation_helper import WeightedAggregationHelper
from nvflare.app_common.filters.exclude_vars import ExcludeVars
from nvflare.app_common.filters.percentile_privacy import PercentilePrivacy
from nvflare.app_common.filters.svt_privacy import SVTPrivacy
from nvflare.app_common.utils.fl_model_utils import FLModelUtils

import fastagg
from fastagg.integrations.goals import Settings
from fastagg.integrations.nvflare import Aggregator, Traffic
from fastagg.integrations.run import FLARE, AdapterRun, Rule

SITES = {"a": 10, "b": 30, "c": 7}  # and their steps
KINDS = {DataKind.WEIGHTS: ParamsType.FULL, DataKind.WEIGHT_DIFF: ParamsType.DIFF}

FILTERS: dict[str, Callable[[], list[DXOFilter]]] = {
    "none": lambda: [],
    "SVTPrivacy": lambda: [SVTPrivacy(fraction=0.5, epsilon=10.0, noise_var=1e4, gamma=0.05, tau=1e-6)],
    "PercentilePrivacy": lambda: [PercentilePrivacy(percentile=30, gamma=0.001)],
    "ExcludeVars": lambda: [ExcludeVars("^head")],
    "ExcludeVars, names": lambda: [ExcludeVars(["w"])],
    "ExcludeVars, a statistic": lambda: [ExcludeVars("running_mean")],
    "both": lambda: [PercentilePrivacy(percentile=30, gamma=0.001), ExcludeVars("^head")],
}


def start() -> dict[str, np.ndarray]:
    draw = np.random.default_rng(1)
    return {
        "w": draw.normal(size=(7, 5)).astype(np.float32),
        "head.b": draw.normal(size=5).astype(np.float32),
        "head.scale": np.asarray(1.5, np.float32),
        "bn.running_mean": draw.normal(size=5).astype(np.float32),
        "bn.num_batches_tracked": np.array(4),
    }


def trained(model: dict[str, np.ndarray], draw: np.random.Generator) -> dict[str, np.ndarray]:
    """Local training, as far as arithmetic is concerned."""
    return {
        name: value + 3 if value.dtype == np.int64
        else np.asarray(value + 0.01 * draw.normal(size=value.shape), np.float32)
        for name, value in model.items()
    }  # fmt: skip


def through(filters: list[DXOFilter], kind: str, arrays: dict[str, Any], steps: int) -> dict[str, Any]:
    """What FLARE's client sends when its task results pass ``filters``."""
    shareable = DXO(kind, data=arrays, meta={"NUM_STEPS_CURRENT_ROUND": steps}).to_shareable()
    for one in filters:
        shareable = one.process(shareable, FLContext())
    return from_shareable(shareable).data


class Flare:
    """FLARE's FedAvg: its helper, and the way its controller updates the global model."""

    def __init__(self, model: dict[str, Any]) -> None:
        self.model = FLModel(ParamsType.FULL, dict(model))

    def round(self, number: int, replies: dict[str, dict[str, Any]], kind: str) -> None:
        weighted = WeightedAggregationHelper()
        for site, params in replies.items():
            weighted.add(params, SITES[site], site, number)
        result = FLModel(KINDS[kind], weighted.get_result())
        self.model = FLModelUtils.update_model(self.model, result)


class Ours:
    def __init__(self, model: dict[str, Any], **settings: Any) -> None:
        self.aggregator, self.params = Aggregator("FedAvg", settings), dict(model)
        self.said: list[str] = []
        self.aggregator._traffic.run.log = self.aggregator._traffic.run.warn = self.said.append

    def round(self, number: int, replies: dict[str, dict[str, Any]], kind: str) -> None:
        for site in replies:
            self.aggregator.sent(site, FLModel(ParamsType.FULL, self.params, current_round=number))
        for site, params in replies.items():
            meta = {"client_name": site, "NUM_STEPS_CURRENT_ROUND": SITES[site]}
            self.aggregator.accept_model(FLModel(KINDS[kind], params, current_round=number, meta=meta))
        self.params = self.aggregator.aggregate_model().params


class Asynchronous:
    """What AsyncController does with replies: FedBuff, with a buffer of as many as there are sites."""

    def __init__(self, model: dict[str, Any]) -> None:
        self.said: list[str] = []
        settings = {"buffer_size": len(SITES), "weighting": "samples"}
        rule = Rule(FLARE, "FedBuff", settings, rounds=False)
        self.traffic, self.params = (
            Traffic(AdapterRun(rule, Settings(), log=self.said.append, warn=self.said.append)),
            model,
        )
        self.traffic.start(model)

    def round(self, number: int, replies: dict[str, dict[str, Any]], kind: str) -> None:
        for site in replies:
            self.traffic.send(site)
        for site, params in replies.items():
            meta = {"NUM_STEPS_CURRENT_ROUND": SITES[site]}
            self.traffic.take(site, FLModel(KINDS[kind], params, current_round=number, meta=meta))
        self.params = self.traffic.model()


@pytest.mark.parametrize("make", [Ours, Asynchronous])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", FILTERS)
def test_the_same_numbers_as_flares_own(name: str, kind: str, make: Callable[..., Any]) -> None:
    np.random.seed(3)  # FLARE's filters draw from NumPy's own
    model, draw = start(), np.random.default_rng(0)
    if "Privacy" not in name and name != "both":  # those make variances of whole models negative, which is refused
        model["bn.running_var"] = np.linspace(1, 2, 5, dtype=np.float32)
    flare, ours = Flare(copy.deepcopy(model)), make(model)
    filters = {site: FILTERS[name]() for site in SITES}
    changed, excluded = False, "ExcludeVars" in name or name == "both"
    for number in range(3):
        before = dict(ours.params)
        replies = {}
        for site, steps in SITES.items():
            arrays = trained(ours.params, draw)
            if kind == DataKind.WEIGHT_DIFF:
                arrays = {key: np.asarray(value - ours.params[key]) for key, value in arrays.items()}
            replies[site] = through(filters[site], kind, arrays, steps)
        flare.round(number, copy.deepcopy(replies), kind)
        ours.round(number, replies, kind)
        for key, value in ours.params.items():
            if key not in flare.model.params:  # of whole models, FLARE's global one loses what is excluded
                assert kind == DataKind.WEIGHTS and excluded
                assert np.allclose(value, before[key], rtol=2e-7, atol=0), "ours keeps it as it was"
                continue
            theirs = np.asarray(flare.model.params[key], np.float64)
            atol = 1.0 if value.dtype == np.int64 else 2e-7  # a mean of counts is no whole number in FLARE
            assert value.dtype == model[key].dtype
            assert np.allclose(value, theirs, rtol=1e-6, atol=atol), (number, key)
            changed = changed or not np.array_equal(value, before[key])
    assert changed
    assert any("are not in its replies" in line for line in ours.said) == excluded


def test_arrays_that_one_site_alone_leaves_out() -> None:
    """FLARE averages the sites that sent an array. fastagg averages all, and logs this once for each site."""
    model = {"w": np.zeros(4, np.float32), "head": np.zeros(2, np.float32)}
    ours = Ours(model, weighting="uniform")
    for number in range(2):
        replies = {site: {"w": np.ones(4, np.float32), "head": np.full(2, 3.0, np.float32)} for site in SITES}
        del replies["b"]["head"]
        ours.round(number, replies, DataKind.WEIGHT_DIFF)
    assert np.allclose(ours.params["w"], 2.0) and np.allclose(ours.params["head"], 4.0)
    assert [line for line in ours.said if "count as they were" in line] == [
        "fastagg: client b: 1 arrays are not in its replies ('head'): they count as they were"
    ]


@pytest.mark.parametrize(
    "params, error",
    [
        ({"bn.num_batches_tracked": np.float64("nan")}, fastagg.DTypeMismatch),
        ({"w": np.full((7, 5), 1e300)}, fastagg.NonFiniteUpdate),  # float64 beyond the model's type
        ({"w": np.zeros((5, 7))}, fastagg.ShapeMismatch),
        ({"other": np.zeros(3)}, fastagg.ShapeMismatch),
        ({}, fastagg.ShapeMismatch),
        (None, fastagg.ShapeMismatch),
    ],
)
def test_what_no_filter_makes_is_refused(params: Any, error: type[Exception]) -> None:
    ours = Ours(start())
    ours.aggregator.at_once = 1  # numbers are looked at when a reply is added
    ours.aggregator.sent("a", FLModel(ParamsType.FULL, ours.params, current_round=0))
    before = ours.aggregator._traffic.server.state_dict()
    answer = FLModel(ParamsType.DIFF, {"w": np.zeros((7, 5), np.float32)}, current_round=0, meta={"client_name": "a"})
    answer.params = params
    with pytest.raises(error):
        ours.aggregator.accept_model(answer)
    after = ours.aggregator._traffic.server.state_dict()
    assert torch.equal(before["flat"], after["flat"]) and after["direction"]["acc"] is None
