"""Flower's wrappers, mods and rules, with our strategy and with Flower's own: what clients receive, and what comes out.

Nodes run Flower's real mods. Both runs draw the same noise, so every number is compared, round by round.
"""

from __future__ import annotations

import logging
import random
from functools import partial

import numpy as np
import pytest
import torch

import fastagg

pytest.importorskip("flwr")

from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.client.mod import make_ffn
from flwr.clientapp import mod as mods
from flwr.serverapp import strategy as theirs
from support.flower_apps import FakeGrid

from fastagg.integrations import flower

NODES, ROUNDS = [3, 5, 8], 4
START = {"w": np.linspace(-1, 1, 400, dtype=np.float32).reshape(20, 20), "b": np.zeros(7, np.float32)}


class Grid(FakeGrid):
    """Nodes with mods; for Flower's strategies and ours."""

    def __init__(self, nodes: list[int], *chain) -> None:
        super().__init__(self.answer, nodes)
        self.call = make_ffn(self.fit, list(chain))
        self.received: list[dict[str, np.ndarray]] = []  # by training message, in the order of rounds and nodes
        self.configs: list[dict] = []

    def answer(self, message: Message):
        if message.metadata.message_type != "train":
            return RecordDict({"metrics": MetricRecord({"num-examples": 1})})
        self.received.append({name: array.numpy() for name, array in message.content["arrays"].items()})
        self.configs.append(dict(message.content["config"]))
        back = self.call(message, None)
        return back.error if back.has_error() else back.content

    @staticmethod
    def fit(message: Message, context) -> Message:
        """Towards a place of each node's own; what it does depends on what it received."""
        node = message.metadata.dst_node_id
        arrays = {n: a.numpy() for n, a in message.content["arrays"].items()}
        arrays = {n: (0.7 * a + 0.3 * np.cos(node + np.arange(a.size)).reshape(a.shape)) for n, a in arrays.items()}
        record = ArrayRecord({n: _array(a) for n, a in arrays.items()})
        metrics = MetricRecord({"num-examples": 10 * node, "loss": float(node)})
        return Message(RecordDict({"arrays": record, "metrics": metrics}), reply_to=message)

    def send_and_receive(self, messages, *, timeout=None):
        return self.pull_messages(self.push_messages(messages))


def _array(values: np.ndarray):
    from flwr.app import Array

    return Array(np.asarray(values, np.float32))


def start() -> ArrayRecord:
    return ArrayRecord({name: _array(array.copy()) for name, array in START.items()})


def run(strategy, chain=(), rounds: int = ROUNDS):
    """What every client received, and the last model."""
    random.seed(7)
    np.random.seed(11)
    grid = Grid(NODES, *chain)
    result = strategy.start(grid, start(), num_rounds=rounds)
    assert len(grid.received) == rounds * len(NODES)
    return grid, {name: array.numpy() for name, array in result.arrays.items()}


def same(ours, flowers, rtol: float = 2e-4, atol: float = 2e-5, drifts: bool = False) -> None:
    """Both runs, number by number."""
    for mine, other in zip(ours[0].received, flowers[0].received, strict=True):
        for name in other:
            np.testing.assert_allclose(mine[name], other[name], rtol=rtol, atol=atol)
            assert drifts or mine[name].dtype == other[name].dtype
            assert mine[name].dtype == START[name].dtype
    for name, array in flowers[1].items():
        np.testing.assert_allclose(ours[1][name], array, rtol=rtol, atol=atol)
    for mine, other in zip(ours[0].configs, flowers[0].configs, strict=True):
        left = {key: value for key, value in mine.items() if not key.startswith("fastagg-")}
        assert left == pytest.approx(other), "the same settings reach the clients"


def ours(make=fastagg.FedAvg, **settings) -> flower.SyncStrategy:
    return flower.SyncStrategy(make, poll=0, fraction_evaluate=0.0, **settings)


def flowers(kind=theirs.FedAvg, **settings):
    return kind(fraction_evaluate=0.0, **settings)


# -- rules -------------------------------------------------------------------------------------------------------

RULES = {
    "FedAvg": (fastagg.FedAvg, partial(flowers)),
    "FedAvgM": (partial(fastagg.FedAvgM, lr=0.5, beta=0.9),
                partial(flowers, theirs.FedAvgM, server_learning_rate=0.5, server_momentum=0.9)),
    "FedAdagrad": (partial(fastagg.FedAdagrad, lr=0.1), partial(flowers, theirs.FedAdagrad, eta=0.1, tau=1e-3)),
    "FedYogi": (partial(fastagg.FedYogi, lr=0.1, betas=(0.9, 0.99)),
                partial(flowers, theirs.FedYogi, eta=0.1, beta_1=0.9, beta_2=0.99, tau=1e-3)),
}  # fmt: skip


