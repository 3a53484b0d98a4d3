"""How updates and models come: the engine reads usual forms by itself; models are added without a difference in memory,
up to four of one base in one loop. That all forms have the same bits: tests/fuzz.
"""

import math
import random
from typing import Any

import pytest
import torch
from support import inside
from support.forms import FORMS, Arrays, cast
from support.models import same

import fastagg
from fastagg.errors import ConfigError, NonFiniteUpdate, ShapeMismatch, UnknownVersion
from fastagg.model import Layout
from fastagg.storage import memory

pytestmark = pytest.mark.kernel

SMALL = {"scalar": (), "weight": (7, 3), "half": (7,), "deep": (2, 1, 5)}
LARGE = {**SMALL, "deep": (3, 5, 1201)}  # long enough to be read once, and no multiple of anything
STATISTICS = {"bn.running_mean": (5,), "bn.running_var": (5,), "bn.num_batches_tracked": ()}


def arrays(seed: int, shapes: dict[str, tuple[int, ...]]) -> Arrays:
    """Small changes, and statistics as clients have them."""
    g = torch.Generator().manual_seed(seed)
    found = {name: torch.randn(shape, generator=g) * 0.1 for name, shape in (shapes | STATISTICS).items()}
    found["bn.running_var"].abs_()
    found["bn.num_batches_tracked"] = torch.randint(0, 50, (), generator=g)
    return found


WIRES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)  # of trained models


def model(shapes: dict[str, tuple[int, ...]]) -> Arrays:
    """The large one is in fp32, so that models are added without their differences; of the small one a part is not."""
    dtype = torch.float16 if shapes is SMALL else torch.float32
    return {name: value.to(dtype) if name == "half" else value for name, value in arrays(99, shapes).items()}


