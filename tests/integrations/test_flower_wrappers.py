"""Flower's rules, wrappers and mods in both of its APIs, with our strategy and with Flower's own: what clients receive,
and what comes out.

Nodes run Flower's real mods. Both runs draw the same noise, so every number is compared, round by round.
"""

import copy
import logging
import random
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import fastagg

pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.client import mod as classic_mods
from flwr.client.mod import make_ffn
from flwr.clientapp import mod as mods
from flwr.common import Code, FitRes, Status, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.compat.common import recorddict_compat as compat
from flwr.server import LegacyContext, ServerConfig
from flwr.server import strategy as classics
from flwr.server.workflow import DefaultWorkflow, SecAggPlusWorkflow, SecAggWorkflow
from flwr.serverapp import strategy as theirs
from support.flower_apps import CollectingGrid

from fastagg.integrations import flower

NODES, ROUNDS = [3, 5, 8], 4
START = {"w": np.linspace(-1, 1, 400, dtype=np.float32).reshape(20, 20), "b": np.zeros(7, np.float32)}
DONE = Status(Code.OK, "done")
THREE: dict[str, Any] = {"fraction_evaluate": 0.0, "min_fit_clients": 3, "min_available_clients": 3}


class Grid(CollectingGrid):
    """Nodes with mods. Every message is a copy, as over a network: secure aggregation's mods write to theirs.

    Attributes:
        told: of every node, what its training was given: arrays and settings.
    """

    def __init__(self, *chain: Any) -> None:
        super().__init__(self.answer, NODES)
        self.call = make_ffn(self.fit, list(chain))
        self.told: dict[int, list[tuple[list[np.ndarray], dict[str, Any]]]] = {node: [] for node in NODES}
        self.contexts = {node: SimpleNamespace(state=RecordDict()) for node in NODES}

    @property
    def run(self):
        return SimpleNamespace(run_id=1)

    def answer(self, message: Message):
        node = message.metadata.dst_node_id
        copied = Message(copy.deepcopy(message.content), node, message.metadata.message_type)
        back = self.call(copied, self.contexts[node])
        return back.error if back.has_error() else back.content

    def moved(self, node: int, arrays: list[np.ndarray], config: dict[str, Any]) -> list[np.ndarray]:
        """Towards a place of each node's own; what it does depends on what it received."""
        self.told[node].append(([array.copy() for array in arrays], dict(config)))
        moved = [0.7 * a + 0.3 * np.cos(node + np.arange(a.size)).reshape(a.shape) for a in arrays]
        return [np.asarray(a, np.float32) for a in moved]

    def fit(self, message: Message, context: Any) -> Message:
        node, record = message.metadata.dst_node_id, message.content["arrays"]
        moved = self.moved(node, [a.numpy() for a in record.values()], message.content["config"])
        metrics = MetricRecord({"num-examples": 10 * node, "loss": float(node)})
        arrays = ArrayRecord({n: Array(a) for n, a in zip(record, moved, strict=True)})
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)


class ClassicGrid(Grid):
    """Nodes of the earlier API."""

    def fit(self, message: Message, context: Any) -> Message:
        node, given = message.metadata.dst_node_id, compat.recorddict_to_fitins(message.content, True)
        moved = self.moved(node, parameters_to_ndarrays(given.parameters), given.config)
        result = FitRes(DONE, ndarrays_to_parameters(moved), 10 * node, {"dpfedavg_norm_bit": node % 2 == 0})
        return Message(compat.fitres_to_recorddict(result, True), reply_to=message)


def with_statistics(grid: type[Grid]) -> type[Grid]:
    """Nodes whose models have running statistics and, last, a counter."""

    def moved(self, node, arrays, config):
        found = [0.7 * a + 0.3 * np.abs(np.cos(node + np.arange(a.size))).reshape(a.shape) for a in arrays[:-1]]
        return [*(a.astype(np.float32) for a in found), np.asarray(arrays[-1] + 1)]

    return type("WithStatistics", (grid,), {"moved": moved})


def record(arrays: dict[str, np.ndarray]) -> ArrayRecord:
    return ArrayRecord({name: Array(np.asarray(array)) for name, array in arrays.items()})


def parameters(arrays: dict[str, np.ndarray]) -> Any:
    return ndarrays_to_parameters([array.copy() for array in arrays.values()])