@pytest.mark.parametrize("name", RULES)
def test_equal_settings_give_flowers_numbers(name: str, caplog: pytest.LogCaptureFixture) -> None:
    make, other = RULES[name]
    with caplog.at_level(logging.INFO, "flwr.fastagg"):
        same(run(ours(make)), run(other()))
    assert "not Flower's numbers" not in caplog.text


def test_fedadam_with_flowers_rate_gives_flowers_numbers(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "flwr.fastagg"):
        mine = run(ours(partial(fastagg.FedAdam, lr=0.1), lr=flower.adam_rate(0.1)))
    same(mine, run(flowers(theirs.FedAdam, eta=0.1)), drifts=True)  # Flower's own becomes float64 on the way
    assert "not Flower's numbers" not in caplog.text
    with pytest.raises(fastagg.ConfigError, match="lr: expected a function"):
        ours(fastagg.FedAdam, lr=0.1)


def test_fedadam_says_why_its_numbers_are_not_flowers(caplog: pytest.LogCaptureFixture) -> None:
    make = partial(fastagg.FedAdam, lr=0.1)
    with caplog.at_level(logging.INFO, "flwr.fastagg"):
        mine = run(ours(make), rounds=1)
    assert caplog.text.count("not Flower's numbers: its FedAdam multiplies lr by") == 1
    other = run(flowers(theirs.FedAdam, eta=0.1), rounds=1)
    factor = np.sqrt(1 - 0.99**2) / (1 - 0.9**2)
    for name in START:
        np.testing.assert_allclose(
            (mine[1][name] - START[name]) * factor, other[1][name] - START[name], rtol=1e-3, atol=1e-6
        )


def test_fedprox_sends_its_mu() -> None:
    same(run(ours(fastagg.FedProx, proximal_mu=0.3)), run(flowers(theirs.FedProx, proximal_mu=0.3)))


def test_uniform_weights_are_named(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "flwr.fastagg"):
        run(ours(partial(fastagg.FedAdam, lr=0.1, weighting="uniform")), rounds=1)
    assert "weighting='uniform', where Flower weighs" in caplog.text


# -- wrappers ----------------------------------------------------------------------------------------------------

WRAPPERS = {
    "server-fixed": (
        partial(theirs.DifferentialPrivacyServerSideFixedClipping, noise_multiplier=0.5, clipping_norm=1.5,
                num_sampled_clients=3), ()),
    "client-fixed": (
        partial(theirs.DifferentialPrivacyClientSideFixedClipping, noise_multiplier=0.5, clipping_norm=1.5,
                num_sampled_clients=3), (mods.fixedclipping_mod,)),
    "server-adaptive": (
        partial(theirs.DifferentialPrivacyServerSideAdaptiveClipping, noise_multiplier=0.2, num_sampled_clients=3,
                initial_clipping_norm=1.0, clipped_count_stddev=0.3), ()),
    "client-adaptive": (
        partial(theirs.DifferentialPrivacyClientSideAdaptiveClipping, noise_multiplier=0.2, num_sampled_clients=3,
                initial_clipping_norm=1.0, clipped_count_stddev=0.3), (mods.adaptiveclipping_mod,)),
}  # fmt: skip


@pytest.mark.parametrize("name", WRAPPERS)
def test_differential_privacy_reaches_the_clients(name: str) -> None:
    wrap, chain = WRAPPERS[name]
    mine, other = run(wrap(ours()), chain), run(wrap(flowers()), chain)
    same(mine, other)
    spread = [float(np.std(received["b"] - START["b"])) for received in mine[0].received[:: len(NODES)]]
    assert spread[0] == 0 and all(s > 0.01 for s in spread[1:])


class BatchNorm(Grid):
    """Nodes whose models have running statistics and a counter."""

    @staticmethod
    def fit(message, context):
        node, moved = message.metadata.dst_node_id, {}
        for name, array in ((n, a.numpy()) for n, a in message.content["arrays"].items()):
            moved[name] = 0.7 * array + 0.3 * np.abs(np.cos(node + np.arange(array.size))).reshape(array.shape)
            moved[name] = array + 1 if name == "batches" else moved[name].astype(np.float32)
        metrics = MetricRecord({"num-examples": 10 * node, "loss": 0.0})
        return Message(RecordDict({"arrays": ArrayRecord(list_of(moved)), "metrics": metrics}), reply_to=message)


def list_of(arrays):
    from flwr.app import Array

    return {name: Array(np.asarray(array)) for name, array in arrays.items()}


