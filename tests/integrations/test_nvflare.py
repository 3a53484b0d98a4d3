"""NVIDIA FLARE 2.9: aggregator and traffic by themselves, then real jobs in its simulator on real digits."""

import gc
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("nvflare")
pytest.importorskip("sklearn")

import numpy as np
from nvflare.apis.dxo import DXO, DataKind
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_constant import FLContextKey, ReservedKey
from nvflare.apis.fl_context import FLContext
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.abstract.model import make_model_learnable
from nvflare.app_common.aggregators.weighted_aggregation_helper import WeightedAggregationHelper
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.app_event_type import AppEventType
from nvflare.app_common.workflows.fedavg import FedAvg
from nvflare.app_opt.pt.fedopt import PTFedOptModelShareableGenerator
from nvflare.edge.assessors.buff_model_manager import BuffModelManager
from nvflare.edge.mud import ModelUpdate
from support.models import same
from support.replay import play

import fastagg
from fastagg._build import native
from fastagg.integrations.goals import Settings
from fastagg.integrations.nvflare import Aggregator, AsyncController, Traffic
from fastagg.integrations.run import FLARE, AdapterRun, Rule
from fastagg.sim.data import digits

HERE = Path(__file__).parent
EXAMPLE = HERE.parents[1] / "examples" / "nvflare"
MODEL = {"w": np.zeros((3, 2), np.float32), "bn.running_mean": np.zeros(3, np.float32)}
MODEL["bn.num_batches_tracked"] = np.array(4)


@np.errstate(invalid="ignore")
def reply(
    client: str, number: int | None, value: float = 1.0, steps: float | None = 1, full: bool = True, **params: Any
) -> FLModel:
    """What ``client`` answers to task ``number``: every array the model's and ``value``, or only the difference."""
    arrays = {k: np.asarray((v if full else 0 * v) + value, v.dtype) for k, v in MODEL.items()}
    meta = {"client_name": client} if steps is None else {"client_name": client, "NUM_STEPS_CURRENT_ROUND": steps}
    kind = ParamsType.FULL if full else ParamsType.DIFF
    return FLModel(kind, {**arrays, **params}, current_round=number, meta=meta)


def begun(number: int = 0, clients: str = "abc", **arguments: Any) -> Aggregator:
    aggregator = Aggregator("FedAvg", **arguments)
    aggregator.said = []  # type: ignore[attr-defined]
    aggregator._traffic.run.log = aggregator._traffic.run.warn = aggregator.said.append  # type: ignore[attr-defined]
    for client in clients:
        aggregator.sent(client, FLModel(ParamsType.FULL, MODEL, current_round=number))
    return aggregator


@pytest.mark.parametrize("full", [True, False])
def test_a_round_of_those_who_answered(full: bool) -> None:
    aggregator = begun()
    aggregator.accept_model(reply("a", 0, 1.0, None, full))  # weighs one, as in FLARE
    aggregator.accept_model(reply("c", 0, 4.0, 2, full))  # b never answers
    result = aggregator.aggregate_model()
    assert result.params_type == ParamsType.FULL
    assert np.allclose(result.params["w"], 3.0) and result.params["w"].dtype == np.float32
    assert np.allclose(result.params["bn.running_mean"], 3.0)
    assert result.params["bn.num_batches_tracked"] == 8 and result.params["bn.num_batches_tracked"].dtype == np.int64
    assert any("client b: task 0 was not answered" in line for line in aggregator.said)
    assert any("client a: its replies have no NUM_STEPS_CURRENT_ROUND: each counts as 1" in s for s in aggregator.said)
    with pytest.raises(ValueError):  # the server's own memory
        result.params["w"][:] = 0
    for client in "abc":  # the next round starts from the result
        aggregator.sent(client, FLModel(ParamsType.FULL, result.params, current_round=1))
    with pytest.raises(fastagg.UnknownVersion):
        aggregator.accept_model(reply("b", 0))
    aggregator.accept_model(reply("b", 1, 0.5, full=False))
    assert np.allclose(aggregator.aggregate_model().params["w"], 3.5)
    assert np.allclose(result.params["w"], 3.0)  # what FLARE holds does not change


BAD: dict[str, tuple[FLModel, type[Exception], str]] = {
    "twice": (reply("a", 0), fastagg.UnknownVersion, "a reply to task 0 came, but it owes none"),
    "another round": (reply("b", 7), fastagg.UnknownVersion, r"a reply to task 7 came, but it owes \[0\]"),
    "no round": (reply("b", None), fastagg.UnknownVersion, "task None"),
    "stranger": (reply("z", 0), fastagg.UnknownVersion, "owes none"),
}