class Messages:
    """The API with messages."""

    theirs, mods = theirs, mods

    @staticmethod
    def ours(make: Any = fastagg.FedAvg, kind: type = flower.SyncStrategy, **settings: Any) -> Any:
        return kind(make, fraction_evaluate=0.0, **settings)

    @staticmethod
    def flowers(name: str = "FedAvg", **settings: Any) -> Any:
        return getattr(theirs, name)(fraction_evaluate=0.0, **settings)

    @staticmethod
    def run(strategy: Any, chain: Any = (), rounds: int = ROUNDS, grid: Any = None, model: Any = START) -> Any:
        """What every client received, and the last model."""
        random.seed(7), np.random.seed(11)
        grid = grid or Grid(*chain)
        result = strategy.start(grid, record({n: a.copy() for n, a in model.items()}), num_rounds=rounds)
        return grid, [array.numpy() for array in result.arrays.values()]


class Classic:
    """The earlier API, run by Flower's own workflows."""

    theirs, mods = classics, classic_mods

    @staticmethod
    def ours(make: Any = fastagg.FedAvg, kind: type = flower.ClassicStrategy, **settings: Any) -> Any:
        return kind(make, **THREE, **settings)

    @staticmethod
    def flowers(name: str = "FedAvg", **settings: Any) -> Any:
        return getattr(classics, name)(**THREE, initial_parameters=parameters(START), **settings)

    @staticmethod
    def run(
        strategy: Any, chain: Any = (), rounds: int = ROUNDS, grid: Any = None, model: Any = START, workflow: Any = None
    ) -> Any:
        random.seed(5), np.random.seed(13)
        grid, inner = grid or ClassicGrid(*chain), strategy
        while hasattr(inner, "strategy"):  # of a wrapper
            inner = inner.strategy
        inner.initial_parameters = parameters(model)
        context = LegacyContext(
            Context(run_id=1, node_id=0, node_config={}, state=RecordDict(), run_config={}),
            ServerConfig(num_rounds=rounds), strategy,
        )  # fmt: skip
        DefaultWorkflow(fit_workflow=workflow)(grid, context)
        last = compat.arrayrecord_to_parameters(context.state.array_records["parameters"], True)
        return grid, parameters_to_ndarrays(last)


@pytest.fixture(params=[Messages, Classic], ids=lambda api: api.__name__)
def api(request: pytest.FixtureRequest) -> Any:
    return request.param


def same(mine: Any, other: Any, atol: float = 2e-5) -> None:
    """Both runs, number by number."""
    for node in NODES:
        assert len(mine[0].told[node]) == len(other[0].told[node]) == ROUNDS
        for (ours_, told), (theirs_, wanted) in zip(mine[0].told[node], other[0].told[node], strict=True):
            left = {key: value for key, value in told.items() if not key.startswith("fastagg-")}
            assert left == pytest.approx(wanted), "the same settings reach the clients"
            for a, b in zip(ours_, theirs_, strict=True):
                np.testing.assert_allclose(a, b, rtol=2e-4, atol=atol)
                assert a.dtype == np.float32
    for a, b in zip(mine[1], other[1], strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=atol)


# -- rules -------------------------------------------------------------------------------------------------------

