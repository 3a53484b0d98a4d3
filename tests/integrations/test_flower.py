"""Flower's rounds on fastagg: numbers, types, memory, order, bad replies."""

import contextlib
import gc
import io
import weakref
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import fastagg

pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord, ConfigRecord, Message
from support.flower_apps import FakeGrid, trained

from fastagg.integrations import flower
from fastagg.integrations.flower import read, records, write

RULES = [
    fastagg.FedAvg,
    partial(fastagg.FedAMS, lr=0.1),
    partial(fastagg.FedAdam, lr=0.1),
    partial(fastagg.FedYogi, lr=0.1, weighting="samples"),
    fastagg.FedMedian,
    partial(fastagg.MultiKrum, num_nodes_to_select=2),
]
UNWEIGHTED = (fastagg.FedMedian, fastagg.MultiKrum)


def initial() -> dict[str, torch.Tensor]:
    """A model with every kind of array a state_dict may hold."""
    return {
        "w": torch.linspace(-1, 1, 12).view(3, 4),
        "half": torch.linspace(0, 1, 5).to(torch.float16),
        "brain": torch.linspace(0, 2, 5).to(torch.bfloat16),
        "bn.running_mean": torch.zeros(3),
        "bn.num_batches_tracked": torch.tensor(7),
    }


def sync(make, **settings) -> flower.SyncStrategy:
    return flower.SyncStrategy(make, fraction_evaluate=0.0, **settings)


@pytest.mark.parametrize("make", RULES)
def test_rounds_are_the_servers(make) -> None:
    grid = FakeGrid(lambda m: trained(m, samples=m.metadata.dst_node_id), [1, 2, 3], delay=lambda node: 3 - node)
    strategy = sync(make, deterministic=True)
    result = strategy.start(grid, flower.write(initial()), num_rounds=3)

    weighs = {} if getattr(make, "func", make) in UNWEIGHTED else {"weighting": "samples"}
    server = make(initial(), clients_per_round=1000, buffers="weighted", **weighs)  # as Flower weighs
    for version in range(3):
        for node in (1, 2, 3):
            task, step = server.dispatch(node), 0.1 * node + 0.013 * version
            theirs = {n: a + step if a.is_floating_point() else a + 1 for n, a in task.params.items()}
            server.receive(node, task.delta(theirs), num_samples=node)
        server.close_round()
    assert torch.equal(strategy.server.flat, server.flat)
    assert strategy.server.version == 3
    back = flower.read(result.arrays)
    assert {n: a.dtype for n, a in back.items()} == {n: a.dtype for n, a in initial().items()}
    for name, array in server.parameters().items():
        assert torch.equal(back[name], array)
    assert back["bn.num_batches_tracked"] == 10, "counters are the clients' largest"
    assert result.train_metrics_clientapp[3]["loss"] == pytest.approx((1 + 4 + 9) / 6)


@pytest.mark.parametrize("synchronous", [True, False])
def test_while_replies_come_there_is_one_sum_and_not_what_was_sent(synchronous: bool) -> None:
    sent, places, alive = list[weakref.ref[ArrayRecord]](), dict[int, set[int]](), []

    class Grid(FakeGrid):
        def push_messages(self, messages):
            ids = super().push_messages(messages)
            for message_id in ids:  # it has left this process
                message = self.log[int(message_id[1:])][1]
                sent.append(weakref.ref(message.content["arrays"]))
                message.__dict__["_content"] = None
            return ids

        def pull_messages(self, ids):
            acc = strategy.server.state_dict(copy=False)["direction"]["acc"]
            places.setdefault(strategy.server.version, set()).update(() if acc is None else [acc.data_ptr()])
            alive.append(len({id(one()) for one in sent} - {id(None), id(first)}))
            return super().pull_messages(ids)

    first = flower.write({"w": torch.zeros(50_000)})
    grid = Grid(trained, range(1, 9), delay=lambda node: node)
    make = fastagg.FedAvg if synchronous else partial(fastagg.FedBuff, buffer_size=8)
    strategy = sync(make) if synchronous else flower.AsyncStrategy(make)
    gc.collect()
    gc.disable()
    try:
        result = strategy.start(grid, first, num_rounds=3)
    finally:
        gc.enable()
    assert strategy.server.version == 3 and float(flower.read(result.arrays)["w"][0]) > 0
    assert len(alive) > 10 and not any(alive)
    assert [len(places[version]) for version in range(3)] == [1, 1, 1]


