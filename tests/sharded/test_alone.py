"""Sharded servers in one process: what is refused, how states are cut, and vectors in shared memory."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from support import inside
from support.presets import PRESETS, calls, model, tensors, update

import fastagg
from fastagg._build import native
from fastagg.ops.checks import update_of
from fastagg.shards import states
from fastagg.shards.link import Link
from fastagg.storage.pieces import Pieces

pytestmark = pytest.mark.kernel

GROUP = fastagg.ops.GROUP
SIZE = 3 * GROUP + 777


def fadas(piece: Any) -> fastagg.Server:
    return fastagg.FADAS(piece, buffer_size=2)


def test_sums_of_groups_of_slices_add_up_to_the_bits_of_the_norm() -> None:
    vector, x, base = (torch.randn(300 * GROUP // 4 + 5) for _ in range(3))
    parts = [native.group_sums(update_of(Pieces([part]))) for part in vector.split(17 * GROUP)]
    sums = [float(value) for part in parts for value in part[0]]
    total = native.total(torch.tensor(sums, dtype=torch.float64).numpy())
    assert math.sqrt(total) == fastagg.ops.inspect(vector).norm
    found = native.group_sums(update_of(Pieces([vector])), x=x.data_ptr(), base=base.data_ptr(), inner=True)
    expected = fastagg.ops.distances(vector, x, base, inner=True)
    assert (math.sqrt(native.total(found[1])), math.sqrt(native.total(found[0]))) == (expected.moved, expected.norm)
    assert native.total(found[2]) == expected.inner


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda piece: fastagg.FADAS(piece, validate="deferred"), "validate"),
        (lambda piece: fastagg.ACE(piece, lr=1.0, num_clients=2, cache=fastagg.Tiered()), "cache"),
        (lambda piece: fastagg.AsyncFedED(piece, lam=1.0, eps=1.0, sketch=1024), "sketch"),
        (lambda piece: fastagg.Server(piece, _Own()), "direction"),
        (lambda piece: fastagg.Server(piece, optimizer=_Steps(0.1)), "optimizer"),
        (lambda piece: fastagg.watch(fadas(piece), times="/dev/null"), "times"),
        (lambda piece: fastagg.FADAS(torch.zeros(SIZE)), "make"),
        (lambda piece: None, "make"),
    ],
)
def test_what_a_slice_cannot_do_is_refused_by_name(make: Any, said: str) -> None:
    with pytest.raises(fastagg.ConfigError, match=f"^{said}: "):
        fastagg.sharded(make, torch.zeros(SIZE))


class _Own(fastagg.Direction):
    def combine(self, update: Any, facts: Any, state: Any) -> Any:
        return update, state


class _Steps(fastagg.Optimizer):
    def step(self, x: Any, direction: Any, state: Any, lr: float, round: int) -> Any:
        return x + lr * direction, state


def test_running_statistics_are_refused() -> None:
    with pytest.raises(fastagg.ConfigError, match="running statistics"):
        fastagg.sharded(fadas, torch.nn.Sequential(torch.nn.Linear(9, 9), torch.nn.BatchNorm1d(9)))


def test_a_group_without_torch_distributed_is_refused() -> None:
    with pytest.raises(fastagg.ConfigError, match="not started"):
        fastagg.sharded(fadas, torch.zeros(SIZE), object())


def test_a_module_comes_back_in_its_own_form() -> None:
    net = torch.nn.Sequential(torch.nn.Linear(300, 300), torch.nn.Tanh(), torch.nn.Linear(300, 7)).half()
    alone, server = fadas(net), fastagg.sharded(fadas, net)
    for number in range(4):
        task = alone.dispatch(number)
        server.dispatch(number)
        trained = {name: value + 0.01 for name, value in task.params.items()}
        assert server.receive(number, task.delta(trained)) == alone.receive(number, task.delta(trained))
    found = server.parameters()
    assert found.keys() == net.state_dict().keys()
    net.load_state_dict(found)
    assert all(torch.equal(found[name], value) for name, value in alone.parameters().items())
    assert server.version == alone.version == 2 and server.steps == 2


def test_what_a_server_has_and_a_sharded_one_has_not() -> None:
    server = fastagg.sharded(fadas, torch.zeros(SIZE))
    with pytest.raises(fastagg.errors.NotSharded, match="receive_models"):
        server.receive_models([])
    with pytest.raises(fastagg.ConfigError, match="times: a server in slices"):
        fastagg.watch(server, times="/dev/null")
    with pytest.raises(fastagg.errors.NotSharded, match="rank 0 leads"):
        server.follow()
    with pytest.raises(fastagg.errors.NotSharded, match="state_dict"):
        server.state_dict()
    with pytest.raises(fastagg.errors.NotSharded, match="in no group"):
        fadas(torch.zeros(SIZE)).follow()
    assert server.slices() == [fastagg.Slice(0, 0, SIZE, server.slices()[0].host)]
    server.close()
    server.close()
    with pytest.raises(fastagg.RankLost):
        server.dispatch(1)


@pytest.mark.parametrize(
    "name", ["ACE, of five", "CA2FL, int4", "FADAS, moments in 8 bits", "FedAvg, deterministic", "FedAC"]
)
def test_a_state_cut_in_slices_and_joined_again_is_the_same(name: str) -> None:
    server = PRESETS[name](model(SIZE))
    for call in itertools.islice(calls(name, 15), 17):
        if call.number is None:
            server.dispatch(call.client)
        else:
            server.receive(call.client, update(call.number, SIZE), num_samples=3)
    whole = states.Part(0, SIZE, server.state_dict())
    at, sliced = [0, GROUP, 3 * GROUP, SIZE], inside.direction(server).sliced
    parts = [states.Part(a, b, states.slice_of([whole], a, b, sliced)) for a, b in itertools.pairwise(at)]
    middle = states.slice_of(states.overlapping(parts, GROUP, 2 * GROUP), GROUP, 2 * GROUP, sliced)
    assert torch.equal(middle["flat"], server.flat[GROUP : 2 * GROUP])
    joined = states.slice_of(parts, 0, SIZE, sliced)
    fresh = PRESETS[name](model(SIZE))
    fresh.load_state_dict({**whole.state, **joined})
    expected, found = tensors(server), tensors(fresh)
    assert expected.keys() == found.keys()
    assert all(torch.equal(found[key], value) for key, value in expected.items())
    before, after = server.state_dict()["direction"].get("scrub"), joined["direction"].get("scrub")
    if before is not None:
        assert sorted(after["blocks"]) == sorted(before["blocks"])
        assert (after["shadows"] is None) == (not before["blocks"])


def test_slices_that_leave_something_out_are_refused() -> None:
    parts = [states.Part(0, GROUP, {}), states.Part(2 * GROUP, SIZE, {})]
    with pytest.raises(fastagg.CheckpointError, match=f"leave out elements from {GROUP} on"):
        states.overlapping(parts, 0, SIZE)


def test_a_failed_save_leaves_the_checkpoint_that_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = fastagg.sharded(fadas, model(SIZE))
    server.save(tmp_path)
    server.dispatch(1)
    (tmp_path / "slice-other-0.pt").mkdir()
    monkeypatch.setattr("os.urandom", lambda count: b"\0" * count)
    (tmp_path / f"slice-{'00' * 6}-0.pt").mkdir()
    with pytest.raises(fastagg.CheckpointError):
        server.save(tmp_path)
    monkeypatch.undo()
    other = fastagg.sharded(fadas, torch.zeros(SIZE))
    other.load(tmp_path)
    assert torch.equal(other.flat, model(SIZE)) and other.version == 0
    (tmp_path / f"slice-{'00' * 6}-0.pt").rmdir()
    server.save(tmp_path)
    assert sum(path.is_file() for path in tmp_path.glob("slice-*")) == 1  # the older one is gone


def test_a_checkpoint_of_another_model_or_algorithm_is_refused(tmp_path: Path) -> None:
    fastagg.sharded(fadas, model(SIZE)).save(tmp_path)
    with pytest.raises(fastagg.CheckpointError, match="another model"):
        fastagg.sharded(fadas, torch.zeros(SIZE + 1)).load(tmp_path)
    with pytest.raises(fastagg.CheckpointError, match="optimizer"):
        fastagg.sharded(lambda piece: fastagg.FedBuff(piece), torch.zeros(SIZE)).load(tmp_path)
    fadas(torch.zeros(SIZE)).save(tmp_path / "manifest.pt")
    with pytest.raises(fastagg.CheckpointError, match="not the checkpoint of a sharded server"):
        fastagg.sharded(fadas, torch.zeros(SIZE)).load(tmp_path)


def test_shared_vectors() -> None:
    vector = fastagg.SharedVector(70_000, torch.bfloat16)
    vector.tensor.fill_(2.0)
    assert torch.equal(torch.from_file(vector.path, size=70_000, dtype=torch.bfloat16), vector.tensor)
    path = Path(vector.path)
    assert path.stat().st_size == 140_000
    vector.close()
    assert not path.exists() and float(vector.tensor[-1]) == 2.0
    vector.close()
    path = Path(fastagg.SharedVector(5).path)
    assert not path.exists()  # it went with its object


@pytest.mark.parametrize(
    ("arguments", "said"), [((0,), "size"), ((2.5,), "size"), ((5, torch.float64), "dtype"), ((1 << 60,), "bytes in")]
)
def test_a_shared_vector_that_cannot_be_is_refused(arguments: Any, said: str) -> None:
    with pytest.raises(fastagg.ConfigError, match=said):
        fastagg.SharedVector(*arguments)


def test_a_shared_vector_of_another_size_is_refused() -> None:
    server = fastagg.sharded(fadas, torch.zeros(SIZE))
    server.dispatch(1)
    with pytest.raises(fastagg.ShapeMismatch, match=f"expected {SIZE}"):
        server.receive(1, fastagg.SharedVector(SIZE - 1))
    vector = fastagg.SharedVector(SIZE)
    with open(vector.path, "r+b") as file:
        file.truncate(8)
    with pytest.raises(fastagg.ShapeMismatch, match="got 8 bytes"):
        server.receive(1, vector)


def test_the_rest_of_a_servers_methods() -> None:
    alone = fastagg.FedAvg(model(SIZE), clients_per_round=None, weighting="uniform", seed=3)
    server = fastagg.sharded(
        lambda piece: fastagg.FedAvg(piece, clients_per_round=None, weighting="uniform", seed=3), model(SIZE)
    )
    for one in (alone, server):
        task = one.dispatch("a")
        one.hand_on(task, "b")
        one.dispatch("c")
        one.forget("c", 0)
        one.receive("b", update(0, SIZE), incarnation=one.incarnation)
        one.lr = 0.5
        assert one.close_round() == 0.5
        assert one.close_round() is None
        with pytest.raises(fastagg.UnknownVersion):
            one.receive("c", update(0, SIZE))
        with pytest.raises(fastagg.StaleIncarnation):
            one.receive("a", update(0, SIZE), incarnation=1)
        with pytest.raises(fastagg.ConfigError, match="gradient"):
            one.receive("a", update(0, SIZE), kind="gradient")
        assert one.expire(before=1) == 1
    assert torch.equal(server.flat, alone.flat) and server.version == alone.version == 1
    assert server.memory()["model"] == 4 * SIZE and server.update_kind == "delta"
    assert server.config() == alone.config()


def test_slices_of_ended_tasks_are_released() -> None:
    server = fastagg.sharded(lambda piece: fastagg.FedBuff(piece, buffer_size=1, lease=60.0), model(SIZE))
    held, ledger = inside.group(server)._updates._held, inside.engine(server)
    for client in ("forgotten", "late", "silent", "answers"):
        server.dispatch(client)
        server.deliver(client, update(0, SIZE), 0)
    server.deliver("early", update(1, SIZE), 1)  # of a task that this rank has not heard of yet
    server.receive("answers", None)
    server.forget("forgotten")
    server.expire()
    assert set(held) == {("late", 0), ("silent", 0), ("early", 1)}
    server.receive("late", None)
    ledger.skew += 61.0
    server.dispatch("another")
    assert set(held) == {("early", 1)} and server.version == 2
    with pytest.raises(fastagg.UnknownClient):
        server.deliver(1.5, update(0, SIZE), 0)  # type: ignore[arg-type]
    with pytest.raises(fastagg.NotDelivered):
        server.receive("another", None)


def test_slices_of_tasks_that_never_were_have_limits_and_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    server = fastagg.sharded(lambda piece: fastagg.FedBuff(piece, buffer_size=1), model(SIZE))
    updates, now = inside.group(server)._updates, [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    slice_ = update(0, SIZE)
    task = server.dispatch("ann")
    for number in range(64):
        server.deliver(f"unknown {number}", slice_, 10**9)
    for number in range(64, 2000):
        with pytest.raises(fastagg.Busy, match="64 slices wait for tasks that rank 0 has not heard of"):
            server.deliver(f"unknown {number}", slice_, 10**9)
    server.deliver("unknown 5", slice_, 10**9)  # again: it takes the place of the first one
    server.deliver("ann", slice_, task.version)  # a task that is known is not limited by them
    assert len(updates._held) == 65
    now[0] += 59.0
    server.receive("ann", None)
    assert len(updates._held) == 64
    now[0] += 2.0
    server.deliver("bob", slice_, 1)  # there is room again: none of the others' tasks has come
    assert set(updates._held) == {("bob", 1)}
    server.dispatch("bob")  # his has come in time, so his slice waits as long as the task
    now[0] += 1000.0
    server.dispatch("eve")
    assert server.receive("bob", None).version == 2 and not updates._held and not updates._early


def test_large_slices_of_tasks_that_never_were_have_a_limit_in_bytes() -> None:
    part = fastagg.sharded(lambda piece: fastagg.FedBuff(piece), torch.zeros(5 << 22))
    slice_ = torch.zeros(5 << 22)  # 80 MiB
    for client in range(3):
        part.deliver(client, slice_, 1)
    with pytest.raises(fastagg.Busy):
        part.deliver(3, slice_, 1)


def test_a_group_without_tensors_on_the_cpu_is_refused(tmp_path: Path) -> None:
    dist = torch.distributed
    store = dist.FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group("cuda:gloo", store=store, rank=0, world_size=1)
    try:
        with pytest.raises(fastagg.ConfigError, match=r"group: it has cuda:gloo.*cpu:gloo,cuda:nccl"):
            fastagg.sharded(fadas, torch.zeros(SIZE))
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize(
    ("backends", "cards", "carries"),
    [
        ("cpu:gloo,cuda:nccl", ["a", "b"], "cuda"),
        ("cpu:gloo,cuda:nccl", ["a", "a"], "cpu"),  # NCCL refuses two ranks on one card
        ("cpu:gloo,cuda:nccl", ["a", None], "cpu"),
        ("cpu:gloo,cuda:gloo", ["a", "b"], "cpu"),
    ],
)
def test_tensors_go_between_cards_if_every_rank_has_one(
    monkeypatch: pytest.MonkeyPatch, backends: str, cards: list[Any], carries: str
) -> None:
    link = Link(None, 1.0)
    link.size = len(cards)
    monkeypatch.setattr(torch.distributed, "get_backend_config", lambda group: backends)
    link.use_cards(cards, torch.device("cuda", 1))
    assert link.carries.type == carries


def test_an_interrupt_is_told_to_nobody_before_the_others_know(monkeypatch: pytest.MonkeyPatch) -> None:
    server = fastagg.sharded(fadas, model(SIZE))
    server.dispatch(1)

    def interrupted(*given: Any) -> None:
        raise KeyboardInterrupt

    for name, target in (("order", inside.group(server).link), ("receive", server._answers)):
        with monkeypatch.context() as during:
            during.setattr(target, name, interrupted)
            with pytest.raises(KeyboardInterrupt):
                server.receive(1, update(0, SIZE))
    assert server.receive(1, update(0, SIZE)).version == 0  # it goes on
