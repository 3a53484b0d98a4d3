"""Flower's earlier API, run by its own workflows: its wrappers, mods and secure aggregation, ours beside its FedAvg."""

from __future__ import annotations

import copy
import logging
import random
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

import fastagg

pytest.importorskip("flwr")

from flwr.app import Context, Message, RecordDict
from flwr.client import mod as mods
from flwr.client.mod import make_ffn
from flwr.common import Code, FitRes, Status, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.compat.common import recorddict_compat as compat
from flwr.server import LegacyContext, ServerConfig
from flwr.server import strategy as theirs
from flwr.server.workflow import DefaultWorkflow, SecAggPlusWorkflow, SecAggWorkflow
from support.flower_apps import FakeGrid

from fastagg.integrations import flower

NODES, ROUNDS = [3, 5, 8], 4
START = [np.linspace(-1, 1, 60, dtype=np.float32).reshape(6, 10), np.zeros(7, np.float32)]


class Grid(FakeGrid):
    """Nodes of the earlier API with mods. Every message is a copy, as over a network: secagg's mods write to theirs."""

    def __init__(self, *chain) -> None:
        super().__init__(self.answer, NODES)
        self.call = make_ffn(self.fit, list(chain))
        self.received: dict[int, list[list[np.ndarray]]] = {node: [] for node in NODES}
        self.configs: list[dict] = []
        self.contexts = {node: SimpleNamespace(state=RecordDict()) for node in NODES}

    @property
    def run(self):
        return SimpleNamespace(run_id=1)

    def answer(self, message: Message):
        content = copy.deepcopy(message.content)
        copied = Message(content, message.metadata.dst_node_id, message.metadata.message_type)
        back = self.call(copied, self.contexts[message.metadata.dst_node_id])
        return back.error if back.has_error() else back.content

    def fit(self, message: Message, context) -> Message:
        node, instruction = message.metadata.dst_node_id, compat.recorddict_to_fitins(message.content, True)
        arrays = parameters_to_ndarrays(instruction.parameters)
        self.received[node].append([array.copy() for array in arrays])
        self.configs.append(dict(instruction.config))
        moved = [0.7 * a + 0.3 * np.cos(node + np.arange(a.size)).reshape(a.shape) for a in arrays]
        moved = [a.astype(np.float32) for a in moved]
        metrics = {"dpfedavg_norm_bit": node % 2 == 0}
        result = FitRes(DONE, ndarrays_to_parameters(moved), 10 * node, metrics)
        return Message(compat.fitres_to_recorddict(result, True), reply_to=message)

    def send_and_receive(self, messages, *, timeout=None):
        return self.pull_messages(self.push_messages(messages))


DONE = Status(Code.OK, "done")
SETTINGS = {"fraction_evaluate": 0.0, "min_fit_clients": 3, "min_available_clients": 3}


def parameters():
    return ndarrays_to_parameters([array.copy() for array in START])


def ours(make=fastagg.FedAvg, **settings):
    return flower.ClassicStrategy(make, initial_parameters=parameters(), **SETTINGS, **settings)


def flowers(kind=theirs.FedAvg, **settings):
    return kind(initial_parameters=parameters(), **SETTINGS, **settings)


def run(strategy, chain=(), workflow=None, grid=None) -> tuple[Grid, list[np.ndarray]]:
    random.seed(5)
    np.random.seed(13)
    grid = grid or Grid(*chain)
    context = LegacyContext(
        Context(run_id=1, node_id=0, node_config={}, state=RecordDict(), run_config={}),
        ServerConfig(num_rounds=ROUNDS), strategy,
    )  # fmt: skip
    DefaultWorkflow(fit_workflow=workflow)(grid, context)
    last = compat.arrayrecord_to_parameters(context.state.array_records["parameters"], True)
    return grid, parameters_to_ndarrays(last)


def same(mine, other, atol: float = 2e-5) -> None:
    for node in NODES:
        assert len(mine[0].received[node]) == len(other[0].received[node]) == ROUNDS
        for ours_, theirs_ in zip(mine[0].received[node], other[0].received[node], strict=True):
            for a, b in zip(ours_, theirs_, strict=True):
                np.testing.assert_allclose(a, b, rtol=2e-4, atol=atol)
    for a, b in zip(mine[1], other[1], strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=atol)
    assert sorted(map(repr, mine[0].configs)) == sorted(map(repr, other[0].configs))