@pytest.mark.parametrize("name", [None, *WRAPPERS])
def test_batchnorm_statistics_are_flowers(name: str | None) -> None:
    """A counter is a whole number here: Flower's noise and means make it a fraction, which is rounded."""
    wrap, chain = WRAPPERS[name] if name else ((lambda strategy: strategy), ())
    model = {"w": START["b"] + 1, "bn.running_mean": np.zeros(3), "bn.running_var": np.ones(3)}
    model = {name: array.astype(np.float32) for name, array in model.items()} | {"batches": np.array(7)}
    found = []
    for strategy in (ours(), flowers()):
        random.seed(7), np.random.seed(11)
        result = wrap(strategy).start(BatchNorm(NODES, *chain), ArrayRecord(list_of(model)), num_rounds=3)
        found.append({name: array.numpy() for name, array in result.arrays.items()})
    for array, theirs_ in found[1].items():
        np.testing.assert_allclose(found[0][array], theirs_, atol=0.5 if array == "batches" else 1e-6)


class Decay:
    """A subclass changes the model before it is sent, and the reply when it arrives."""

    def configure_train(self, server_round, arrays, config, grid):
        faded = ArrayRecord({name: _array(array.numpy() * np.float32(0.9)) for name, array in arrays.items()})
        return super().configure_train(server_round, faded, config, grid)

    def aggregate_train(self, server_round, replies):
        arrays, metrics = super().aggregate_train(server_round, replies)
        for name in list(arrays):  # in place, in the very record that was returned
            arrays[name] = _array(np.where(np.abs(arrays[name].numpy()) < 0.05, 0, arrays[name].numpy()))
        return arrays, metrics


def test_a_subclass_that_edits_the_model_is_followed() -> None:
    class Ours(Decay, flower.SyncStrategy): ...

    class Theirs(Decay, theirs.FedAvg): ...

    mine = run(Ours(fastagg.FedAvg, poll=0, fraction_evaluate=0.0))
    same(mine, run(Theirs(fraction_evaluate=0.0)))
    assert (mine[1]["w"] == 0).any()


def test_moments_stay_when_the_model_is_changed() -> None:
    class Ours(Decay, flower.SyncStrategy): ...

    strategy = Ours(partial(fastagg.FedAvgM, lr=1.0, beta=0.5), poll=0, fraction_evaluate=0.0)
    grid, _ = run(strategy)
    model, momentum = {n: a.copy() for n, a in START.items()}, {n: np.zeros_like(a) for n, a in START.items()}
    weights = np.array(NODES) / sum(NODES)
    for number in range(ROUNDS):
        model = {n: a * np.float32(0.9) for n, a in model.items()}
        for name, array in grid.received[number * len(NODES)].items():
            np.testing.assert_allclose(array, model[name], rtol=1e-4, atol=1e-5)
        for name, array in model.items():
            moved = [0.7 * array + 0.3 * np.cos(k + np.arange(array.size)).reshape(array.shape) for k in NODES]
            mean = sum(w * m for w, m in zip(weights, moved, strict=True)) - array
            momentum[name] = 0.5 * momentum[name] + mean
            model[name] = (array + momentum[name]).astype(np.float32)
            model[name] = np.where(np.abs(model[name]) < 0.05, 0, model[name]).astype(np.float32)


def test_a_model_of_another_shape_is_refused_and_nothing_has_changed() -> None:
    strategy = ours()
    grid = Grid(NODES)
    strategy.start(grid, start(), num_rounds=1)
    before = strategy.server.flat.clone()
    other = ArrayRecord({"w": _array(np.zeros((2, 2))), "b": _array(np.zeros(7))})
    with pytest.raises(fastagg.ShapeMismatch, match=r"'w': expected shape \[20, 20\], got \[2, 2\]"):
        strategy.configure_train(2, other, fastagg_config(), grid)
    assert torch.equal(strategy.server.flat, before)


def fastagg_config(**settings):
    from flwr.app import ConfigRecord

    return ConfigRecord(settings)


def test_flowers_accountant_takes_no_strategy_but_its_own() -> None:
    accounting = pytest.importorskip("flwr.serverapp.strategy.dp_fixed_clipping")
    from unittest.mock import Mock

    accountant = Mock()
    accountant.config.sampling_method = accounting.SamplingMethod.NO_AMPLIFICATION
    with pytest.raises(ValueError, match=r"requires a strategy using FedAvg.aggregate_train"):
        theirs.DifferentialPrivacyServerSideFixedClipping(ours(), 0.5, 1.0, 3, accountant=accountant)


# -- mods --------------------------------------------------------------------------------------------------------

MODS = {
    "message_size_mod": mods.message_size_mod,
    "arrays_size_mod": mods.arrays_size_mod,
    "LocalDpMod": mods.LocalDpMod(clipping_norm=2.0, sensitivity=0.1, epsilon=5.0, delta=1e-3),
}


