"""A table of replies, limits and rules against every adapter, compared with the plain server."""

import copy
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
from own_median import Median, median
from support import inside

import fastagg
from fastagg.integrations.goals import Settings

Model = dict[str, torch.Tensor]
# Numbers that no type on the way rounds, and that sums of any order hold.
START = {"w": torch.arange(12.0).view(3, 4) / 8, "b": torch.zeros(5), "n": torch.tensor(7)}
CLIENTS = (1, 2, 3, 4)
PATIENT: dict[str, Any] = {"max_failures": None, "max_in_a_row": None}


def moved(sent: Model, by: float = 0.5, **changes: Any) -> Model:
    return {n: a + by if a.is_floating_point() else a + 1 for n, a in sent.items()} | changes


def less(sent: Model) -> Model:
    return {n: torch.full_like(a, 0.25) if a.is_floating_point() else a + 3 for n, a in sent.items()}


def encoded(sent: Model, *, lies: bool = False) -> Model:
    """The arrays of an encoded difference. ``lies``: one has a scale below zero."""
    change = {n: a for n, a in less(sent).items() if a.is_floating_point()}
    found = {n: torch.from_numpy(a.copy()) for n, a in fastagg.encode(change, "int8", seed=0).arrays().items()}
    return {**found, "scales": -found["scales"]} if lies else found


def named(make: Callable[..., fastagg.Server]) -> str:
    """A preset, or a function of the user's own, as settings name it."""
    known = make in fastagg.registry.presets().values()
    return make.__name__ if known else f"{make.__module__}:{make.__name__}"


@dataclass(frozen=True)
class Row:
    """What a client answers to the model that it was sent.

    Attributes:
        behind: how much older than its task the version is that it states; None: it states none.
        refused: the name of the error, if it is refused.
    """

    arrays: Callable[[Model], Model] = moved
    kind: str = "model"
    samples: float = 10
    behind: int | None = None
    refused: str = ""


def typed(dtype: torch.dtype) -> Callable[[Model], Model]:
    return lambda sent: {n: a.to(dtype) if a.is_floating_point() else a for n, a in moved(sent).items()}


ROWS = {
    "model": Row(),
    "its version": Row(behind=0),
    "fp16": Row(typed(torch.float16)),
    "bf16": Row(typed(torch.bfloat16)),
    "fp64": Row(typed(torch.float64)),
    "columns first": Row(lambda sent: moved(sent, w=(sent["w"] + 0.5).t().contiguous().t())),
    "difference": Row(lambda sent: {**less(sent), "n": torch.tensor(3)}, "difference"),
    "delta": Row(less, "delta"),
    "encoded": Row(encoded, "encoded"),
    "encoded lies": Row(partial(encoded, lies=True), "encoded", refused="EncodingError"),
    "0 samples": Row(samples=0),
    "shape": Row(lambda sent: moved(sent, b=torch.ones(2)), refused="ShapeMismatch"),
    "name": Row(lambda sent: moved(sent, more=torch.ones(2)), refused="ShapeMismatch"),
    "no name": Row(lambda sent: {"w": sent["w"]}, refused="ShapeMismatch"),
    "NaN": Row(partial(moved, by=float("nan")), refused="NonFiniteUpdate"),
    "infinity": Row(lambda sent: moved(sent, b=torch.full((5,), torch.inf)), refused="NonFiniteUpdate"),
    "too large": Row(partial(moved, by=1e30), refused="UpdateTooLarge"),
    "whole numbers": Row(lambda sent: moved(sent, b=torch.ones(5, dtype=torch.int64)), refused="DTypeMismatch"),
    "negative samples": Row(samples=-3, refused="ConfigError"),
    "other kind": Row(less, "gradient", refused="ConfigError"),
    "old version": Row(behind=1, refused="UnknownVersion"),
}  # fmt: skip


class Plain:
    """The server, and nothing else. Adapters are compared with it."""

    rounds, kinds, lacks = False, ("model", "difference", "delta", "gradient", "encoded"), frozenset[str]()

    def __init__(self, make: Callable[..., fastagg.Server], **settings: Any) -> None:
        self.server, self.tasks = make(dict(START), **settings), dict[int, fastagg.Dispatch]()
        self.updates, self.refused = 0, Counter[str]()

    def send(self, client: int) -> Model:
        self.tasks[client] = self.server.dispatch(client)
        return self.tasks[client].params

    def answer(self, client: int, row: Row, arrays: Model) -> None:
        task = self.tasks[client]
        try:
            if row.behind:
                raise fastagg.UnknownVersion("it states another version")
            if row.kind in ("model", "difference"):
                different = row.kind == "difference"
                arrays = task.from_difference(arrays) if different else arrays
                self.server.receive_model(task, arrays, row.samples, difference=different)
            elif row.kind == "encoded":
                self.server.receive(client, fastagg.Encoded.from_arrays(arrays), task.version, row.samples)
            else:
                self.server.receive(client, arrays, task.version, row.samples, kind=row.kind, task=task.id)
            self.updates += 1
        except fastagg.FastaggError as error:
            name = type(error).__name__
            self.refused["LateReply" if name.startswith("Unknown") and not row.refused else name] += 1

    def end_round(self) -> None:
        if self.rounds:
            self.server.close_round()