@pytest.mark.parametrize("what", BAD)
def test_a_bad_reply_changes_nothing_and_is_logged(what: str) -> None:
    bad, error, words = BAD[what]
    aggregator = begun()
    aggregator.accept_model(reply("a", 0, 1.0))
    with pytest.raises(error, match=words):
        aggregator.accept_model(bad)
    assert re.search(f"client {bad.meta['client_name']}: refused: .*{words}", aggregator.said[-1])
    aggregator.accept_model(reply("c", 0, 2.0))
    assert np.allclose(aggregator.aggregate_model().params["w"], 1.5)


def test_with_one_at_a_time_the_sum_stays_where_it_is() -> None:
    """Also in the next round, and after FLARE has changed the model: there is no second sum."""
    for at_once in (1, 2):
        aggregator = Aggregator("FedAvg", at_once=at_once)
        for number in range(3):
            model = {"w": np.full(50_000, float(number), np.float32)}
            places = set()
            for client in "abcdefgh":
                aggregator.sent(client, FLModel(ParamsType.FULL, model, current_round=number))
            for client in "abcdefgh":
                answer = FLModel(ParamsType.FULL, {"w": model["w"] + 1}, current_round=number)
                answer.meta["client_name"] = client
                aggregator.accept_model(answer)
                held = aggregator._traffic.server.state_dict(copy=False)["direction"]["acc"]
                places |= set() if held is None else {held.data_ptr()}
            assert (len(places) == 1) == (at_once == 1)  # with two at a time a new sum lies elsewhere than the old one
            assert np.all(aggregator.aggregate_model().params["w"] == number + 1)


@pytest.mark.parametrize("full", [True, False])
def test_a_reply_that_is_not_finite_leaves_those_beside_it(full: bool) -> None:
    """Wherever it is among those that are added in one pass. Replies are freed when they have been added."""
    for bad in range(6):
        found = []
        for at_once, lean in ((1, True), (1, False), (3, True), (3, False), (4, False)):
            aggregator, alive = begun(clients="abcdef", at_once=at_once), list[weakref.ref[np.ndarray]]()
            aggregator._traffic.lean = lean
            for i, client in enumerate("abcdef"):
                answer = reply(client, 0, 0.1 * i, full=full)
                answer.metrics = {"accuracy": float(i)}
                if i == bad:
                    answer.params["w"][2, 1] = np.nan
                alive.append(weakref.ref(answer.params["w"]))
                if i == bad and (i + 1) % at_once == 0:  # it is added now
                    with pytest.raises(fastagg.NonFiniteUpdate, match="'w'"):
                        aggregator.accept_model(answer)
                    gc.collect()  # the error's frames
                else:
                    aggregator.accept_model(answer)
                del answer
                assert sum(array() is not None for array in alive) == (i + 1) % at_once
            result = aggregator.aggregate_model()
            refused = f"client {'abcdef'[bad]}: refused: update: NaN or infinity in 'w'"
            assert [refused in line for line in aggregator.said if "refused" in line] == [True]
            counted = [i for i in range(6) if i != bad]
            assert np.allclose(result.params["w"], 0.1 * np.mean(counted)) and not any(array() for array in alive)
            assert result.metrics == {"accuracy": pytest.approx(np.mean(counted))}
            found.append(result.params["w"])
        assert all(np.array_equal(found[0], other) for other in found)


@pytest.mark.parametrize("at_once", [1, 2])
def test_without_memory_a_reply_waits_and_counts_once(at_once: int) -> None:
    """Wherever memory runs out while it is added: the sum is as it was."""
    for at in range(100):
        aggregator = begun(at_once=at_once)
        for client, value in zip("ab", (1.0, 2.0), strict=True):
            aggregator.accept_model(reply(client, 0, value))
        before = aggregator._traffic.server.state_dict()["direction"]
        native.memory.fail_after(at)
        try:
            aggregator.accept_model(reply("c", 0, 6.0))
            aggregator._add()
            break
        except MemoryError:
            assert same(aggregator._traffic.server.state_dict()["direction"], before)
        finally:
            native.memory.fail_after(-1)
        assert np.allclose(aggregator.aggregate_model().params["w"], 3.0)
    assert at > 0


