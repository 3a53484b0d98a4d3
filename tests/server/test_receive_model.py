"""Adding a trained model gives the same bits as adding its difference, for all rules, models and types."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from support.models import same

import fastagg
from fastagg.storage import memory

pytestmark = pytest.mark.kernel

RULES = {
    "FedAvg": partial(fastagg.FedAvg, clients_per_round=3),
    "one": partial(fastagg.FedAvg, clients_per_round=1),
    "FedAdam": partial(fastagg.FedAdam, clients_per_round=3, lr=0.1, weighting="samples"),
    "clipped": partial(fastagg.FedAvg, clients_per_round=3, clip_norm=0.5),
    "FADAS": partial(fastagg.FADAS, lr=0.1, buffer_size=2),
    "FedAsync": fastagg.FedAsync,
    "AsyncFedED": partial(fastagg.AsyncFedED, lam=1.0, eps=1.0),
}


def state(dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    draw = torch.Generator().manual_seed(1)
    arrays = {"w": torch.randn(7, 500, generator=draw).to(dtype), "b": torch.randn(7, generator=draw)}
    return {**arrays, "bn.running_var": torch.ones(5), "bn.num_batches_tracked": torch.tensor(2)}


def moved(params: dict[str, torch.Tensor], seed: int, wire: torch.dtype) -> dict[str, torch.Tensor]:
    draw, arrays = torch.Generator().manual_seed(seed), {}
    for name, array in params.items():
        step = torch.randn(array.shape, generator=draw) * 0.1
        keep = name.endswith("tracked")
        arrays[name] = array + seed if keep else (array + step).to(wire)
    return arrays


@pytest.mark.parametrize("difference", [False, True])
@pytest.mark.parametrize("wire", [torch.float32, torch.float16, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_the_same_bits(name: str, dtype: torch.dtype, wire: torch.dtype, difference: bool) -> None:
    ours, plain = RULES[name](state(dtype)), RULES[name](state(dtype))
    for turn in range(7):
        tasks = [server.dispatch(turn % 4) for server in (ours, plain)]
        trained = moved(tasks[0].params, turn, wire)
        update = tasks[1].delta(trained)
        given = {k: v.to(wire) if k in "wb" else v for k, v in update.items()} if difference else trained
        update = given if difference else update
        if difference and wire is torch.float64:
            with pytest.raises(fastagg.DTypeMismatch):
                ours.receive_model(tasks[0], given, num_samples=1, difference=True)
            return
        receipt = ours.receive_model(tasks[0], given, num_samples=turn + 1, difference=difference)
        other = plain.receive(turn % 4, update, tasks[1].version, num_samples=turn + 1)
        assert (receipt.applied, receipt.version, receipt.step_size) == (other.applied, other.version, other.step_size)
    assert ours.version == plain.version > 0
    assert same(ours.state_dict(), plain.state_dict())


def test_a_round_may_mix_both_and_end_early() -> None:
    servers = [fastagg.FedAMS(state(), lr=0.1, clients_per_round=9) for _ in range(2)]
    for which, server in enumerate(servers):
        for client in range(4):
            task = server.dispatch(client)
            trained = moved(task.params, client, torch.float32)
            if client % 2 == which:
                server.receive_model(task, trained)
            else:
                server.receive(client, task.delta(trained))
        assert server.close_round() is not None
    assert torch.equal(servers[0].flat, servers[1].flat)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"w": torch.ones(2)}, fastagg.ShapeMismatch),
        ({"w": torch.full((7, 500), float("nan"))}, fastagg.NonFiniteUpdate),
        ({"b": torch.full((7,), 3e38)}, None),
        ({"b": torch.ones(7, dtype=torch.int64)}, fastagg.DTypeMismatch),
        ({"other": torch.ones(2)}, fastagg.ShapeMismatch),
    ],
)
def test_what_is_refused_changes_nothing(change: dict, error: type[Exception] | None) -> None:
    start = {**state(), "b": torch.full((7,), -3e38)} if error is None else state()
    server = fastagg.FedAvg(start, clients_per_round=3, weighting="uniform")
    first, task = server.dispatch(1), server.dispatch(2)
    server.receive_model(first, moved(first.params, 1, torch.float32) if error else first.params)
    before = server.state_dict()
    with pytest.raises(error or fastagg.NonFiniteUpdate):  # finite models may be an infinite way apart
        server.receive_model(task, {**task.params, **change})
    assert same(before, server.state_dict())
    server.receive_model(task, task.params)
    with pytest.raises(fastagg.UnknownVersion):
        server.receive_model(task, task.params)
    with pytest.raises(fastagg.ConfigError, match="gradient"):
        gradients = fastagg.ASGD(state(), lr=0.1)
        gradients.receive_model(gradients.dispatch(1), state())


@pytest.mark.parametrize("differences", [False, True])
@pytest.mark.parametrize("name", RULES)
def test_many_at_once_are_one_after_the_other(name: str, differences: bool) -> None:
    """Some answers are refused, one comes twice, and there are more of them than one step takes."""
    ours, plain = RULES[name](state()), RULES[name](state())
    for turn in range(3):
        answers = []
        for server in (ours, plain):
            tasks = [server.dispatch(client) for client in range(5)]
            models = [moved(task.params, turn + client, torch.float32) for client, task in enumerate(tasks)]
            if differences:
                models = [task.delta(model) for task, model in zip(tasks, models, strict=True)]
            models[1]["w"][3, 4] = float("nan")
            models[2]["bn.running_var"][0] = float("inf")
            given = [(task, models[client], client + 1) for client, task in enumerate(tasks)]
            late = [(tasks[3], {}, 1), *given[3:], (tasks[1], state(), 1)]
            answers.append([given[0], given[1], given[0], given[2], *late])
        alone = []
        for answer in answers[1]:
            try:
                alone.append(plain.receive_model(*answer, difference=differences))
            except fastagg.FastaggError as error:
                alone.append(error)
        together = ours.receive_models(answers[0], differences=differences)
        assert [str(a) for a in together] == [str(b) for b in alone]
        assert sum(isinstance(a, fastagg.Receipt) for a in together) >= (1 if name == "one" else 3)
        assert same(ours.state_dict(), plain.state_dict())
        for server in (ours, plain):
            for client in range(5):
                server.forget(client)


def test_a_batch_of_nothing_good_changes_nothing() -> None:
    server = fastagg.FedAvg(state(), clients_per_round=3, weighting="uniform")
    server.receive_model(server.dispatch(0), state())
    tasks = [server.dispatch(client) for client in (1, 2)]
    before = server.state_dict()
    bad = {**state(), "b": torch.full((7,), float("nan"))}
    refused = server.receive_models([(task, bad, None) for task in tasks])
    assert [type(error) for error in refused] == [fastagg.NonFiniteUpdate] * 2
    assert "'b'" in str(refused[0]) and same(before, server.state_dict())
    assert server.receive_models([]) == []


def test_a_version_that_a_client_holds_is_not_written_over() -> None:
    """A step may use the vector of the sum for the next version, and the next sum that of an old version."""
    server = fastagg.FADAS(state(), lr=0.1, buffer_size=2)
    held = []
    for turn in range(6):
        tasks = [server.dispatch(client) for client in range(2)]
        held.append((tasks[0], {name: array.clone() for name, array in tasks[0].params.items()}))
        receipts = server.receive_models([(task, moved(task.params, turn, torch.float32), None) for task in tasks])
        assert [receipt.applied for receipt in receipts] == [False, True]
    assert all(same(task.params, kept) for task, kept in held)


@pytest.mark.parametrize("stream_from", [0, 1], ids=["cached", "streamed"])
def test_one_by_one_refused_models_are_not_in_the_sum(stream_from: int, tuning, isa) -> None:
    """The bits are those of differences that are added up."""
    tuning(stream_from=stream_from)
    size = 600_037
    servers = [fastagg.FedAvg(torch.zeros(size), clients_per_round=4, weighting="uniform") for _ in range(2)]
    good = [torch.randn(size, generator=torch.Generator().manual_seed(k)) for k in range(4)]
    bad = good[0].clone()
    bad[-1] = float("inf")
    for client, trained in enumerate(good):
        task = servers[0].dispatch(client)
        with pytest.raises(fastagg.NonFiniteUpdate):
            servers[0].receive_model(task, bad)
        servers[0].receive_model(task, trained)
        servers[1].receive(client, servers[1].dispatch(client).delta(trained))
    assert servers[0].version == 1 and torch.equal(servers[0].flat, servers[1].flat)


def test_two_vectors_set_aside_serve_every_round() -> None:
    """One vector is the sum, and the next sum goes to the other. A step frees the model that it replaces."""
    size = 600_000
    server = fastagg.FedAvg(torch.zeros(size), clients_per_round=4, weighting="uniform")
    memory.trim()
    memory.set_aside(size, 2)
    seen = set()
    for turn in range(24):
        server.receive_model(server.dispatch(turn % 4), torch.full((size,), float(turn)))
        seen.add(server.flat.data_ptr())
    assert server.version == 6 and len(seen) <= 4  # new memory would be at other places


@pytest.mark.parametrize("differences", [False, True])
@pytest.mark.parametrize("stream_from", [0, 1])
def test_groups_of_models_in_one_loop(stream_from: int, differences: bool, tuning, isa) -> None:
    """Up to four models with one base are read at once, over runs that end with the shortest array of any."""
    tuning(stream_from=stream_from)
    sizes = (5000, 1, 1024, 9000, 37)
    model = {str(i): torch.linspace(-1.0, 1.0, n) for i, n in enumerate(sizes)}
    for count in range(2, 8):
        for bad in (None, count - 1):
            ours, plain = servers = [fastagg.FedBuff(model, buffer_size=50) for _ in range(2)]
            tasks = [[server.dispatch(client) for server in servers] for client in range(count - 4)]
            for server in servers:  # a step: the others begin with another base
                server.receive_model(server.dispatch("z"), {name: value + 0.5 for name, value in model.items()})
                server.close_round()
            tasks += [[server.dispatch(client) for server in servers] for client in range(len(tasks), count)]
            answers = []
            for client, (task, other) in enumerate(tasks):
                trained = moved(task.params, client, torch.float32)
                if client == bad:
                    trained["3"][8999] = torch.inf
                update = task.delta(trained)
                answers.append((task, update if differences else trained, None))
                if client != bad:
                    plain.receive(client, update, other.version)
            outcomes = ours.receive_models(answers, differences=differences)
            assert [isinstance(one, fastagg.FastaggError) for one in outcomes] == [i == bad for i in range(count)]
            for server in servers:
                server.close_round()
            assert ours.version == plain.version == 2 and torch.equal(ours.flat, plain.flat)