RULES = {
    "FedAvg": (fastagg.FedAvg, flowers, {}),
    "FedProx": (fastagg.FedProx, partial(flowers, theirs.FedProx, proximal_mu=0.3), {"proximal_mu": 0.3}),
    "FedAvgM": (partial(fastagg.FedAvgM, lr=0.5, beta=0.9),
                partial(flowers, theirs.FedAvgM, server_learning_rate=0.5, server_momentum=0.9), {}),
    "FedAdagrad": (partial(fastagg.FedAdagrad, lr=0.1), partial(flowers, theirs.FedAdagrad, eta=0.1, tau=1e-3), {}),
    "FedYogi": (partial(fastagg.FedYogi, lr=0.1, betas=(0.9, 0.99)),
                partial(flowers, theirs.FedYogi, eta=0.1, beta_1=0.9, beta_2=0.99, tau=1e-3), {}),
}  # fmt: skip


@pytest.mark.parametrize("name", RULES)
def test_equal_settings_give_flowers_numbers(name: str) -> None:
    make, other, settings = RULES[name]
    same(run(ours(make, **settings)), run(other()))


def test_fedadam_with_flowers_rate_gives_flowers_numbers() -> None:
    mine = run(ours(partial(fastagg.FedAdam, lr=0.1), lr=flower.adam_rate(0.1)))
    same(mine, run(flowers(theirs.FedAdam, eta=0.1, tau=1e-3)))


@pytest.mark.parametrize("mod", [mods.fixedclipping_mod, mods.adaptiveclipping_mod])
def test_clipping_mods_by_the_users_own_settings(mod) -> None:
    told = {"on_fit_config_fn": lambda number: {"clipping_norm": 0.5}}
    same(run(ours(**told), [mod]), run(flowers(**told), [mod]))


def dp(kind, **settings):
    return partial(kind, num_sampled_clients=3, **settings)


FIXED = {"noise_multiplier": 0.5, "clipping_norm": 1.5}
ADAPTIVE = {"noise_multiplier": 0.2, "initial_clipping_norm": 1.0, "clipped_count_stddev": 0.3}
WRAPPERS = {
    "server-fixed": (dp(theirs.DifferentialPrivacyServerSideFixedClipping, **FIXED), ()),
    "client-fixed": (dp(theirs.DifferentialPrivacyClientSideFixedClipping, **FIXED), (mods.fixedclipping_mod,)),
    "server-adaptive": (dp(theirs.DifferentialPrivacyServerSideAdaptiveClipping, **ADAPTIVE), ()),
    "client-adaptive": (
        dp(theirs.DifferentialPrivacyClientSideAdaptiveClipping, **ADAPTIVE), (mods.adaptiveclipping_mod,)),
    "DPFedAvgFixed": (dp(theirs.DPFedAvgFixed, clip_norm=1.5, noise_multiplier=0.3), ()),
    "DPFedAvgAdaptive": (
        dp(theirs.DPFedAvgAdaptive, noise_multiplier=0.3, init_clip_norm=1.0, clip_count_stddev=1.0), ()),
}  # fmt: skip


@pytest.mark.parametrize("name", WRAPPERS)
def test_differential_privacy_reaches_the_clients(name: str) -> None:
    wrap, chain = WRAPPERS[name]
    mine = run(wrap(ours()), chain)
    same(mine, run(wrap(flowers()), chain))
    spread = [float(np.std(received[1])) for received in mine[0].received[3]]
    assert spread[0] == 0 and min(spread[1:]) > 0.01


MODS = {
    "message_size_mod": mods.message_size_mod,
    "arrays_size_mod": mods.arrays_size_mod,
    "LocalDpMod": mods.LocalDpMod(clipping_norm=2.0, sensitivity=0.1, epsilon=5.0, delta=1e-3),
}


@pytest.mark.parametrize("name", MODS)
def test_mods(name: str) -> None:
    same(run(ours(), [MODS[name]]), run(flowers(), [MODS[name]]))


@pytest.mark.parametrize(
    ("workflow", "mod"),
    [
        (partial(SecAggPlusWorkflow, num_shares=3, reconstruction_threshold=2), mods.secaggplus_mod),
        (partial(SecAggWorkflow, reconstruction_threshold=2), mods.secagg_mod),
    ],
    ids=["SecAgg+", "SecAgg"],
)
@pytest.mark.parametrize("rule", ["FedAvg", "FedAvgM"])
def test_secure_aggregation(workflow, mod, rule: str, caplog: pytest.LogCaptureFixture) -> None:
    """The workflow hands every client's result over with the mean in it; the quantisation is its own."""
    make, other, _ = RULES[rule]
    with caplog.at_level(logging.WARNING, "flwr.fastagg"):
        mine = run(ours(make), [mod], workflow())
    same(mine, run(other(), [mod], workflow()), atol=1e-4)
    assert "dropped" not in caplog.text
    assert np.abs(mine[0].received[3][1][0] - START[0]).max() > 0.05, "the model moved"