def test_replies_from_many_threads_and_from_the_disk(tmp_path: Path) -> None:
    """As FLARE's ``enable_tensor_disk_offload`` has them: references to files."""
    from nvflare.app_opt.pt.lazy_tensor_dict import LazyTensorDict
    from safetensors.torch import save_file

    names, aggregator = [f"site-{n}" for n in range(24)], Aggregator("FedAvg")
    model = {"w": torch.zeros(5000), "b": torch.zeros(3)}
    for name in names:
        aggregator.sent(name, FLModel(ParamsType.FULL, model, current_round=0))

    def arrive(number: int) -> None:
        file = str(tmp_path / f"{number}.safetensors")
        save_file({name: value + number for name, value in model.items()}, file)
        folder = tmp_path / f"{number}"
        folder.mkdir()
        kept = LazyTensorDict({name: (file, name) for name in model}, str(folder))
        params = {name: kept.make_lazy_ref(name) for name in model}
        meta = {"client_name": names[number]}
        aggregator.accept_model(FLModel(ParamsType.FULL, params, current_round=0, meta=meta))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(arrive, range(24)))
    result = aggregator.aggregate_model().params
    assert all(torch.allclose(result[name], torch.tensor(11.5)) for name in model)
    assert len(aggregator._traffic.session.tally.by_client) == 24 and not list(tmp_path.glob("[0-9]/"))


@pytest.mark.parametrize(
    ("said", "mean"), [(None, None), ({}, {"loss": 0.6}), ({"loss": 0.2, "tags": ["a"]}, {"loss": 0.4})]
)
def test_a_rounds_metrics_are_flares(said: dict[str, Any] | None, mean: dict[str, float] | None) -> None:
    """A client that measured nothing leaves its round without metrics; what has no mean is left out and named once."""
    aggregator, warned = begun(clients="ab"), list[str]()
    aggregator.warning = warned.append
    for _ in range(2):
        theirs = FedAvg(num_clients=2)
        theirs.current_round, theirs._expected_count, theirs._received_count, theirs._params_type = 0, 2, 0, None
        theirs._aggr_helper, theirs._aggr_metrics_helper = WeightedAggregationHelper(), WeightedAggregationHelper()
        theirs._all_metrics = True
        for client, metrics in (("a", said), ("b", {"loss": 0.6})):
            aggregator.sent(client, FLModel(ParamsType.FULL, MODEL, current_round=0))
            for taker in (theirs._aggregate_one_result, aggregator.accept_model):
                answer = reply(client, 0)
                answer.metrics = metrics
                taker(answer)
        assert theirs._get_aggregated_result().metrics == aggregator.aggregate_model().metrics == pytest.approx(mean)
    assert sum("'tags' is a list" in line for line in warned) == (said is not None and "tags" in said)


FEDOPT = {  # torch's optimizer in FLARE's FedOpt, and our preset
    "FedAvg": (("SGD", {"lr": 1.0}), {}),
    "FedProx": (("SGD", {"lr": 0.5}), {"lr": 0.5}),
    "FedAvgM": (("SGD", {"lr": 0.3, "momentum": 0.8}), {"lr": 0.3, "beta": 0.8}),
    "FedAdam": (("Adam", {"lr": 0.1}), {"lr": 0.1, "betas": (0.9, 0.999), "eps": 1e-8, "bias_correction": True}),
    "FedAMS": (("Adam", {"lr": 0.1, "amsgrad": True}), {"lr": 0.1, "betas": (0.9, 0.999), "bias_correction": True}),
    "FedAdagrad": (("Adagrad", {"lr": 0.1}), {"lr": 0.1, "eps": 1e-10}),
}


@pytest.mark.parametrize("full", [True, False])
@pytest.mark.parametrize("algorithm", FEDOPT)
def test_rounds_beside_flares_own_fedopt(algorithm: str, full: bool) -> None:
    """FLARE's mean by steps and its server step, after every round, under each preset's default."""
    (name, args), settings = FEDOPT[algorithm]
    net, draw = torch.nn.Linear(4, 3), torch.Generator().manual_seed(0)
    ours, model = Aggregator(algorithm, settings), {k: v.clone() for k, v in net.state_dict().items()}
    own = PTFedOptModelShareableGenerator({"path": f"torch.optim.{name}", "args": dict(args)}, None, net, "cpu")
    context = SimpleNamespace(get_engine=lambda: SimpleNamespace(build_component=built))
    own.handle_event(EventType.START_RUN, context)
    for number, steps in enumerate(((1, 99), (5, None), (0.5, 3), (None, None))):
        mean = WeightedAggregationHelper()
        for client, weight in zip("ab", steps, strict=True):
            ours.sent(client, FLModel(ParamsType.FULL, dict(model), current_round=number))
            change = {k: torch.rand(v.shape, generator=draw) - 0.3 for k, v in model.items()}
            mean.add({k: v.numpy() for k, v in change.items()}, 1.0 if weight is None else weight, client, number)
            sent = {k: model[k] + v if full else v for k, v in change.items()}
            meta = {"client_name": client} | ({} if weight is None else {"NUM_STEPS_CURRENT_ROUND": weight})
            kind = ParamsType.FULL if full else ParamsType.DIFF
            ours.accept_model(FLModel(kind, sent, current_round=number, meta=meta))
        theirs, _ = own.server_update(mean.get_result())
        model = {k: torch.as_tensor(v).clone() for k, v in ours.aggregate_model().params.items()}
        for k, value in theirs.items():
            torch.testing.assert_close(model[k], value, rtol=1e-5, atol=1e-5)


