"""APPFL 1.12: the aggregators by themselves, with its schedulers, and in its virtual-time simulator on real digits."""

import copy
import gc
import logging
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("appfl")
pytest.importorskip("sklearn")

from appfl.algorithm.aggregator import (
    FedAdagradAggregator,
    FedAdamAggregator,
    FedAsyncAggregator,
    FedAvgAggregator,
    FedAvgMAggregator,
    FedBuffAggregator,
    FedYogiAggregator,
)
from appfl.algorithm.scheduler import AsyncScheduler, CompassScheduler, QueueScheduler, SyncScheduler
from appfl_agents import agents
from omegaconf import OmegaConf
from support.trackers import RowTracker

import fastagg
from fastagg.integrations.appfl import Aggregator, SyncAggregator
from fastagg.integrations.session import Book
from fastagg.sim.data import digits

BY_PATH = Path(fastagg.__file__).parent / "integrations" / "appfl.py"


@pytest.fixture(autouse=True)
def path_of_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    """APPFL puts the folder of an aggregator's file first on the path, and other frameworks' adapters are there."""
    monkeypatch.setattr(sys, "path", list(sys.path))


def made(algorithm: str = "FedBuff", kind: type[Aggregator] = Aggregator, **settings: Any) -> Aggregator:
    config = OmegaConf.create({"algorithm": algorithm, "num_clients": 3, "settings": settings})
    return kind(aggregator_configs=config)


MODEL = {"w": torch.zeros(3, 2), "bn.running_mean": torch.zeros(3), "bn.num_batches_tracked": torch.tensor(4)}


def upload(value: float, model: dict[str, torch.Tensor] | None = None, **changes: Any) -> dict[str, Any]:
    return {**{k: v + torch.tensor(value).to(v.dtype) for k, v in (model or MODEL).items()}, **changes}


def begun(caplog: pytest.LogCaptureFixture, algorithm: str = "FedBuff", **settings: Any) -> Aggregator:
    caplog.set_level(logging.INFO)
    aggregator = made(algorithm, **{"buffer_size": 2, **settings} if algorithm == "FedBuff" else settings)
    aggregator._start(MODEL)
    aggregator.get_parameters()  # to all three
    return aggregator


