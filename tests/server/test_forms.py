"""How updates and models come: in another form than their sender says, and up to four models of one base in one loop,
added without a difference in memory. That all forms have the same bits: tests/fuzz.
"""

import math
import warnings
from collections.abc import Callable
from typing import Any

import prometheus_client
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import inside
from support.forms import Arrays, cast
from support.models import same

import fastagg
from fastagg.errors import NonFiniteUpdate, ShapeMismatch, UnknownVersion

pytestmark = pytest.mark.kernel

WIRES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)  # of trained models


# -- answers in another form than their sender says --------------------------------------------------------------------

MODEL = {"w": torch.linspace(1, 2, 30), "b": torch.linspace(-1, 1, 2000)}
DELTA = {name: torch.sin(value * 99) * 0.02 for name, value in MODEL.items()}
TRAINED = {name: value + DELTA[name] for name, value in MODEL.items()}


def test_names_whose_comparison_changes_the_update() -> None:
    """A name that runs Python while the engine looks for the next array."""
    update: dict[Any, Any] = dict(DELTA)

    class Name(str):
        def __eq__(self, other: object) -> bool:
            update.clear()
            return str.__eq__(self, other)

        __hash__ = str.__hash__

    update[Name("w")] = update.pop("w")
    server = fastagg.FedBuff(MODEL)
    server.dispatch(0)
    with pytest.raises(ShapeMismatch):
        server.receive(0, update)


def flat(update: Arrays) -> torch.Tensor:
    return torch.cat([value.reshape(-1) for value in update.values()])


def in_chunks(server: fastagg.Server, update: Arrays) -> None:
    with server.receiving("ann") as upload:
        upload.write(flat(update).numpy().tobytes())


# How an update, and how a trained model, comes to a server.
ROADS: dict[str, Callable[[fastagg.Server, Arrays], object]] = {
    "arrays": lambda server, update: server.receive("ann", update),
    "flat": lambda server, update: server.receive("ann", flat(update)),
    "numpy": lambda server, update: server.receive("ann", flat(update).numpy()),
    "half": lambda server, update: server.receive("ann", flat(update).bfloat16()),
    "int8": lambda server, update: server.receive("ann", fastagg.encode(update, "int8", seed=0)),
    "many": lambda server, update: server.receive_many([("ann", update), ("bob", DELTA)]),
    "difference": lambda server, update: server.receive("ann", server.dispatch("ann").from_difference(update)),
    "chunks": in_chunks,
}
TRAINED_ROADS: dict[str, Callable[[fastagg.Server, Arrays], object]] = {
    "model": lambda server, model: server.receive_model(server.dispatch("ann"), model),
    "many models": lambda server, model: server.receive_many([fastagg.Answer.to(server.dispatch("ann"), model)]),
    "delta": lambda server, model: server.receive("ann", server.dispatch("ann").delta(model)),
}


@pytest.mark.parametrize("road", [*ROADS, *TRAINED_ROADS])
def test_an_answer_in_another_form_is_told_once_and_counted(road: str) -> None:
    server = fastagg.FedBuff(MODEL, buffer_size=50)
    numbers = prometheus_client.CollectorRegistry()
    fastagg.watch(server, numbers)
    right, wrong = (DELTA, TRAINED) if road in ROADS else (TRAINED, DELTA)
    send = {**ROADS, **TRAINED_ROADS}[road]
    for update, told, counted in ((right, 0, 0), (wrong, 1, 1), (wrong, 0, 2), (right, 0, 2)):
        for client in ("ann", "bob"):
            server.dispatch(client)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            send(server, update)
        said = [warning for warning in caught if "'ann'" in str(warning.message)]
        assert len(said) == told and all(warning.filename == __file__ for warning in said)
        assert numbers.get_sample_value("fastagg_misformed_updates") == counted
        assert inside.engine(server).misformed == counted


def is_misformed(update: torch.Tensor, model: torch.Tensor) -> bool:
    """The definition, on all elements."""
    if update.unique().numel() == 1:
        return False
    update, model = update.double(), model.double()
    return bool(min((update - model).norm(), (update + model).norm()) < 0.1 * update.norm())


@given(
    size=st.sampled_from([16, 30, 1024]),
    scale=st.sampled_from([0.0, 0.05, 0.09, 0.11, 0.3, 1.0, 3.0]),
    sign=st.sampled_from([1, -1]),
    dtype=st.sampled_from([torch.float32, torch.float16, torch.bfloat16]),
    length=st.sampled_from([0.0, 1e-3, 1.0]),
    seed=st.integers(0, 9),
)
def test_small_models_are_compared_whole(
    size: int, scale: float, sign: int, dtype: torch.dtype, length: float, seed: int
) -> None:
    g = torch.Generator().manual_seed(seed)
    model, noise = (torch.sign(torch.randn(size, generator=g)) * length for _ in range(2))
    update = (sign * model + scale * noise).to(dtype)
    server = fastagg.ASGD(model, lr=0.0)
    server.dispatch("ann")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        server.receive("ann", update)
    assert inside.engine(server).misformed == is_misformed(update, model)


# -- trained models ----------------------------------------------------------------------------------------------------


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


def test_a_client_that_sends_counters_alone_leaves_the_mean_to_the_others() -> None:
    server = fastagg.FedBuff(torch.nn.BatchNorm1d(2), buffer_size=3)
    for client, number in (("ann", 1.0), ("bob", None), ("cleo", 3.0)):
        update = {name: torch.zeros_like(array) for name, array in server.dispatch(client).params.items()}
        update["num_batches_tracked"] = torch.tensor(5)
        if number is None:
            del update["running_mean"], update["running_var"]
        else:
            update["running_mean"], update["running_var"] = torch.full((2,), number), torch.ones(2)
        server.receive(client, update)
    model = server.parameters()
    assert torch.equal(model["running_mean"], torch.full((2,), 2.0)) and int(model["num_batches_tracked"]) == 5