def built(component: dict[str, Any]) -> torch.optim.Optimizer:
    return getattr(torch.optim, component["path"].rpartition(".")[2])(**component["args"])


def test_without_a_persistor_the_error_names_it() -> None:
    controller = AsyncController("FedBuff", persistor_id="there")
    controller.load_model = lambda: FLModel(ParamsType.FULL, {})  # as FLARE's, without one
    with pytest.raises(
        fastagg.ConfigError, match=r'has no persistor \'there\'; write job.to_server\(PTModel\(net\), id="there"'
    ):
        controller.run()


@pytest.mark.parametrize(
    ("timeout", "aborted", "waits"),
    [(math.inf, False, True), (0.0, False, False), (None, False, False), (math.inf, True, False)],
)
def test_the_end_waits_for_those_who_are_out(timeout: float | None, aborted: bool, waits: bool) -> None:
    """``timeout``: of the one who is out, which may be over; None: nobody is."""
    controller = AsyncController("FedBuff", end_timeout=0.4 if waits else 60.0)
    controller._traffic.start(dict(MODEL))
    controller.abort_signal = SimpleNamespace(triggered=aborted)
    if timeout is not None:
        controller._traffic.send("a", timeout=timeout)
    begun_at = time.monotonic()
    controller._traffic.end()
    controller._wait_for_the_last()
    assert time.monotonic() - begun_at > 0.35 if waits else time.monotonic() - begun_at < 50
    if waits:
        controller.end_timeout = 60.0
        threading.Timer(0.2, lambda: controller._traffic.book.pop(("a", 0))).start()
        controller._wait_for_the_last()
        assert time.monotonic() - begun_at < 50


class Heard(FLComponent):
    """FLARE's engine as far as events go: it keeps them, and hands them to one component."""

    def __init__(self, component: Aggregator) -> None:
        self.component, self.events = component, list[str]()

    def fire_event(self, event_type: str, fl_ctx: FLContext) -> None:
        self.events.append(event_type)
        self.reason = fl_ctx.get_prop(FLContextKey.EVENT_DATA)
        self.component.handle_event(event_type, fl_ctx)


def loaded(aggregator: Aggregator, weights: dict[str, Any]) -> Heard:
    """FLARE has loaded its first model."""
    engine, context = Heard(aggregator), FLContext()
    context.set_prop(ReservedKey.ENGINE, engine, private=True, sticky=False)
    context.set_prop(AppConstants.GLOBAL_MODEL, make_model_learnable(weights, {}), private=True, sticky=True)
    engine.fire_event(AppEventType.INITIAL_MODEL_LOADED, context)
    return engine


def test_a_restarted_job_is_given_the_checkpoints_model(tmp_path: Path) -> None:
    """The job may start from any model. The checkpoint's model counts, because it contains the clients' updates."""
    path = str(tmp_path / "server.pt")
    before = Aggregator("FedAMS", {"lr": 0.1}, checkpoint=path)
    loaded(before, dict(MODEL))
    for client in "ab":
        before.sent(client, FLModel(ParamsType.FULL, MODEL, current_round=0))
        before.accept_model(reply(client, 0))
    result = before.aggregate_model().params
    for way in ("event", "task", "a copy"):
        after = Aggregator("FedAMS", {"lr": 0.1}, checkpoint=path)
        other = {name: np.asarray(value + 7, value.dtype) for name, value in MODEL.items()}
        if way != "task":
            first = other if way == "event" else dict(other)
            assert loaded(after, first).events == [AppEventType.INITIAL_MODEL_LOADED]
        after.sent("a", FLModel(ParamsType.FULL, other, current_round=0))  # FLARE's own, which it sends to clients
        assert after._traffic.server.version == 1
        for name, value in result.items():
            assert np.array_equal(other[name], value) and other[name].dtype == value.dtype