@pytest.mark.parametrize("name", MODS)
def test_mods_in_rounds(name: str) -> None:
    same(run(ours(), [MODS[name]]), run(flowers(), [MODS[name]]))


@pytest.mark.parametrize("mod", [mods.fixedclipping_mod, mods.adaptiveclipping_mod])
def test_clipping_mods_by_the_users_own_settings(mod) -> None:
    def clipped(strategy):
        start_ = strategy.start
        strategy.start = lambda *args, **more: start_(*args, train_config=fastagg_config(clipping_norm=0.5), **more)
        return run(strategy, [mod])

    same(clipped(ours()), clipped(flowers()))


def test_the_control_variate_is_a_second_record_that_clipping_mods_refuse() -> None:
    strategy = flower.AsyncStrategy(partial(fastagg.FedAC, lr=0.1, buffer_size=2), poll=0, retry_after=0)
    with pytest.raises(fastagg.RunFailed, match="fixedclipping_mod expects exactly one ArrayRecord, but found 2"):
        strategy.start(Grid(NODES, mods.fixedclipping_mod), start(), num_rounds=2)


@pytest.mark.parametrize("name", [*MODS, "fixedclipping_mod", "adaptiveclipping_mod"])
def test_mods_under_an_asynchronous_rule(name: str) -> None:
    """The mods run at the clients of AsyncStrategy; the clipping ones take their norm from train_config."""
    from flwr.app import ConfigRecord

    chain = MODS[name] if name in MODS else getattr(mods, name)
    grid = Grid(NODES, chain)
    norms = []
    strategy = flower.AsyncStrategy(
        partial(fastagg.FedBuff, buffer_size=1), poll=0, retry_after=0,
        on_version=lambda version, metrics, model: norms.append({n: a.clone() for n, a in model.items()}),
    )  # fmt: skip
    strategy.start(grid, start(), num_rounds=5, train_config=ConfigRecord({"clipping_norm": 0.5}))
    assert strategy.server.version == 5 and not strategy.session.tally.refused and not strategy.session.tally.failed
    if name in ("fixedclipping_mod", "adaptiveclipping_mod"):
        first = torch.cat([(norms[1][n] - norms[0][n]).reshape(-1) for n in norms[0]]).norm()
        assert float(first) == pytest.approx(0.5, rel=1e-3), "the update was clipped at the client"


# -- around AsyncStrategy ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", WRAPPERS)
def test_a_wrapper_around_an_asynchronous_strategy_is_refused(name: str) -> None:
    strategy = flower.AsyncStrategy(partial(fastagg.FADAS, lr=0.1), poll=0)
    grid = Grid(NODES)
    with pytest.raises(fastagg.ConfigError, match=r"configure_train: AsyncStrategy has no rounds.*Wrap SyncStrategy"):
        WRAPPERS[name][0](strategy).start(grid, start(), num_rounds=2)
    assert not grid.received and strategy.updates == 0


def test_a_subclass_of_an_asynchronous_strategy_that_would_be_ignored_is_refused() -> None:
    class Mine(flower.AsyncStrategy):
        def configure_train(self, server_round, arrays, config, grid):
            return []

    with pytest.raises(fastagg.ConfigError, match="configure_train: AsyncStrategy has no rounds"):
        Mine(partial(fastagg.FADAS, lr=0.1)).start(Grid(NODES), start(), num_rounds=1)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"fraction_train": 0.5}, "fraction_train: there are no rounds.*concurrency"),
        ({"min_train_nodes": 3}, "min_train_nodes: .*min_available_nodes"),
        ({"fraction_evaluate": 0.5}, "fraction_evaluate: clients do not evaluate"),
        ({"min_evaluate_nodes": 3}, "min_evaluate_nodes: clients do not evaluate"),
        ({"fraction_trian": 0.5}, "unknown setting 'fraction_trian'"),
    ],
)
def test_what_an_asynchronous_strategy_would_ignore_raises(settings: dict, words: str) -> None:
    with pytest.raises(fastagg.ConfigError, match=words):
        flower.AsyncStrategy(partial(fastagg.FADAS, lr=0.1), **settings)


def test_each_kind_of_rule_names_the_other_strategy() -> None:
    with pytest.raises(fastagg.ConfigError, match="FADAS, which has none: AsyncStrategy runs it"):
        run(ours(partial(fastagg.FADAS, lr=0.1)))
    with pytest.raises(fastagg.ConfigError, match="FedAMS is a synchronous rule; SyncStrategy runs those"):
        flower.AsyncStrategy(fastagg.FedAMS).start(Grid(NODES), start(), num_rounds=1)
    server = fastagg.FADAS({n: torch.from_numpy(a.copy()) for n, a in START.items()}, lr=0.1)
    with pytest.raises(fastagg.ConfigError, match="AsyncStrategy runs it"):
        run(ours(server))