class PlainInRounds(Plain):
    rounds = True


class Adapter(Plain):
    """What adapters have in common: a session that counts."""

    session: Any
    of = Plain
    package = ""

    @property
    def server(self) -> fastagg.Server:  # type: ignore[override]
        return self.session.server

    @property
    def updates(self) -> int:  # type: ignore[override]
        return self.session.tally.updates

    @property
    def refused(self) -> Counter[str]:  # type: ignore[override]
        return self.session.tally.refused

    def end_round(self) -> None: ...


class Flower(Adapter):
    package = "flwr"

    def __init__(self, make: Callable[..., fastagg.Server], **settings: Any) -> None:
        from flwr.app import ConfigRecord
        from support.flower_apps import FakeGrid

        from fastagg.integrations import flower
        from fastagg.integrations.flower.asynchronous import _Training

        self.grid = FakeGrid(lambda message: None, [])
        strategy = flower.AsyncStrategy(partial(make, **settings), concurrency=99, retry_after=0, **PATIENT)
        start, nothing = flower.read(flower.write(START)), ConfigRecord()
        self.run = _Training(strategy, self.grid, 3600.0, None, start, nothing, nothing, None)
        self.session, self.got = self.run.session, dict[int, Any]()

    def send(self, client: int) -> Model:
        from support.flower_apps import model

        self.grid.nodes = [client]
        assert self.run.send()
        self.got[client] = self.grid.log[-1][1]
        return model(self.got[client])

    def message(self, client: int, row: Row, arrays: Model) -> Any:
        from flwr.app import Message
        from support.flower_apps import reply

        note: dict[str, Any] = {} if row.kind == "model" else {"kind": row.kind}
        if row.behind is not None:
            note["version"] = self.got[client].content["config"]["fastagg-version"] - row.behind
        return Message(reply(arrays, row.samples, **note), reply_to=self.got[client])  # type: ignore[arg-type]

    def answer(self, client: int, row: Row, arrays: Model) -> None:
        self.run._take(self.message(client, row, arrays))


class FlowerRounds(Flower):
    of, rounds = PlainInRounds, True

    def __init__(self, make: Callable[..., fastagg.Server], **settings: Any) -> None:
        from fastagg.integrations import flower

        self.strategy = flower.SyncStrategy(partial(make, **settings), fraction_evaluate=0.0, max_in_a_row=None)
        self.arrays, self.number, self.sent, self.came = flower.write(START), 0, dict[int, Any](), list[Any]()
        self.strategy.resumed(self.arrays)
        assert self.strategy.session is not None
        self.session, self.got = self.strategy.session, dict[int, Any]()

    def send(self, client: int) -> Model:
        from flwr.app import ConfigRecord
        from support.flower_apps import FakeGrid, model

        if not self.got:
            self.number += 1
            grid = FakeGrid(lambda message: None, CLIENTS)
            sent = list(self.strategy.configure_train(self.number, self.arrays, ConfigRecord(), grid))
            grid.push_messages(sent)  # they get ids
            self.got = {message.metadata.dst_node_id: message for message in sent}
        return model(self.got[client])

    def answer(self, client: int, row: Row, arrays: Model) -> None:
        self.came.append(self.message(client, row, arrays))

    def end_round(self) -> None:
        arrays, _ = self.strategy.aggregate_train(self.number, self.came)
        self.arrays, self.got, self.came = self.arrays if arrays is None else arrays, {}, []