def test_a_restarted_job_trains_on_as_if_it_had_never_stopped(tmp_path: Path) -> None:
    """Killed in the middle of the third round. FLARE starts again from round 0, and with another model."""

    def rounds(name: str, model: dict[str, Any], count: int, until: int | None = None) -> Aggregator:
        aggregator = Aggregator("FedAMS", {"lr": 0.1}, checkpoint=str(tmp_path / name))
        loaded(aggregator, model)
        for number in range(count):
            for client in "abc":
                aggregator.sent(client, FLModel(ParamsType.FULL, model, current_round=number))
            for i, client in enumerate("abc"[:until] if number == count - 1 else "abc"):
                trained = {key: np.asarray(0.9 * value + i, value.dtype) for key, value in model.items()}
                meta = {"client_name": client, "NUM_STEPS_CURRENT_ROUND": 1 + i}
                aggregator.accept_model(FLModel(ParamsType.FULL, trained, current_round=number, meta=meta))
            if number < count - 1 or until is None:
                model = aggregator.aggregate_model().params
        return aggregator

    straight = rounds("straight", dict(MODEL), 5)
    assert rounds("killed", dict(MODEL), 3, until=2)._traffic.server.version == 2
    other = {name: np.asarray(value + 7, value.dtype) for name, value in MODEL.items()}
    again = rounds("killed", other, 3)
    before, after = (one._traffic.server.state_dict() for one in (straight, again))
    assert before["version"] == after["version"] == 5 and torch.equal(before["flat"], after["flat"])
    assert all(torch.equal(value, after["moments"][name]) for name, value in before["moments"].items())
    for name, value in straight._traffic.model().items():
        assert np.array_equal(value, again._traffic.model()[name])


def test_a_model_that_flare_changed_between_rounds_is_the_model() -> None:
    """A controller that decays or prunes what the aggregator returned, as FLARE's own aggregators allow."""
    aggregator = begun()
    for client in "abc":
        aggregator.accept_model(reply(client, 0, 1.0))
    params = aggregator.aggregate_model().params
    changed = {name: np.asarray(value * 2, value.dtype) for name, value in params.items()}
    for client in "ab":
        aggregator.sent(client, FLModel(ParamsType.FULL, changed, current_round=1))
    assert sum("somebody has changed it" in line for line in aggregator.said) == 1
    for client in "ab":
        aggregator.accept_model(reply(client, 1, 0.5, full=False))
    result = aggregator.aggregate_model().params
    assert np.allclose(result["w"], 2 * 1.0 + 0.5) and result["bn.num_batches_tracked"] == 2 * 5
    aggregator.sent("a", FLModel(ParamsType.FULL, dict(result), current_round=2))  # the same arrays: nothing to say
    assert sum("somebody has changed it" in line for line in aggregator.said) == 1
    for wrong in ({"w": np.zeros((9, 9), np.float32)}, {**result, "w": np.full((3, 2), np.nan, np.float32)}):
        with pytest.raises(fastagg.FastaggError):
            aggregator.sent("b", FLModel(ParamsType.FULL, wrong, current_round=3))
        aggregator._number = 2
        assert np.allclose(aggregator._traffic.model()["w"], result["w"])


def test_rounds_in_which_nothing_counts_end_the_job() -> None:
    aggregator = Aggregator("FedAvg")
    model = dict(MODEL)
    engine = loaded(aggregator, model)
    before = aggregator._traffic.server.state_dict()
    for number in range(5):
        for client in "ab":
            aggregator.sent(client, FLModel(ParamsType.FULL, model, current_round=number))
        for client in "ab":
            with pytest.raises(fastagg.NonFiniteUpdate):
                aggregator.accept_model(reply(client, number, **{"w": np.full((3, 2), np.nan, np.float32)}))
        if number < 4:
            assert np.array_equal(aggregator.aggregate_model().params["w"], MODEL["w"])
    with pytest.raises(fastagg.RunFailed, match=r"each of the 2 clients .* failed 5 times in a row.*NaN"):
        aggregator.aggregate_model()
    assert engine.events[-1] == EventType.FATAL_SYSTEM_ERROR and "NaN" in engine.reason
    assert torch.equal(aggregator._traffic.server.state_dict()["flat"], before["flat"])