@pytest.mark.parametrize("form", FORMS)
def test_the_engine_reads_usual_forms_by_itself(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make, by_itself, _ = FORMS[form]
    server = fastagg.FADAS(model(SMALL), lr=0.1, buffer_size=2)
    server.dispatch(0)
    monkeypatch.setattr(Layout, "parse", None)
    assert (inside.engine(server).receive(0, make(arrays(1, SMALL)), *[None] * 5) is not None) == by_itself


def test_names_whose_comparison_changes_the_update() -> None:
    """A name that runs Python while the engine looks for the next array."""
    update: dict[Any, Any] = dict(arrays(1, SMALL))

    class Name(str):
        def __eq__(self, other: object) -> bool:
            update.clear()
            return str.__eq__(self, other)

        __hash__ = str.__hash__

    update[Name("weight")] = update.pop("weight")
    server = fastagg.FedBuff(model(SMALL))
    server.dispatch(0)
    with pytest.raises(ShapeMismatch):
        server.receive(0, update)


def test_a_model_in_place_of_a_difference_is_noticed() -> None:
    server = fastagg.FedBuff({"w": torch.linspace(1, 2, 30)})
    server.dispatch(0)
    with pytest.warns(UserWarning, match="nearly the model"):
        server.receive(0, {name: value * 1.01 for name, value in server.parameters().items()})


# -- trained models ----------------------------------------------------------------------------------------------------


def test_models_of_a_gradient_rule_and_of_nobody() -> None:
    server = fastagg.ASGD(model(SMALL), lr=0.1)
    with pytest.raises(ConfigError, match="gradient"):
        server.receive_model(server.dispatch(1), model(SMALL))
    assert server.receive_many([]) == []


def test_finite_models_may_be_an_infinite_way_apart(isa: str) -> None:
    server = fastagg.FedAvg({"a": torch.ones(3), "b": torch.full((3,), -3e38)}, clients_per_round=3)
    task = server.dispatch(0)
    before = server.state_dict()
    far = {**task.params, "b": torch.full((3,), 3e38)}
    with pytest.raises(NonFiniteUpdate):
        server.receive_model(task, far, 1)
    (refused,) = server.receive_many([fastagg.Answer.to(task, {**far, "a": torch.full((3,), math.nan)}, 1)])
    assert isinstance(refused, NonFiniteUpdate) and "'a'" in str(refused)
    assert same(before, server.state_dict())
    server.receive_model(task, task.params, 1)
    with pytest.raises(UnknownVersion):
        server.receive_model(task, task.params, 1)


def test_two_reserved_vectors_serve_every_round() -> None:
    """One vector is the sum, and the next sum goes to the other. A step frees the model that it replaces."""
    size = 600_000
    server = fastagg.FedAvg(torch.zeros(size), clients_per_round=4, weighting="uniform")
    memory.trim()
    memory.reserve(size, 2)
    seen = set()
    for turn in range(24):
        server.receive_model(server.dispatch(turn % 4), torch.full((size,), float(turn)))
        seen.add(server.flat.data_ptr())
    assert server.version == 6 and len(seen) <= 4  # new memory would be at other places


@pytest.mark.parametrize("differences", [False, True])
@pytest.mark.parametrize("cache", [0, 1])
def test_groups_of_models_in_one_loop(cache: int, differences: bool, tuning: Any, isa: str) -> None:
    """Up to four models with one base are read at once, over runs that end with the shortest array of any. A refused
    one is not in the sum, and its client sends another one. What a client holds is not written over."""
    tuning(cache=cache)
    start = {str(i): torch.linspace(-1.0, 1.0, n) for i, n in enumerate((5000, 1, 1024, 70_001, 37))}

    def trained(task: fastagg.Dispatch, seed: int) -> Arrays:
        g = torch.Generator().manual_seed(seed)
        return {name: value + torch.randn(value.shape, generator=g) * 0.1 for name, value in task.params.items()}

    for count in (1, 2, 3, 4, 5, 7):
        ours, plain = servers = [fastagg.FedBuff(start, buffer_size=50) for _ in range(2)]
        tasks = [[server.dispatch(client) for server in servers] for client in range(count - 4)]
        for server in servers:  # a step: the others begin with another base
            server.receive_model(server.dispatch("z"), {name: value + 0.5 for name, value in start.items()})
            server.close_round()
        tasks += [[server.dispatch(client) for server in servers] for client in range(len(tasks), count)]
        held = [(task, {name: value.clone() for name, value in task.params.items()}) for task, _ in tasks]
        answers = []
        for client, (task, other) in enumerate(tasks):
            good = cast(trained(task, client), WIRES[client % 3])
            plain.receive(client, task.delta(good), other.version)
            answers.append((task, task.delta(good) if differences else good, None))
        bad = {**answers[-1][1], "3": answers[-1][1]["3"].clone()}
        bad["3"][(-1, 0, 35_000)[count % 3]] = (math.inf, math.nan, -math.inf)[count % 3]
        kind = "delta" if differences else "model"
        sent = [*answers[:-1], (tasks[-1][0], bad, None)]
        outcomes = ours.receive_many([fastagg.Answer.to(*answer, kind=kind) for answer in sent])
        assert [type(one) for one in outcomes] == [fastagg.Receipt] * (count - 1) + [NonFiniteUpdate]
        ours.receive_model(answers[-1][0], answers[-1][1], difference=differences)
        for server in servers:
            server.close_round()
        assert ours.version == plain.version == 2 and torch.equal(ours.flat, plain.flat)
        assert all(same(task.params, kept) for task, kept in held)


@pytest.mark.parametrize("cache", [0, 1])
def test_groups_of_updates_in_one_loop(cache: int, tuning: Any, isa: str) -> None:
    """Several are added in one pass: receipts with norms, refusals, sums and the signs of zeros are those of one after
    the other, also where a round ends, or an encoded one, one of another type or one too large comes between."""
    tuning(cache=cache)
    size, chance = 70_003, random.Random(isa)
    staleness, optimizer = fastagg.Polynomial(0.5), fastagg.Adagrad(0.1)

    def bits(server: fastagg.Server) -> list[Any]:
        vectors = server.flat, server.state_dict()["direction"].get("acc")
        return [one.view(torch.int32).clone() for one in vectors if one is not None]

    def drawn(seed: int) -> Any:
        found = torch.randn(size, generator=torch.Generator().manual_seed(seed))
        found[:: 2 + seed % 3] = -0.0
        if (kind := chance.random()) < 0.1:
            found[-1 - seed] = chance.choice((math.nan, -math.inf, 3e38))
        elif kind < 0.3:
            return found.to(chance.choice((torch.float16, torch.bfloat16)))
        return fastagg.encode(found, "int8", seed=seed) if kind > 0.95 else found

    for capacity in (4, 50):
        ours, plain = (
            fastagg.Server(torch.zeros(size), fastagg.Buffer(capacity), optimizer, staleness) for _ in range(2)
        )
        for turn in range(8):
            count = chance.randint(1, 9)
            clients = [client for client in range(count) if client != turn % 5]  # that one has an older version
            for server in (ours, plain):
                for client in clients:
                    server.dispatch(client)
            answers = [(client, drawn(100 * turn + client)) for client in (*clients, turn % 5)]
            found = ours.receive_many(answers)
            for outcome, answer in zip(found, answers, strict=True):
                (other,) = plain.receive_many([answer])
                assert repr(outcome) == repr(other)
            assert same(bits(ours), bits(plain))
        assert ours.close_round() == plain.close_round()
        assert same(bits(ours), bits(plain)) and ours.version > 0