class FlowerClassic(Adapter):
    """Of a list of arrays. ``lacks``: .npy files alone do not say bf16."""

    package, of, rounds = "flwr", PlainInRounds, True
    lacks = frozenset({"bf16"})

    def __init__(self, make: Callable[..., fastagg.Server], **settings: Any) -> None:
        from flwr.common import Parameters

        from fastagg.integrations import flower
        from fastagg.integrations.flower.records import to_npy

        self.pack = lambda arrays: Parameters([to_npy(a)[2] for a in arrays.values()], "numpy.ndarray")
        self.strategy = flower.ClassicStrategy(partial(make, **settings))
        self.parameters, self.number, self.sent = self.pack(START), 0, False
        self.results: list[Any] = []
        self.strategy.evaluate(0, self.parameters)  # as Flower does first
        self.session = self.strategy.session

    def send(self, client: int) -> Model:
        from fastagg.integrations.flower.records import from_npy

        if not self.sent:
            self.number, self.sent = self.number + 1, True
            proxies = [type("Proxy", (), {"cid": str(one)})() for one in CLIENTS]
            manager = type("Manager", (), {"num_available": lambda _: 4, "sample": lambda _, **how: proxies})()
            self.strategy.configure_fit(self.number, self.parameters, manager)
        return {n: from_npy(data).clone() for n, data in zip(START, self.parameters.tensors, strict=True)}

    def answer(self, client: int, row: Row, arrays: Model) -> None:
        from flwr.common import Code, FitRes, Status

        note: dict[str, Any] = {} if row.kind == "model" else {"fastagg-kind": row.kind}
        if row.behind is not None:
            note["fastagg-version"] = self.server.version - row.behind
        result = FitRes(Status(Code.OK, ""), self.pack(arrays), row.samples, note)  # type: ignore[arg-type]
        self.results.append((type("Proxy", (), {"cid": str(client)})(), result))

    def end_round(self) -> None:
        parameters, _ = self.strategy.aggregate_fit(self.number, self.results, [])
        self.parameters, self.sent, self.results = parameters or self.parameters, False, []


class Flare(Adapter):
    """``lacks``: arrays that are not there are the model's own."""

    package, lacks = "nvflare", frozenset({"no name"})
    numpy = True

    def __init__(self, make: Callable[..., fastagg.Server], **settings: Any) -> None:
        from fastagg.integrations.nvflare import Traffic
        from fastagg.integrations.run import FLARE, AdapterRun, Rule

        rule = Rule(FLARE, named(make), settings, rounds=False)
        self.traffic = Traffic(AdapterRun(rule, Settings(retry_after=0.0, **PATIENT)))
        self.traffic.start({n: a.numpy() for n, a in START.items()} if self.numpy else dict(START))
        self.session, self.number = self.traffic.session, dict[int, Any]()

    def send(self, client: int) -> Model:
        task = self.traffic.send(str(client))
        self.number[client] = task.current_round
        return {n: torch.as_tensor(copy.deepcopy(a)) for n, a in task.params.items()}

    def reply(self, client: int, row: Row, arrays: Model) -> Any:
        from nvflare.app_common.abstract.fl_model import FLModel, ParamsType

        meta: dict[str, Any] = {"client_name": str(client), "NUM_STEPS_CURRENT_ROUND": row.samples}
        if row.kind in ("delta", "gradient", "encoded"):
            meta["fastagg_kind"] = row.kind
        if row.behind is not None:
            meta["fastagg_version"] = self.session.server.version - row.behind
        kind = ParamsType.FULL if row.kind == "model" else ParamsType.DIFF
        given = {n: a.numpy() if self.numpy and a.dtype != torch.bfloat16 else a for n, a in arrays.items()}
        return FLModel(kind, given, current_round=self.number[client], meta=meta)

    def answer(self, client: int, row: Row, arrays: Model) -> None:
        self.traffic.take(str(client), self.reply(client, row, arrays))


class FlareTorch(Flare):
    numpy = False


class FlareRounds(Flare):
    of, rounds, at_once = PlainInRounds, True, 3

    def __init__(self, make: Callable[..., fastagg.Server], **settings: Any) -> None:
        from fastagg.integrations.nvflare import Aggregator

        self.aggregator, self.round = Aggregator(named(make), settings, at_once=self.at_once), 0
        self.params = {n: a.numpy() for n, a in START.items()} if self.numpy else dict(START)
        self.number = dict[int, Any]()
        self.aggregator.begin(dict(self.params))
        self.session.failures.max_failures = self.session.failures.max_in_a_row = None

    @property
    def session(self) -> Any:  # type: ignore[override]
        return self.aggregator._traffic.session

    def send(self, client: int) -> Model:
        from nvflare.app_common.abstract.fl_model import FLModel, ParamsType

        self.number[client] = self.round
        self.aggregator.sent(str(client), FLModel(ParamsType.FULL, dict(self.params), current_round=self.round))
        return {n: torch.as_tensor(copy.deepcopy(a)) for n, a in self.params.items()}

    def answer(self, client: int, row: Row, arrays: Model) -> None:
        try:
            self.aggregator.accept_model(self.reply(client, row, arrays))
        except fastagg.FastaggError as error:
            assert row.refused or "owes none" in str(error)  # what is over is no error

    def end_round(self) -> None:
        self.params, self.round = self.aggregator.aggregate_model().params, self.round + 1