RULES: dict[str, tuple[Any, dict[str, float]]] = {  # our rule, and what Flower calls its settings
    "FedAvg": (fastagg.FedAvg, {}),
    "FedAvgM": (partial(fastagg.FedAvgM, lr=0.5, beta=0.9), {"server_learning_rate": 0.5, "server_momentum": 0.9}),
    "FedAdagrad": (partial(fastagg.FedAdagrad, lr=0.1), {"eta": 0.1, "tau": 1e-3}),
    "FedYogi": (
        partial(fastagg.FedYogi, lr=0.1, betas=(0.9, 0.99)), {"eta": 0.1, "beta_1": 0.9, "beta_2": 0.99, "tau": 1e-3}
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", RULES)
def test_equal_settings_give_flowers_numbers(name: str, api: Any, caplog: pytest.LogCaptureFixture) -> None:
    make, other = RULES[name]
    with caplog.at_level(logging.INFO, "flwr.fastagg"):
        same(api.run(api.ours(make)), api.run(api.flowers(name, **other)))
    assert "not Flower's numbers" not in caplog.text


def test_fedadam_with_flowers_rate_gives_flowers_numbers(api: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "flwr.fastagg"):
        mine = api.run(api.ours(partial(fastagg.FedAdam, lr=0.1), lr=flower.adam_rate(0.1)))
    same(mine, api.run(api.flowers("FedAdam", eta=0.1, tau=1e-3)))
    assert "not Flower's numbers" not in caplog.text
    with pytest.raises(fastagg.ConfigError, match="lr: expected a function"):
        api.ours(fastagg.FedAdam, lr=0.1)


def test_fedadam_says_why_its_numbers_are_not_flowers(caplog: pytest.LogCaptureFixture) -> None:
    make = partial(fastagg.FedAdam, lr=0.1)
    with caplog.at_level(logging.INFO, "flwr.fastagg"):
        mine = Messages.run(Messages.ours(make), rounds=1)
    assert caplog.text.count("not Flower's numbers: its FedAdam multiplies lr by") == 1
    other = Messages.run(Messages.flowers("FedAdam", eta=0.1), rounds=1)
    factor = np.sqrt(1 - 0.99**2) / (1 - 0.9**2)
    for a, b, start in zip(mine[1], other[1], START.values(), strict=True):
        np.testing.assert_allclose((a - start) * factor, b - start, rtol=1e-3, atol=1e-6)


# -- wrappers ----------------------------------------------------------------------------------------------------

FIXED = {"noise_multiplier": 0.5, "clipping_norm": 1.5}
ADAPTIVE = {"noise_multiplier": 0.2, "initial_clipping_norm": 1.0, "clipped_count_stddev": 0.3}
WRAPPERS: dict[str, tuple[str, dict[str, float], Any]] = {
    "server-fixed": ("DifferentialPrivacyServerSideFixedClipping", FIXED, []),
    "client-fixed": ("DifferentialPrivacyClientSideFixedClipping", FIXED, ["fixedclipping_mod"]),
    "server-adaptive": ("DifferentialPrivacyServerSideAdaptiveClipping", ADAPTIVE, []),
    "client-adaptive": ("DifferentialPrivacyClientSideAdaptiveClipping", ADAPTIVE, ["adaptiveclipping_mod"]),
}


def wrapped(api: Any, name: str, strategy: Any) -> tuple[Any, Any]:
    """A strategy in a wrapper, and the mods that go with it."""
    kind, settings, chain = WRAPPERS[name]
    return getattr(api.theirs, kind)(strategy, num_sampled_clients=3, **settings), [getattr(api.mods, n) for n in chain]


@pytest.mark.parametrize("name", WRAPPERS)
def test_differential_privacy_reaches_the_clients(name: str, api: Any) -> None:
    mine, other = (api.run(*wrapped(api, name, strategy)) for strategy in (api.ours(), api.flowers()))
    same(mine, other)
    spread = [float(np.std(arrays[1])) for arrays, _ in mine[0].told[3]]
    assert spread[0] == 0 and min(spread[1:]) > 0.01


@pytest.mark.parametrize("name", [None, *WRAPPERS])
def test_batchnorm_statistics_are_flowers(name: str | None) -> None:
    """A counter is a whole number here: Flower's noise and means make it a fraction, which is rounded."""
    model = {"w": START["b"] + 1, "bn.running_mean": np.zeros(3), "bn.running_var": np.ones(3)}
    model = {name: array.astype(np.float32) for name, array in model.items()} | {"bn.num_batches_tracked": np.array(7)}
    found = []
    for strategy in (Messages.ours(), Messages.flowers()):
        strategy, chain = wrapped(Messages, name, strategy) if name else (strategy, ())
        found.append(Messages.run(strategy, rounds=3, grid=with_statistics(Grid)(*chain), model=model)[1])
    for array, mine, other in zip(model, *found, strict=True):
        np.testing.assert_allclose(mine, other, atol=0.5 if array == "bn.num_batches_tracked" else 1e-6)


def test_batchnorm_statistics_of_arrays_without_names() -> None:
    """An integer without a name is kept, and named once; Flower's mean in place makes it 0."""
    model = {"w": START["w"], "mean": np.zeros(3, np.float32), "var": np.ones(3, np.float32), "batches": np.array(7)}
    with pytest.warns(UserWarning, match="'3' are kept"):
        mine, other = (
            Classic.run(strategy, grid=with_statistics(ClassicGrid)(), model=model)[1]
            for strategy in (Classic.ours(), Classic.flowers())
        )
    for a, b in zip(mine[:3], other[:3], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6)
    assert other[3] == 0 and mine[3].dtype == np.int64 and mine[3] == 7


class Decay:
    """A subclass changes the model before it is sent, and the reply when it arrives."""

    def configure_train(self, server_round, arrays, config, grid):
        faded = record({name: array.numpy() * np.float32(0.9) for name, array in arrays.items()})
        return super().configure_train(server_round, faded, config, grid)

    def aggregate_train(self, server_round, replies):
        arrays, metrics = super().aggregate_train(server_round, replies)
        for name in list(arrays):  # in place, in the very record that was returned
            arrays[name] = Array(np.where(np.abs(arrays[name].numpy()) < 0.05, np.float32(0), arrays[name].numpy()))
        return arrays, metrics


def test_a_subclass_that_edits_the_model_is_followed() -> None:
    class Ours(Decay, flower.SyncStrategy): ...

    class Theirs(Decay, theirs.FedAvg): ...

    mine = Messages.run(Messages.ours(kind=Ours))
    same(mine, Messages.run(Theirs(fraction_evaluate=0.0)))
    assert (mine[1][0] == 0).any()


def test_moments_stay_when_the_model_is_changed() -> None:
    class Ours(Decay, flower.SyncStrategy): ...

    grid, _ = Messages.run(Messages.ours(partial(fastagg.FedAvgM, lr=1.0, beta=0.5), Ours))
    model = [array.copy() for array in START.values()]
    momentum = [np.zeros_like(array) for array in model]
    weights = np.array(NODES) / sum(NODES)
    for arrays, _ in grid.told[NODES[0]]:
        model = [array * np.float32(0.9) for array in model]
        for at, (array, sent) in enumerate(zip(model, arrays, strict=True)):
            np.testing.assert_allclose(sent, array, rtol=1e-4, atol=1e-5)
            moved = [0.7 * array + 0.3 * np.cos(k + np.arange(array.size)).reshape(array.shape) for k in NODES]
            mean = sum(w * m for w, m in zip(weights, moved, strict=True)) - array
            momentum[at] = 0.5 * momentum[at] + mean
            stepped = (array + momentum[at]).astype(np.float32)
            model[at] = np.where(np.abs(stepped) < 0.05, 0, stepped).astype(np.float32)


def test_a_model_of_another_shape_is_refused_and_nothing_has_changed() -> None:
    strategy = Messages.ours()
    grid, _ = Messages.run(strategy, rounds=1)
    before = strategy.server.flat.clone()
    other = record({"w": np.zeros((2, 2), np.float32), "b": np.zeros(7, np.float32)})
    with pytest.raises(fastagg.ShapeMismatch, match=r"'w': expected shape \[20, 20\], got \[2, 2\]"):
        strategy.configure_train(2, other, ConfigRecord(), grid)
    assert torch.equal(strategy.server.flat, before)


# -- mods --------------------------------------------------------------------------------------------------------

MODS = ("message_size_mod", "arrays_size_mod", "LocalDpMod")
CLIPPING = ("fixedclipping_mod", "adaptiveclipping_mod")


def mod_of(api: Any, name: str) -> Any:
    found = getattr(api.mods, name)
    return found(clipping_norm=2.0, sensitivity=0.1, epsilon=5.0, delta=1e-3) if name == "LocalDpMod" else found


@pytest.mark.parametrize("name", MODS)
def test_mods_in_rounds(name: str, api: Any) -> None:
    same(*(api.run(strategy, [mod_of(api, name)]) for strategy in (api.ours(), api.flowers())))


@pytest.mark.parametrize("name", CLIPPING)
def test_clipping_mods_by_the_users_own_settings(name: str, api: Any) -> None:
    told: dict[str, Any] = {"clipping_norm": 0.5}
    mod = mod_of(api, name)

    def clipped(make: Any) -> Any:
        if api is Classic:
            return api.run(make(on_fit_config_fn=lambda number: told), [mod])
        strategy = make()
        strategy.start = partial(strategy.start, train_config=ConfigRecord(told))
        return api.run(strategy, [mod])

    same(clipped(api.ours), clipped(api.flowers))


@pytest.mark.parametrize(
    ("workflow", "mod"),
    [
        (partial(SecAggPlusWorkflow, num_shares=3, reconstruction_threshold=2), classic_mods.secaggplus_mod),
        (partial(SecAggWorkflow, reconstruction_threshold=2), classic_mods.secagg_mod),
    ],
    ids=["SecAgg+", "SecAgg"],
)
@pytest.mark.parametrize("rule", ["FedAvg", "FedAvgM"])
def test_secure_aggregation(workflow: Any, mod: Any, rule: str, caplog: pytest.LogCaptureFixture) -> None:
    """The workflow hands every client's result over with the mean in it; the quantisation is its own."""
    make, settings = RULES[rule]
    with caplog.at_level(logging.WARNING, "flwr.fastagg"):
        mine = Classic.run(Classic.ours(make), [mod], workflow=workflow())
    same(mine, Classic.run(Classic.flowers(rule, **settings), [mod], workflow=workflow()), atol=1e-4)
    assert "dropped" not in caplog.text
    assert np.abs(mine[0].told[3][1][0][0] - START["w"]).max() > 0.05, "the model moved"


@pytest.mark.parametrize("name", [*MODS, *CLIPPING])
def test_mods_under_an_asynchronous_rule(name: str) -> None:
    """The mods run at the clients of AsyncStrategy; the clipping ones take their norm from train_config."""
    norms = []
    strategy = flower.AsyncStrategy(
        partial(fastagg.FedBuff, buffer_size=1), retry_after=0,
        on_version=lambda version, metrics, model: norms.append({n: a.clone() for n, a in model.items()}),
    )  # fmt: skip
    strategy.start(
        Grid(mod_of(Messages, name)), record(START), num_rounds=5, train_config=ConfigRecord({"clipping_norm": 0.5})
    )
    assert strategy.server.version == 5 and not strategy.session.tally.refused and not strategy.session.tally.failed
    if name in CLIPPING:
        first = torch.cat([(norms[1][n] - norms[0][n]).reshape(-1) for n in norms[0]]).norm()
        assert float(first) == pytest.approx(0.5, rel=1e-3), "the update was clipped at the client"


# -- around AsyncStrategy ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", WRAPPERS)
def test_a_wrapper_around_an_asynchronous_strategy_is_refused(name: str) -> None:
    strategy = flower.AsyncStrategy(partial(fastagg.FADAS, lr=0.1))
    grid = Grid()
    with pytest.raises(fastagg.ConfigError, match=r"configure_train: AsyncStrategy has no rounds.*Wrap SyncStrategy"):
        wrapped(Messages, name, strategy)[0].start(grid, record(START), num_rounds=2)
    assert not any(grid.told.values()) and strategy.session is None


def test_a_subclass_of_an_asynchronous_strategy_that_would_be_ignored_is_refused() -> None:
    class Mine(flower.AsyncStrategy):
        def configure_train(self, server_round, arrays, config, grid):
            return []

    with pytest.raises(fastagg.ConfigError, match="configure_train: AsyncStrategy has no rounds"):
        Mine(partial(fastagg.FADAS, lr=0.1)).start(Grid(), record(START), num_rounds=1)


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


def test_a_server_of_the_other_kind_names_the_other_strategy() -> None:
    server = fastagg.FADAS({n: torch.from_numpy(a.copy()) for n, a in START.items()}, lr=0.1)
    with pytest.raises(fastagg.ConfigError, match="AsyncStrategy runs it"):
        Messages.run(Messages.ours(server))


# -- what public apps of the earlier API do in a subclass; of the other in test_flower_shapes.py -----------------------


class Filters:
    def aggregate_fit(self, number, results, failures):
        return super().aggregate_fit(number, [pair for pair in results if pair[1].num_examples > 30], failures)


class Clusters:
    def aggregate_fit(self, number, results, failures):
        fold, results = super().aggregate_fit, sorted(results, key=lambda pair: pair[1].num_examples)
        halves = [parameters_to_ndarrays(fold(number, half, [])[0]) for half in (results[:1], results[1:])]
        return ndarrays_to_parameters([(a + b) / 2 for a, b in zip(*halves, strict=True)]), {}


class Fades:
    def configure_fit(self, server_round, parameters, client_manager):
        faded = [array * np.float32(0.9) for array in parameters_to_ndarrays(parameters)]
        return super().configure_fit(server_round, ndarrays_to_parameters(faded), client_manager)


@pytest.mark.parametrize("mixin", [Filters, Clusters, Fades])
def test_a_classic_subclass_gives_flowers_numbers(mixin: type) -> None:
    mine, other = (type("Strategy", (mixin, base), {}) for base in (flower.ClassicStrategy, classics.FedAvg))
    same(Classic.run(Classic.ours(kind=mine)), Classic.run(other(**THREE)))


def test_a_subclass_that_no_reply_fits_is_refused() -> None:
    class Cuts(flower.ClassicStrategy):
        def aggregate_fit(self, number, results, failures):
            for _, result in results:
                result.parameters = ndarrays_to_parameters(parameters_to_ndarrays(result.parameters)[:1])
            return super().aggregate_fit(number, results, failures)

    with pytest.raises(fastagg.RunFailed, match="no reply of this round could be used; ShapeMismatch"):
        Classic.run(Classic.ours(kind=Cuts))