def test_a_checkpoint_of_another_model_ends_the_job(tmp_path: Path) -> None:
    path = tmp_path / "server.pt"
    fastagg.FedAMS({"w": np.zeros(5, np.float32)}, clients_per_round=None).save(path)
    kept = path.read_bytes()
    engine = loaded(Aggregator("FedAMS", checkpoint=str(path)), dict(MODEL))
    assert engine.events == [AppEventType.INITIAL_MODEL_LOADED, EventType.FATAL_SYSTEM_ERROR]
    assert "fastagg: " in engine.reason and "another model" in engine.reason
    assert path.read_bytes() == kept


class Watching(AsyncController):
    """A controller of a user's own, which evaluates on the server."""

    def evaluate(self, version: int, model: dict[str, torch.Tensor]) -> dict[str, float]:
        return {"mean": model["w"].mean().item()}

    def on_version(self, version: int, metrics: dict[str, float], model: dict[str, torch.Tensor]) -> None:
        self.seen = {**getattr(self, "seen", {}), version: metrics["mean"]}
        if version == 3:
            raise StopIteration("three are enough")


def test_a_controller_that_evaluates_and_ends_the_run() -> None:
    controller = Watching("FedBuff", {"buffer_size": 1}, versions=50)
    traffic, said = controller._traffic, list[str]()
    traffic.run.log = traffic.run.warn = said.append
    traffic.start({"w": np.zeros(4, np.float32)})
    while not traffic.is_over(["a"]):
        task = traffic.send("a")
        assert (task.start_round, task.total_rounds) == (0, 50)
        params = {"w": np.ones(4, np.float32)}
        traffic.take("a", FLModel(ParamsType.DIFF, params, current_round=task.current_round))
        assert traffic.session.settle(wait=True)
    traffic.end()
    assert controller.seen == {0: 0.0, 1: 1.0, 2: 2.0, 3: 3.0}
    assert "it ended because three are enough" in said[-1] and traffic.is_done() and traffic.server.version == 3


def test_rules_that_know_their_clients() -> None:
    rule = Rule(FLARE, "ACE", {"lr": 0.5, "num_clients": 2, "warmup": "partial"}, rounds=False)
    traffic = Traffic(AdapterRun(rule, Settings()), clients=["a", "b"])
    traffic.start({"w": np.zeros(3, np.float32)})
    task = traffic.send("b")
    gradient = FLModel(ParamsType.DIFF, {"w": np.ones(3, np.float32)}, current_round=task.current_round)
    refused = traffic.take("b", gradient)  # which of the two it is, is never guessed
    assert "'gradient', got one of kind 'difference'" in str(refused) and not traffic.book.busy
    traffic.send("b")
    gradient.meta["fastagg_kind"] = "gradient"
    assert traffic.take("b", gradient).client == 1
    with pytest.raises(fastagg.UnknownClient, match="needs the names of all clients"):
        traffic.send("c")