class FlareOneByOne(FlareRounds):
    at_once = 1


class Appfl(Adapter):
    package, kinds = "appfl", ("model", "encoded")

    def __init__(self, make: Callable[..., fastagg.Server], **settings: Any) -> None:
        from fastagg.integrations import appfl

        kind = appfl.SyncAggregator if self.rounds else appfl.Aggregator
        self.aggregator = kind(None, {"algorithm": named(make), "settings": settings, **PATIENT})
        self.aggregator._start(dict(START))
        self.session = self.aggregator.session

    def send(self, client: int) -> Model:
        return {n: a.clone() for n, a in self.aggregator.get_parameters(client_id=client).items()}

    def answer(self, client: int, row: Row, arrays: Model) -> None:
        self.aggregator.client_sample_size[client] = row.samples
        meta: dict[str, Any] = {} if row.behind is None else {"version": self.server.version - row.behind}
        self.aggregator.aggregate(client, arrays, fastagg_kind=row.kind, **meta)


class AppflRounds(Appfl):
    """``lacks``: its uploads come at the end of a round, once, and without metadata."""

    of, rounds, lacks = (
        PlainInRounds,
        True,
        frozenset({"its version", "old version", "twice", "lease", "encoded", "encoded lies"}),
    )

    def __init__(self, make: Callable[..., fastagg.Server], **settings: Any) -> None:
        super().__init__(make, **settings)
        self.came: dict[int, Model] = {}

    def answer(self, client: int, row: Row, arrays: Model) -> None:
        self.aggregator.client_sample_size[client] = row.samples
        self.came[client] = arrays

    def end_round(self) -> None:
        self.aggregator.aggregate(self.came)
        self.came = {}


ADAPTERS = [Flower, FlowerRounds, FlowerClassic, Flare, FlareTorch, FlareRounds, FlareOneByOne, Appfl, AppflRounds]
Answers = list[tuple[int, Row]]


def begun(kind: type[Adapter], case: str, row: Row | None = None, **settings: Any) -> tuple[Plain, Adapter]:
    pytest.importorskip(kind.package)
    if case in kind.lacks or (row is not None and row.kind not in kind.kinds):
        pytest.skip("there is no such reply")
    rule = fastagg.FedAvg if kind.rounds else fastagg.FedBuff
    own = {"buffers": "weighted"} if kind.rounds else {"buffer_size": 2}
    settings = {"weighting": "samples", **own, **settings}
    return kind.of(rule, **settings, **({"clients_per_round": None} if kind.rounds else {})), kind(rule, **settings)


def played(
    pair: tuple[Plain, Adapter], *rounds: Answers, event: Callable[[fastagg.Server], object] | None = None
) -> Counter[str]:
    """Play rounds of answers on both, and compare them. ``event``: what happens before the first answer."""
    for number, answers in enumerate(rounds):
        sent = [{client: one.send(client) for client in CLIENTS} for one in pair]
        for one, models in zip(pair, sent, strict=True):
            if event is not None and number == 0:
                event(one.server)
            for client, row in answers:
                one.answer(client, row, row.arrays(models[client]))
            one.end_round()
    plain, adapter = pair
    assert torch.equal(adapter.server.flat, plain.server.flat) and adapter.server.version == plain.server.version > 0
    assert adapter.server.state_dict()["buffers"]["counters"] == plain.server.state_dict()["buffers"]["counters"]
    assert adapter.updates == plain.updates
    if not isinstance(adapter, Appfl):  # whose clients have their next task already
        adapter.server.expire()
        assert not len(adapter.server.state_dict()["tasks"]["task_client"])
    return plain.refused


GOOD: Answers = [(client, Row(partial(moved, by=client / 4), samples=client)) for client in CLIENTS]


@pytest.mark.parametrize("kind", ADAPTERS)
@pytest.mark.parametrize("name", ROWS)
def test_every_reply_is_what_the_server_alone_makes_of_it(name: str, kind: type[Adapter]) -> None:
    """It comes second of four. Then its client goes on."""
    row = ROWS[name]
    pair = begun(kind, name, row)
    refused = played(pair, [GOOD[0], (2, row), *GOOD[2:]], GOOD)
    assert refused == Counter([row.refused] if row.refused else [])
    assert pair[1].refused == refused