def test_without_a_model_the_first_upload_is_one(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    aggregator = made("FedBuff", buffer_size=1)
    with pytest.raises(fastagg.ConfigError, match="no model yet"):
        aggregator.get_parameters()
    sent = aggregator.aggregate("a", upload(1.0))
    assert torch.equal(sent["w"], torch.ones(3, 2)) and "client a: its upload is the model to start from" in caplog.text
    other = aggregator.aggregate("b", upload(5.0))  # trained from who knows what
    assert torch.equal(other["w"], torch.ones(3, 2)) and "b: refused: this server never sent it a model" in caplog.text
    assert torch.equal(aggregator.aggregate("b", upload(2.0, other))["w"], torch.full((3, 2), 3.0))
    assert torch.equal(sent["w"], torch.ones(3, 2))  # what a client holds does not change


def test_the_initial_model_goes_to_clients_without_names(caplog: pytest.LogCaptureFixture) -> None:
    aggregator = begun(caplog)
    aggregator.aggregate("a", upload(1.0))
    assert torch.equal(aggregator.aggregate("b", upload(3.0))["w"], torch.full((3, 2), 2.0))
    aggregator.aggregate("c", upload(4.0))  # from version 0 still
    assert "client c: update from version 0 taken, delay 1" in caplog.text
    sent = aggregator.get_parameters(client_id="d")
    model = aggregator.aggregate("d", upload(2.0, sent))
    assert torch.equal(model["w"], torch.full((3, 2), 5.0))  # 2 + (4 + 2)/2
    assert torch.equal(model["bn.num_batches_tracked"], torch.tensor(9))


def test_initial_models_of_clients_that_named_themselves_are_waited_for_no_more() -> None:
    """They asked again by name, as after a restart. Nobody answers the first tasks, and their version goes."""
    aggregator = made("FedBuff", buffer_size=1)
    aggregator._start(MODEL)
    aggregator.get_parameters()
    sent = {name: aggregator.get_parameters(client_id=name) for name in "ab"}
    assert len(aggregator.book.keys_of()) == 5, "one of the three may still be a stranger"
    aggregator.aggregate("b", upload(1.0, sent["b"]))
    aggregator.get_parameters(client_id="c")
    assert set(aggregator.book.keys_of()) == {"a", "b", "c"}
    assert len(aggregator.server.state_dict()["tasks"]["task_client"]) == 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_uploads_that_differ_anywhere_are_different(dtype: torch.dtype) -> None:
    """An embedding of which one row trains at a time: wherever it is, and in the last bit of one number only."""
    start = {
        "embedding": torch.zeros(4096, 8, dtype=dtype),
        "empty": torch.zeros(0),
        "scale": torch.ones((), dtype=dtype),
    }
    aggregator = Aggregator(None, {"algorithm": "FedBuff", "settings": {"buffer_size": 10**6}})
    aggregator._start(start)
    aggregator.get_parameters(client_id="a")
    one, taken = torch.nextafter(torch.ones(()), torch.tensor(2.0)) if dtype != torch.bfloat16 else 1.0078125, 0
    for row in (0, 1, 63, 64, 777, 2048, 4095):
        for value in (1.0, one, 1.0):
            new = {**start, "embedding": start["embedding"].clone()}
            new["embedding"][row, row % 8] = value
            for _ in range(2):  # the second is the same message
                aggregator.aggregate("a", {name: array.clone() for name, array in new.items()})
            taken += 1
    aggregator.aggregate("a", {**new, "scale": new["scale"] * 2})
    assert aggregator.session.tally.updates == taken + 1


REFUSED = {
    "K": (3, "K: a setting of APPFL's own aggregators; in settings it is buffer_size"),
    "staleness_fn": ("hinge", "unknown setting 'staleness_fn'; known: algorithm, "),
    "use_secure_agg": (True, "masked"), "max_failures": (0, ">= 1"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_settings_are_refused_by_name_before_there_is_a_model(name: str) -> None:
    value, words = REFUSED[name]
    with pytest.raises(fastagg.ConfigError, match=words):
        Aggregator(aggregator_configs=OmegaConf.create({"algorithm": "FedBuff", name: value}))


@pytest.mark.parametrize("scheduler", [AsyncScheduler, CompassScheduler, QueueScheduler, SyncScheduler])
@pytest.mark.parametrize("kind", [Aggregator, SyncAggregator])
def test_a_scheduler_that_does_not_fit_is_named_before_clients_train(kind: type[Aggregator], scheduler: Any) -> None:
    aggregator = made("FedAvg" if kind is SyncAggregator else "FedBuff", kind)
    aggregator._start(MODEL)
    made_by_appfl = object.__new__(scheduler)
    made_by_appfl.scheduler_configs, made_by_appfl.aggregator = OmegaConf.create({"num_clients": 1}), aggregator
    made_by_appfl._access_lock = threading.Lock()
    if scheduler is kind.scheduler:
        assert made_by_appfl.get_parameters(init_model=True).result().keys() == MODEL.keys()
        return
    with pytest.raises(fastagg.ConfigError, match=f"{kind.__name__} works with .*, not with {scheduler.__name__}"):
        made_by_appfl.get_parameters(init_model=True)
    calls = {SyncScheduler: (({"a": MODEL},), {}), AsyncScheduler: (("a", MODEL), {})}
    args, named = calls.get(scheduler, ((), {"local_models": {"a": MODEL}, "staleness": {"a": 0}}))
    if kind is Aggregator or args:  # a user's own scheduler that calls it like this
        with pytest.raises(fastagg.ConfigError, match=f"{kind.__name__} works with"):
            aggregator.aggregate(*args, **named)


@pytest.mark.parametrize("ends", ["the aggregator", "the program"])
def test_the_last_version_is_in_the_checkpoint(ends: str, tmp_path: Path) -> None:
    """Of eight versions, and ``save_every`` is ten. APPFL does not say that a run ends."""
    path = tmp_path / "s.pt"
    code = f"""
import torch
from fastagg.integrations.appfl import Aggregator
settings = {{"algorithm": "FedAsync", "checkpoint": {str(path)!r}, "save_every": 10}}
aggregator = Aggregator(torch.nn.Linear(2, 2), settings)
for turn in range(8):
    sent = aggregator.get_parameters(client_id="a")
    aggregator.aggregate("a", {{name: value + 1.0 + turn for name, value in sent.items()}})
"""
    if ends == "the program":
        subprocess.run([sys.executable, "-P", "-c", code], check=True)
    else:
        scope: dict[str, Any] = {}
        exec(code, scope)
        assert not path.exists()
        scope.clear()
        gc.collect()
    kept = torch.load(path, weights_only=True)
    assert kept["version"] == 8 and kept["session"]["tally"]["updates"] == 8


def test_a_restart_counts_nothing_twice(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    config = {"algorithm": "FADAS", "num_clients": 2, "checkpoint": str(tmp_path / "s.pt"), "save_every": 1}
    config["settings"] = {"buffer_size": 1}
    model = torch.nn.Linear(2, 2)
    before = Aggregator(model, OmegaConf.create(config))
    start = before.get_parameters()
    before.aggregate("a", upload(1.0, start))
    after = Aggregator(model, OmegaConf.create(config))
    assert after.server.version == 1 and torch.equal(after.server.flat, before.server.flat)
    for client in "ab":  # one was counted before, of the other nobody knows the base
        sent = after.aggregate(client, upload(1.0, start))
        assert f"client {client}: refused: this server never sent it a model" in caplog.text
    after.aggregate("b", upload(2.0, sent))
    assert after.server.version == 2


def test_rules_that_know_their_clients_and_take_gradients(caplog: pytest.LogCaptureFixture) -> None:
    settings = {"lr": 1.0, "num_clients": 2, "warmup": "partial"}
    config = {"algorithm": "ACE", "client_ids": ["a", "b"], "settings": settings}
    aggregator = Aggregator(aggregator_configs=config)
    aggregator._start({"w": torch.zeros(3)})
    aggregator.get_parameters()
    assert torch.equal(aggregator.aggregate("b", {"w": torch.ones(3)})["w"], -torch.ones(3))
    with pytest.raises(fastagg.UnknownClient, match="client_ids"):
        aggregator.get_parameters(client_id="c")


class Net(torch.nn.Module):
    """Parameters, statistics and a counter, under :data:`MODEL`'s kind of names."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))


def trained(start: dict[str, torch.Tensor], draw: torch.Generator) -> dict[str, torch.Tensor]:
    return {
        name: value + (torch.rand(value.shape, generator=draw) if value.is_floating_point() else 3)
        for name, value in start.items()
    }


def close(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return all(torch.allclose(value.double(), b[name].double(), rtol=1e-5, atol=1e-6) for name, value in a.items())


def gradient(start: dict[str, torch.Tensor], new: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """APPFL's upload with ``send_gradient``: the old parameters minus the new ones."""
    names = {name for name, _ in Net().named_parameters()}
    return {name: start[name] - value if name in names else value.clone() for name, value in new.items()}


@pytest.mark.parametrize("mode", ["equal", "sample_size"])
@pytest.mark.parametrize("algorithm", ["FedAsync", "FedBuff"])
def test_shares_among_all_clients_are_appfls(algorithm: str, mode: str) -> None:
    """docs/integrations/coming-from.md: ``normalize`` is the number of all clients, or of their samples."""
    torch.manual_seed(0)
    net, sizes = Net(), {"a": 1, "b": 9, "c": 30}
    own = {"FedAsync": FedAsyncAggregator, "FedBuff": FedBuffAggregator}[algorithm]
    config = {"alpha": 0.7, "K": 2, "client_weights_mode": mode, "num_clients": 3, "optimize_memory": False}
    theirs = own(copy.deepcopy(net), OmegaConf.create(config), logging.getLogger())
    how = {"weighting": "samples", "normalize": 40} if mode == "sample_size" else {"normalize": 3}
    rule = {"alpha": 0.7, "policy": "constant"} if algorithm == "FedAsync" else {"lr": 0.7, "buffer_size": 2}
    ours = Aggregator(net, {"algorithm": algorithm, "settings": {**rule, **how}})
    draw, names = torch.Generator().manual_seed(1), [name for name, _ in net.named_parameters()]
    for client, size in sizes.items():
        theirs.set_client_sample_size(client, size)
        ours.set_client_sample_size(client, size)
    for pair in ("ab", "ca", "bc"):  # nobody is late
        held = {client: theirs.get_parameters(client_id=client) for client in pair}
        if algorithm == "FedAsync":
            pair = pair[0]
        for client in pair:
            ours.get_parameters(client_id=client)
        for client in pair:
            new = trained({name: value.clone() for name, value in held[client].items()}, draw)
            model = theirs.aggregate(client, {name: value.clone() for name, value in new.items()})
            mine = ours.aggregate(client, new)
        assert close({name: mine[name] for name in names}, {name: model[name] for name in names})


@pytest.mark.parametrize("less", [False, True])
@pytest.mark.parametrize(
    "policy, kwargs", [("constant", {}), ("polynomial", {"a": 0.5}), ("hinge", {"a": 2.0, "b": 1.0})]
)
def test_fedasync_beside_appfls_own(policy: str, kwargs: dict[str, float], less: bool) -> None:
    """The same model after every upload, stale ones too; and no version is kept for anyone."""
    torch.manual_seed(0)
    net = Net()
    config = {"alpha": 0.6, "staleness_fn": policy, "staleness_fn_kwargs": kwargs, "optimize_memory": False}
    config["gradient_based"] = less
    theirs = FedAsyncAggregator(copy.deepcopy(net), OmegaConf.create(config), logging.getLogger())
    settings = {"alpha": 0.6, "policy": policy, **kwargs}
    ours = Aggregator(net, {"algorithm": "FedAsync", "settings": settings, "gradient_based": less})
    draw, held = torch.Generator().manual_seed(1), {client: sent(client, theirs, ours) for client in "abc"}
    for client in "abacbaaacb":
        new = trained(held[client], draw)
        new = gradient(held[client], new) if less else new
        held[client] = theirs.aggregate(client, {name: value.clone() for name, value in new.items()})
        assert close(held[client], ours.aggregate(client, new))
        assert ours.server.memory()["versions"] == 0
        assert all(task.flat.numel() == 0 for task in (one.task for one in ours.book))
    assert ours.server.version == theirs.global_step == 10


ADAPTIVE = {
    "server_learning_rate": 0.03, "server_adapt_param": 0.01, "server_momentum_param_1": 0.8,
    "server_momentum_param_2": 0.95,
}  # fmt: skip
STEPS = {"lr": 0.03, "eps": 0.01, "initial": 0.01**2}
IN_ROUNDS = {  # APPFL's class and its settings, and ours
    "FedAvg": (FedAvgAggregator, {}, {}),
    "FedAvgM": (FedAvgMAggregator, {"server_momentum_param_1": 0.8}, {"beta": 0.8}),
    "FedAdam": (FedAdamAggregator, ADAPTIVE, {**STEPS, "betas": [0.8, 0.95]}),
    "FedYogi": (FedYogiAggregator, ADAPTIVE, {**STEPS, "betas": [0.8, 0.95]}),
    "FedAdagrad": (FedAdagradAggregator, ADAPTIVE, {**STEPS, "beta": 0.8}),
}  # fmt: skip


@pytest.mark.parametrize("mode", [None, "equal", "sample_size"])
@pytest.mark.parametrize("algorithm", IN_ROUNDS)
def test_rounds_beside_appfls_own(algorithm: str, mode: str | None) -> None:
    """The same parameters and statistics after every round, also with the weights of either's default."""
    torch.manual_seed(0)
    own, setting, settings = IN_ROUNDS[algorithm]
    net, sizes = Net(), {"a": 1, "b": 99}
    chosen = {} if mode is None else {"client_weights_mode": mode}
    config = OmegaConf.create({**setting, **chosen, "optimize_memory": False})
    theirs = own(copy.deepcopy(net), config, logging.getLogger())
    if mode is not None:
        settings = {**settings, "weighting": "samples" if mode == "sample_size" else "uniform"}
    ours = SyncAggregator(net, {"algorithm": algorithm, "settings": settings})
    draw = torch.Generator().manual_seed(1)
    for aggregator in (theirs, ours):
        for client, size in sizes.items():
            aggregator.set_client_sample_size(client, size)
    for _ in range(3):
        start = ours.get_parameters()
        uploads = {client: trained(start, draw) for client in sizes}
        model = theirs.aggregate({client: dict(upload) for client, upload in uploads.items()})
        mine = ours.aggregate(uploads)
        names = [name for name, value in model.items() if value.is_floating_point()]
        assert close({name: mine[name] for name in names}, {name: model[name] for name in names})


def test_secure_aggregation_is_refused_by_name(caplog: pytest.LogCaptureFixture) -> None:
    aggregator = begun(caplog)
    before = aggregator.server.state_dict()["flat"]
    aggregator.aggregate("a", {"type": "masked_update_flat", "flat": torch.ones(9), "shapes": {}, "num_examples": 3})
    assert "client a: refused: a masked update of APPFL's secure aggregation" in caplog.text
    assert torch.equal(aggregator.server.state_dict()["flat"], before)


def fedbuffs() -> tuple[Any, Aggregator]:
    """APPFL's and ours, K = 2, the same model: a step of half of each client's change."""
    torch.manual_seed(0)
    net = Net()
    config = OmegaConf.create({"alpha": 0.5, "K": 2, "optimize_memory": False})
    ours = Aggregator(net, {"algorithm": "FedBuff", "settings": {"lr": 1.0, "buffer_size": 2}})  # lr = alpha*K
    return FedBuffAggregator(copy.deepcopy(net), config, logging.getLogger()), ours


def sent(client: str, theirs: Any, ours: Aggregator) -> dict[str, torch.Tensor]:
    mine, other = ours.get_parameters(client_id=client), theirs.get_parameters(client_id=client)
    assert close(mine, other)
    return {name: value.clone() for name, value in other.items()}


def test_fedbuff_of_a_stale_client_is_the_papers() -> None:
    """APPFL adds the model minus the *newest* one, which undoes others' updates. fastagg adds the client's change."""
    theirs, ours = fedbuffs()
    draw = torch.Generator().manual_seed(1)
    old = sent("a", theirs, ours)
    for client in "bc":
        new = trained(sent(client, theirs, ours), draw)
        model, mine = theirs.aggregate(client, dict(new)), ours.aggregate(client, new)
    assert close(model, mine), "nobody is late"
    now, late = sent("d", theirs, ours), trained(old, draw)
    fresh = trained(now, draw)
    for client, new in (("a", late), ("d", fresh)):
        model, mine = theirs.aggregate(client, dict(new)), ours.aggregate(client, new)
    name = "layers.0.weight"
    assert torch.allclose(mine[name], now[name] + 0.5 * ((late[name] - old[name]) + (fresh[name] - now[name])))
    assert torch.allclose(model[name], now[name] + 0.5 * ((late[name] - now[name]) + (fresh[name] - now[name])))
    assert not torch.allclose(mine[name], model[name], atol=1e-3)


def test_what_clients_say_of_models_is_tracked_and_the_best_is_kept(tmp_path: Path) -> None:
    kept = RowTracker()
    best = {"file": str(tmp_path / "best.pt"), "metric": "clients/pre_val_accuracy"}
    config = {"algorithm": "FedAsync", "settings": {"alpha": 1.0, "policy": "constant"}, "best": best}
    aggregator = Aggregator(torch.nn.Linear(2, 2), {**config, "trackers": [kept]})
    sent = {client: aggregator.get_parameters(client_id=client) for client in "ab"}
    for turn, accuracy in enumerate((0.1, 0.5, 0.9, 0.7, 0.2, 0.2)):
        client = "ab"[turn % 2]
        new = {name: value + 1 for name, value in sent[client].items()}
        sent[client] = aggregator.aggregate(client, new, pre_val_accuracy=accuracy, round=turn, note="text")
    found = [(step, row) for row, step in kept.rows if "clients/pre_val_accuracy" in row]
    assert found == [(0, {"clients/pre_val_accuracy": 0.3}), (2, {"clients/pre_val_accuracy": 0.8}),
                     (4, {"clients/pre_val_accuracy": 0.2})]  # fmt: skip
    assert [step for row, step in kept.rows if "run/updates" in row] == list(range(7))
    assert (
        list(torch.load(tmp_path / "best.pt", weights_only=True)) == ["weight", "bias"]
        and aggregator.session.tally.updates == 6
    )


def test_schedulers() -> None:
    aggregator = made("FedBuff", buffer_size=2)
    aggregator._start(MODEL)
    scheduler = AsyncScheduler(OmegaConf.create({"num_clients": 2}), aggregator, logging.getLogger())
    first = [scheduler.get_parameters(init_model=True, client_id=name) for name in "ab"]
    assert all(torch.equal(future.result()["w"], MODEL["w"]) for future in first)
    scheduler.schedule("a", upload(1.0))
    assert scheduler.schedule("b", upload(3.0))["w"].mean() == 2.0  # named or not, both had version 0
    rounds = made("FedAvg", SyncAggregator, weighting="samples")
    rounds._start(MODEL)
    for name, size in (("a", 1), ("b", 3)):
        rounds.set_client_sample_size(name, size)
    scheduler = SyncScheduler(OmegaConf.create({"num_clients": 2}), rounds, logging.getLogger())
    for value in (4.0, 6.0):
        futures = [scheduler.schedule("a", upload(0.0)), scheduler.schedule("b", upload(value))]
        model = [future.result() for future in futures]
    assert torch.equal(model[0]["w"], torch.full((3, 2), 4.5))  # 3, and then 3 + (-3 + 3*3)/4


def federation(folder: Path, aggregator: str = "Aggregator", epochs: int = 40, **kwargs: Any) -> Any:
    """APPFL's own server and four client agents on the digits; the aggregator is named in the configuration."""
    (folder / "net.py").write_text(
        "import torch\n\n\nclass Net(torch.nn.Sequential):\n    def __init__(self):\n"
        "        torch.manual_seed(1)  # APPFL makes one, and fastagg another\n"
        "        super().__init__(torch.nn.Flatten(), torch.nn.Linear(64, 32), torch.nn.ReLU(),\n"
        "                         torch.nn.Linear(32, 10))\n"
    )
    (folder / "metric.py").write_text(
        "def accuracy(y_true, y_pred):\n    return (y_pred.argmax(1) == y_true.reshape(-1)).mean()\n"
    )
    trainer = {
        "mode": "epoch", "num_local_epochs": 2, "optim": "SGD", "optim_args": {"lr": 0.1},
        "loss_fn": "CrossEntropyLoss",
        "train_batch_size": 32, "val_batch_size": 64, "train_data_shuffle": True, "do_validation": False,
        "optimize_memory": False, "metric_path": str(folder / "metric.py"), "metric_name": "accuracy",
    }  # fmt: skip
    where = {"model_path": str(folder / "net.py"), "model_name": "Net"}
    config = {
        "model_configs": where,
        "log_configs": {"logging_output_dirname": str(folder / "logs")},
        "server_configs": {"optimize_memory": False}
        | ({"aggregator_path": str(BY_PATH)} if aggregator == "Aggregator" else {}),
        "algorithm_configs": {
            "trainer": "VanillaTrainer", "trainer_kwargs": trainer, "device": "cpu", "num_global_epochs": epochs,
            "scheduler": "AsyncScheduler", "scheduler_kwargs": {"num_clients": 4, "optimize_memory": False},
            "aggregator": aggregator, "aggregator_kwargs": {"num_clients": 4, **where, **kwargs},
        },
    }  # fmt: skip
    data = digits.load(4, alpha=10.0, seed=0)
    sets = [torch.utils.data.TensorDataset(part.x, part.y) for part in data.clients]
    agent = agents()
    server = agent.SimServerAgent(OmegaConf.create(config))
    clients = [
        agent.SimClientAgent(OmegaConf.create(config), client_id=f"site-{number}", client_dataset=(part, part))
        for number, part in enumerate(sets)
    ]
    return server, clients, data.test


def test_fedasync_in_the_virtual_time_simulator_is_appfls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same model, and the staleness that the simulator records is the delay that the server counts."""
    from appfl.vsim import AsyncSimDriver, ClientProfile

    torch.set_num_threads(1)
    delays, models, rows, plain = list[int](), [], [], Book.take

    def take(*given: Any, **how: Any) -> list[Any]:
        outcomes = plain(*given, **how)
        delays.extend(outcome.delay for outcome in outcomes)
        return outcomes

    theirs = {"alpha": 2.4, "staleness_fn": "polynomial", "staleness_fn_kwargs": {"a": 0.5}, "optimize_memory": False}
    ours = {"algorithm": "FedAsync", "settings": {"alpha": 0.6, "policy": "polynomial", "a": 0.5}}
    for name, kwargs in (("FedAsyncAggregator", theirs), ("Aggregator", ours)):
        server, clients, _ = federation(tmp_path, name, 16, **kwargs)
        profiles = {one.get_id(): ClientProfile(compute_factor=1.0 + 2.0 * n) for n, one in enumerate(clients)}
        driver = AsyncSimDriver(server, clients, profiles, 3, logging.getLogger("vsim"), base_step_time=0.01)
        if name == "Aggregator":
            monkeypatch.setattr(Book, "take", take)
        torch.manual_seed(0)  # of the clients' batches
        gc.freeze()
        driver.run()
        gc.unfreeze()
        models.append(server.get_parameters(serial_run=True))
        rows.append([(row["cid"], round(row["vtime"], 9), row["staleness"]) for row in driver.history])
    assert rows[0] == rows[1] and close(*models)
    assert delays == [staleness for _, _, staleness in rows[1]] and len(delays) == 16 and max(delays) > 1


def test_clients_whose_number_nobody_wrote_and_one_that_comes_later_count(caplog: pytest.LogCaptureFixture) -> None:
    """The scheduler knows how many there are, and APPFL's communicator who asks."""
    caplog.set_level(logging.INFO)
    aggregator = Aggregator(None, OmegaConf.create({"algorithm": "FedBuff", "settings": {"buffer_size": 1}}))
    aggregator._start(MODEL)
    scheduler = AsyncScheduler(OmegaConf.create({"num_clients": 3}), aggregator, logging.getLogger())
    first = [scheduler.get_parameters(init_model=True) for _ in range(3)]  # one call of the aggregator for all
    for client, future in zip("abc", first, strict=True):
        scheduler.schedule(client, upload(1.0, future.result()))
    late = scheduler.get_parameters(init_model=False)
    scheduler.schedule("d", upload(1.0, late))
    assert aggregator.session.tally.updates == 4 and "refused" not in caplog.text
    # Two models of different versions are out, to whom nobody says: which of them a stranger has is never guessed.
    for turn in range(2):
        late = scheduler.get_parameters(init_model=False)
        scheduler.schedule("a", upload(2.0 + turn, aggregator.get_parameters(client_id="a")))
    sent = scheduler.schedule("e", upload(1.0, late))
    assert "client e: refused: this server never sent it a model" in caplog.text
    scheduler.schedule("e", upload(1.0, sent))
    communicator = {"__name__": "appfl.comm.grpc.server", "agent": scheduler}
    exec("def serve(client_id):\n    return agent.get_parameters(init_model=False)", communicator)
    for client in "fg":
        scheduler.schedule("a", upload(5.0, aggregator.get_parameters(client_id="a")))
        scheduler.schedule(client, upload(1.0, communicator["serve"](client)))
    assert aggregator.session.tally.updates == 11 and caplog.text.count("refused") == 1