@pytest.mark.parametrize("stale", [False, True])
def test_a_server_beside_flares_own_fedbuff_for_edge_devices(stale: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same model after every version, of devices that are up to two versions late, as the page says it: with its
    function for ``staleness_weight``."""
    page = (EXAMPLE.parents[1] / "docs" / "integrations" / "coming-from.md").read_text()
    (block,) = (one for one in re.findall(r"(?ms)^```python\n(.*?)^```", page) if "def flares" in one)
    monkeypatch.setattr(fastagg.registry, "_parts", dict(fastagg.registry._parts))
    module = ModuleType("flares_of_the_page")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(block, vars(module))
    model = {"w": np.float32([[0.25, -1.0]]), "b": np.float32([2.0])}
    make = module.flares if stale else fastagg.FedBuff
    server = make(model, lr=0.5, buffer_size=None, weighting="samples")
    theirs = BuffModelManager(3, global_lr=0.5, staleness_weight=stale)
    context, draw = FLContext(), np.random.default_rng(0)
    theirs.initialize_model(DXO(DataKind.WEIGHTS, data={name: one.tolist() for name, one in model.items()}), context)
    theirs.generate_new_model(context)
    # of a report: the version, which FLARE counts from 1, and its devices
    reports = [(1, 2), (1, 1), (2, 2), (1, 1), (3, 1), (2, 1), (1, 1), (4, 3)]
    tasks, waiting = dict[int, fastagg.Dispatch](), 0
    for number, (version, count) in enumerate(reports):
        for later, (begun_at, _) in enumerate(reports):
            if begun_at == server.version + 1 and later not in tasks:
                tasks[later] = server.dispatch(later)
        sums = {"w": draw.normal(size=(1, 2)), "b": draw.normal(size=1)}
        data = {"dict": {name: value.tolist() for name, value in sums.items()}, "count": count}
        devices = {f"{number}, {device}": 0.0 for device in range(count)}
        report = ModelUpdate(version, DXO(DataKind.WEIGHT_DIFF, data=data).to_shareable(), devices)
        assert theirs.process_updates({version: report}, context)
        mean = {name: torch.tensor(value / count, dtype=torch.float32) for name, value in sums.items()}
        server.receive(number, mean, tasks[number].version, num_samples=count)
        waiting += count
        if waiting >= 3:
            server.close_round()
            waiting = 0
        assert server.version + 1 == theirs.current_model_version
        other = theirs.get_current_model(context).data
        for name, value in server.parameters().items():
            assert np.allclose(value, other[name], atol=1e-6)
    assert server.version == 4


@contextmanager
def started(way: str, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A job in FLARE's simulator; afterwards none of its processes is left."""
    environment = {**os.environ, "FASTAGG_TEST_RECORD": str(folder / "record.pt"), "OMP_NUM_THREADS": "1"}
    job = subprocess.Popen(
        [sys.executable, str(HERE / "flare_job.py"), way, str(folder)],
        env=environment, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    try:
        yield job
    finally:
        for entry in Path("/proc").iterdir():
            with suppress(OSError):
                if entry.name.isdigit() and f"{folder}/record.pt".encode() in (entry / "environ").read_bytes():
                    os.kill(int(entry.name), signal.SIGKILL)
        job.wait(10)


def simulate(way: str, folder: Path) -> str:
    with started(way, folder) as job:
        printed, _ = job.communicate(timeout=300)
    (folder / "log.txt").write_text(printed)
    assert job.returncode == 0, printed[-4000:]
    return printed


def digits_model() -> torch.nn.Module:
    sys.path.insert(0, str(EXAMPLE))
    try:
        from model import Digits
    finally:
        sys.path.pop(0)
    return Digits()


def accuracy(params: dict[str, Any]) -> float:
    model, test = digits_model(), digits.load(4, alpha=10.0, seed=0).test
    model.load_state_dict({name: torch.as_tensor(value) for name, value in params.items()})
    return (model(test.x).argmax(1) == test.y).float().mean().item()


def weights(folder: Path) -> dict[str, Any]:
    found = torch.load(next(folder.rglob("FL_global_model.pt")), weights_only=False)
    return found["model"]


def server_log(folder: Path) -> str:
    """Return the lines of the server's own file. Standard output mixes the lines of several processes."""
    return next(folder.rglob("server/log.txt")).read_text()


@pytest.mark.slow
def test_fedams_in_flares_rounds(tmp_path: Path) -> None:
    simulate("rounds", tmp_path)
    assert accuracy(weights(tmp_path)) > 0.9
    assert next(tmp_path.rglob("best_FL_global_model.pt"), None) is not None, "FLARE's selector"
    record = torch.load(tmp_path / "record.pt", weights_only=True)
    assert len(record["updates"]) == 40 == server_log(tmp_path).count("taken, delay 0")
    server = fastagg.FedAMS(weights(tmp_path), clients_per_round=None, lr=0.03, weighting="samples")
    server.load_state_dict(record["first"])
    play(server, record["updates"], rounds=True)
    final = weights(tmp_path)
    for name, value in server.parameters().items():
        assert torch.equal(value, torch.as_tensor(final[name])), name


@pytest.mark.slow
def test_fadas_with_sites_that_misbehave(tmp_path: Path) -> None:
    """One site sends NaN, one sends unknown arrays, one is away for longer than its task may take, one dies."""
    simulate("asynchronous", tmp_path)
    log = server_log(tmp_path)
    assert re.search("site-2: refused: .*NaN", log)
    assert re.search("site-3: refused: .*unknown 'more'", log)
    for away in ("site-4", "site-5"):
        dropped = re.findall(f"(?m)^([0-9: -]+),.*{away}: task [0-9]+ was not answered; it is dropped", log)
        left = datetime.fromtimestamp((tmp_path / f"{away}.away").stat().st_mtime)
        # Tasks may be dropped while the sites start, too. Those do not count here.
        assert any(datetime.fromisoformat(at) > left for at in dropped), away
    assert accuracy(weights(tmp_path)) > 0.9
    server = fastagg.load(tmp_path / "server.pt")
    assert server.version == 48
    record = torch.load(tmp_path / "record.pt", weights_only=True)
    assert len(record["updates"]) == 96 == log.count(" taken, delay ")  # two to a step, each counted once
    assert 0 < [client for client, *_ in record["updates"]].count("site-5") <= 4, "it died at its fifth task"
    second = fastagg.FADAS(weights(tmp_path), lr=0.003, buffer_size=2, delay_threshold=4)
    second.load_state_dict(record["first"])
    play(second, record["updates"])
    assert torch.equal(second.flat, server.flat)
    for moment in ("m", "v", "vhat"):
        assert torch.equal(second.state_dict()["moments"][moment], server.state_dict()["moments"][moment])


@pytest.mark.slow
def test_a_healthy_job_ends_without_errors(tmp_path: Path) -> None:
    """All sites are training when the job ends, one of them for some seconds more: each script reaches its end."""
    printed = simulate("ending", tmp_path)
    assert printed.count("reached the end of its script") == 4
    assert "was still out; its answer will not count" in server_log(tmp_path)
    assert not re.findall("(?m)^.*(?:ERROR|Traceback).*$", printed)
    assert torch.load(tmp_path / "server.pt", weights_only=True)["version"] == 6


@pytest.mark.slow
def test_a_job_whose_server_was_killed_goes_on(tmp_path: Path) -> None:
    """Killed with all its clients in the middle of training, and started again from its checkpoint."""
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    with started("resumed", first) as job:
        until = time.monotonic() + 240
        while not (first / "server.pt").exists() or fastagg.load(first / "server.pt").version < 6:
            assert job.poll() is None and time.monotonic() < until
            time.sleep(0.2)
    kept = fastagg.load(first / "server.pt").state_dict()
    assert len(kept["tasks"]["task_client"]), "clients were training"
    counted = 2 * kept["version"] + len(kept["direction"]["versions"])

    shutil.copy(first / "server.pt", second)
    simulate("resumed", second)
    log = server_log(second)
    assert f"from {second}/server.pt, version {kept['version']}" in log
    server, record = fastagg.load(second / "server.pt"), torch.load(second / "record.pt", weights_only=True)
    assert server.version == 32
    assert counted + len(record["updates"]) == 64, "two to a step: none was lost, and none counted twice"
    assert log.count(" taken, delay ") == len(record["updates"])
    assert accuracy(weights(second)) > 0.9
    again = fastagg.FADAS(weights(second), lr=0.003, buffer_size=2, delay_threshold=4)
    again.load_state_dict(kept)
    play(again, record["updates"])
    assert torch.equal(again.flat, server.flat)


@pytest.mark.slow
def test_a_goal_is_reached_through_flares_filters(tmp_path: Path) -> None:
    """The run ends when the clients' accuracy is good; FLARE's selector and ``best`` have a model as good as that."""
    printed = simulate("goals", tmp_path)
    log, server = server_log(tmp_path), fastagg.load(tmp_path / "server.pt")
    assert re.search("it ended because clients/accuracy reached 0.85: it is 0.[89]", log)
    assert server.version < 400 and "of 400, accuracy before" in printed
    assert "1 arrays are not in its replies ('hidden.bias'): they count as they were" in log
    assert "new best validation metric at round" in log
    best = torch.load(next(tmp_path.rglob("best_FL_global_model.pt")), weights_only=False)["model"]
    assert accuracy(best) > 0.8 and accuracy(torch.load(tmp_path / "best.pt", weights_only=True)) > 0.8
    record = torch.load(tmp_path / "record.pt", weights_only=True)
    first = fastagg.FedBuff(weights(tmp_path), buffer_size=2, weighting="samples")
    first.load_state_dict(record["first"])
    assert torch.equal(first.parameters()["hidden.bias"], torch.as_tensor(weights(tmp_path)["hidden.bias"]))
    play(first, record["updates"])
    assert torch.equal(first.flat, server.flat)


@pytest.mark.slow
@pytest.mark.parametrize(
    "way, cause",
    [
        ("plain under ACE", "this server takes updates of kind 'gradient', got one of kind 'model'"),
        ("crashing", "EXECUTION_EXCEPTION"),
    ],
)
def test_what_is_permanent_ends_the_job_with_its_message(way: str, cause: str, tmp_path: Path) -> None:
    with started(way, tmp_path) as job:
        printed, _ = job.communicate(timeout=200)
    (tmp_path / "log.txt").write_text(printed)
    log = server_log(tmp_path)
    assert re.search(f"RunFailed: each of the 4 clients .* failed 2 times in a row.*{cause}", log)
    assert "FATAL" in log.upper() and log.count("refused: ") + log.count("failed: EXECUTION") <= 3 * 4
    assert fastagg.load(tmp_path / "server.pt").version == 0, "the server's state as it was"