# -- what public apps do in a subclass ---------------------------------------------------------------------------


class Nothing:
    pass


class Filters:
    def aggregate_fit(self, number, results, failures):
        return super().aggregate_fit(number, [pair for pair in results if pair[1].num_examples > 30], failures)


class Clips:
    def aggregate_fit(self, number, results, failures):
        for _, result in results:
            arrays = [np.clip(array, -0.3, 0.3) for array in parameters_to_ndarrays(result.parameters)]
            result.parameters = ndarrays_to_parameters(arrays)
        return super().aggregate_fit(number, results, failures)


class Makes:
    def aggregate_fit(self, number, results, failures):
        made = [(proxy, FitRes(r.status, r.parameters, r.num_examples, {})) for proxy, r in results]
        return super().aggregate_fit(number, made, failures)


class Clusters:
    def aggregate_fit(self, number, results, failures):
        fold, results = super().aggregate_fit, sorted(results, key=lambda pair: pair[1].num_examples)
        halves = [parameters_to_ndarrays(fold(number, half, [])[0]) for half in (results[:1], results[1:])]
        return ndarrays_to_parameters([(a + b) / 2 for a, b in zip(*halves, strict=True)]), {}


class Configures:
    def configure_fit(self, server_round, parameters, client_manager):
        chosen = super().configure_fit(server_round, parameters, client_manager)
        for _, fit in chosen:
            fit.config["lr"] = 0.1 / server_round
        return chosen


class Fades:
    def configure_fit(self, server_round, parameters, client_manager):
        faded = [array * np.float32(0.9) for array in parameters_to_ndarrays(parameters)]
        return super().configure_fit(server_round, ndarrays_to_parameters(faded), client_manager)


class Skips:
    def aggregate_fit(self, number, results, failures):
        return (None, {}) if number == 2 else super().aggregate_fit(number, results, failures)


SHAPES = [Nothing, Filters, Clips, Makes, Clusters, Configures, Fades, Skips]


@pytest.mark.parametrize("mixin", SHAPES)
def test_a_subclass_gives_flowers_numbers(mixin: type) -> None:
    mine, other = (type("Strategy", (mixin, base), {}) for base in (flower.ClassicStrategy, theirs.FedAvg))
    found = run(mine(fastagg.FedAvg, initial_parameters=parameters(), **SETTINGS))
    same(found, run(other(initial_parameters=parameters(), **SETTINGS)))


class BatchNorm(Grid):
    """Nodes whose models have running statistics and a counter."""

    def fit(self, message: Message, context) -> Message:
        node, instruction = message.metadata.dst_node_id, compat.recorddict_to_fitins(message.content, True)
        *arrays, count = parameters_to_ndarrays(instruction.parameters)
        moved = [0.7 * a + 0.3 * np.abs(np.cos(node + np.arange(a.size))).reshape(a.shape) for a in arrays]
        sent = ndarrays_to_parameters([*(a.astype(np.float32) for a in moved), count + 1])
        return Message(compat.fitres_to_recorddict(FitRes(DONE, sent, 10 * node, {}), True), reply_to=message)


def test_batchnorm_statistics_are_flowers() -> None:
    """In this API arrays have no names. A counter goes on; Flower's mean in place makes it 0."""
    begin = ndarrays_to_parameters([START[0], np.zeros(3, np.float32), np.ones(3, np.float32), np.array(7)])
    makes = (flower.ClassicStrategy(fastagg.FedAvg, initial_parameters=begin, **SETTINGS),
             theirs.FedAvg(initial_parameters=begin, **SETTINGS))  # fmt: skip
    mine, other = (run(strategy, grid=BatchNorm())[1] for strategy in makes)
    for a, b in zip(mine[:3], other[:3], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6)
    assert other[3] == 0 and mine[3].dtype == np.int64 and mine[3] == 7 + ROUNDS


def test_a_subclass_that_no_reply_fits_is_refused() -> None:
    class Cuts(flower.ClassicStrategy):
        def aggregate_fit(self, number, results, failures):
            for _, result in results:
                result.parameters = ndarrays_to_parameters(parameters_to_ndarrays(result.parameters)[:1])
            return super().aggregate_fit(number, results, failures)

    with pytest.raises(fastagg.RunFailed, match="no reply of this round could be used; ShapeMismatch"):
        run(Cuts(fastagg.FedAvg, initial_parameters=parameters(), **SETTINGS))