@pytest.mark.parametrize("kind", ADAPTERS)
def test_a_reply_that_comes_twice_counts_once(kind: type[Adapter]) -> None:
    assert played(begun(kind, "twice"), [GOOD[0], GOOD[1], GOOD[1], *GOOD[2:]], GOOD) == {"AlreadyCounted": 1}


@pytest.mark.parametrize("kind", ADAPTERS)
def test_an_answer_to_a_task_whose_lease_is_over_is_an_event(kind: type[Adapter]) -> None:
    pair = begun(kind, "lease", lease=60.0)
    pair[1].session.failures.failed = pytest.fail  # nobody's
    assert played(pair, GOOD, GOOD, event=lambda server: inside.pass_time(server, 61.0)) == {"LateReply": 4}
    assert pair[1].refused == {"LateReply": 4} and pair[1].session.tally.failed == 0


@pytest.mark.parametrize("kind", [one for one in ADAPTERS if not one.rounds])
def test_an_answer_to_a_task_that_is_too_old_is_an_event(kind: type[Adapter]) -> None:
    pair = begun(kind, "max_delay", max_delay=0)
    pair[1].session.failures.failed = pytest.fail
    assert played(pair, GOOD, GOOD, GOOD) == pair[1].refused == {"LateReply": 6}


@pytest.mark.parametrize("kind", [one for one in ADAPTERS if not one.rounds])
def test_an_answer_for_which_there_is_no_room_is_refused_and_its_client_goes_on(kind: type[Adapter]) -> None:
    pair = begun(kind, "max_waiting", max_waiting=1)
    for one in pair:
        models, engine = {client: one.send(client) for client in CLIENTS}, inside.engine(one.server)
        acts = one.server.expire, partial(one.answer, 1, Row(), moved(models[1]))
        threads = [threading.Thread(target=act) for act in acts]
        with engine.locked:  # a long step
            for thread in threads:
                before = engine.callers_waiting
                thread.start()
                while thread.is_alive() and engine.callers_waiting == before:
                    pass
        for thread in threads:
            thread.join()
        assert one.refused == {"Busy": 1}
        for client in CLIENTS[1:]:
            one.answer(client, Row(), moved(models[client]))
    assert played(pair, GOOD) == {"Busy": 1}


@pytest.mark.parametrize("kind", [one for one in ADAPTERS if not one.rounds])
def test_gradients(kind: type[Adapter]) -> None:
    """A model is none, though a framework sends one by default."""
    pytest.importorskip(kind.package)
    pair = Plain(fastagg.ASGD, lr=0.5), kind(fastagg.ASGD, lr=0.5)
    played(pair, [(client, Row(less, "gradient")) for client in CLIENTS])
    if kind is Appfl:  # what comes is what the rule takes
        return
    for client in CLIENTS[:2]:
        pair[1].answer(client, Row(), moved(pair[1].send(client)))
    assert pair[1].refused == {"ConfigError": 2} and pair[1].server.version == 4


@pytest.mark.parametrize("kind", ADAPTERS)
@pytest.mark.parametrize("size", [2, 4])
def test_a_rule_of_the_users_own(size: int, kind: type[Adapter]) -> None:
    """The median of docs/rules.md. Of two it makes two steps in a round, whose clients all started from its model."""
    pytest.importorskip(kind.package)
    pair = kind.of(median, size=size), kind(median, size=size)
    poison = [
        (client, Row(partial(moved, by=by))) for client, by in zip(CLIENTS, (0.5, 100.0, 1.0, -50.0), strict=True)
    ]
    played(pair, poison, poison)
    assert isinstance(pair[1].server.direction, Median) and pair[1].server.version == 8 // size


def test_a_direction_of_the_users_own_in_pfl() -> None:
    pytest.importorskip("pfl")
    from fastagg.integrations.pfl import CentralOptimizer

    net = torch.nn.Linear(2, 2)
    optimizer = CentralOptimizer(net, fastagg.SGD(1.0), Median(3, kind="gradient"))
    before = net.weight.detach().clone()
    for value in (0.5, 100.0, 1.0):
        assert torch.equal(net.weight, before)
        net.weight.grad = torch.full((2, 2), value)
        optimizer.step()
    assert torch.equal(net.weight, before - 1.0) and optimizer.server.version == 1
    with pytest.raises(fastagg.ConfigError, match='direction: expected kind="gradient"'):
        CentralOptimizer(net, fastagg.SGD(1.0), Median(3))