def test_few_replies_are_in_memory_at_once() -> None:
    alive: list[weakref.ref] = []
    most = 0

    class Grid(FakeGrid):
        def pull_messages(self, ids):
            nonlocal most
            for message_id in list(ids):  # made when asked for, as from a SuperLink
                self.replies[message_id] = (0, Message(trained(self.sent(message_id)), reply_to=self.sent(message_id)))
            messages = super().pull_messages(ids)
            alive.extend(weakref.ref(array) for message in messages for array in message.content["arrays"].values())
            most = max(most, sum(ref() is not None for ref in alive))
            return messages

        def sent(self, message_id):
            return self.log[int(message_id[1:])][1]

    grid = Grid(lambda message: None, range(1, 31))
    gc.collect()
    gc.disable()  # cycles of references would keep the arrays
    try:
        result = sync(fastagg.FedAvg).start(grid, flower.write(initial()), num_rounds=1)
    finally:
        gc.enable()
    assert len(alive) == 30 * len(initial()) and most <= 5 * len(initial())
    assert result.train_metrics_clientapp[1]["loss"] == pytest.approx(15.5)


def test_replies_need_no_message_ids() -> None:
    strategy = sync(fastagg.FedAvg)
    sent = strategy.configure_train(1, flower.write(initial()), ConfigRecord(), FakeGrid(trained, [1, 2]))
    arrays, _ = strategy.aggregate_train(1, [Message(trained(message), reply_to=message) for message in sent])
    torch.testing.assert_close(flower.read(arrays)["w"], initial()["w"] + 0.15)


DTYPES = [
    torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.int32, torch.uint8, torch.bool
]  # fmt: skip


def npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(3, 4), (5,), (), (0,), (2, 0, 3)], ids=str)
def test_there_and_back(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    array = torch.randint(0, 2, shape).to(dtype) if dtype is torch.bool else (torch.randn(shape) * 50).to(dtype)
    record = write({"a": array})
    back = read(record)["a"]
    assert back.dtype == dtype and back.shape == shape and torch.equal(back, array)
    if dtype is not torch.bfloat16:  # which Flower itself cannot write from a tensor
        theirs = Array(array.numpy())
        assert (theirs.dtype, theirs.shape, theirs.data) == (record["a"].dtype, record["a"].shape, record["a"].data)
        np.testing.assert_array_equal(record["a"].numpy(), array.numpy())


def test_reading_copies_nothing() -> None:
    record = ArrayRecord({"a": Array(np.arange(1000, dtype=np.float32))})
    start = np.frombuffer(record["a"].data, np.uint8).ctypes.data
    assert start < read(record)["a"].data_ptr() < start + len(record["a"].data)


def test_reading_warns_of_nothing(recwarn: pytest.WarningsRecorder) -> None:
    read(write({"a": torch.ones(3)}))
    assert not recwarn.list


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("kind", ["<f4", ">f4", "<i8", ">i8", "<f2"])
def test_other_orders(order: str, kind: str) -> None:
    array = np.asarray(np.arange(24).reshape(2, 3, 4), dtype=kind, order=order)
    assert torch.equal(records.from_npy(npy(array)), torch.tensor(array.astype(array.dtype.newbyteorder("="))))


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"", fastagg.ShapeMismatch),
        (b"not a file at all", fastagg.ShapeMismatch),
        (npy(np.ones(4, np.float32))[:-1], fastagg.ShapeMismatch),
        (npy(np.ones(4, np.float32)) + b"x", fastagg.ShapeMismatch),
        (npy(np.ones(4, np.complex64)), None),
        (npy(np.array(["text"])), fastagg.DTypeMismatch),
    ],
)
def test_damaged(data: bytes, error: type[Exception] | None) -> None:
    if error is None:  # numbers, if no model's: Layout has the last word
        assert records.from_npy(data).is_complex()
        return
    with pytest.raises(error, match="array 'w'"):
        records.from_npy(data, label="array 'w'")


@given(st.data())
def test_any_damage_is_a_named_error_or_an_array(data: st.DataObject) -> None:
    good = bytearray(npy(np.arange(6, dtype=np.float32).reshape(2, 3)))
    for _ in range(data.draw(st.integers(1, 4))):
        good[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(good[: data.draw(st.integers(0, len(good)))])
    with contextlib.suppress(fastagg.FastaggError):
        assert isinstance(records.from_npy(cut), torch.Tensor)


def test_other_bytes() -> None:
    with pytest.raises(fastagg.DTypeMismatch, match=r"numpy\.ndarray"):
        read({"a": Array("float32", (1,), "pickle", b"...")})
