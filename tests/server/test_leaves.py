"""Leaves that fold for a root: the bits of one server, what counts for how much, and what is refused."""

from typing import Any

import pytest
import torch

import fastagg

SIZE = 70_001


def updates(count: int, seed: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(SIZE, generator=generator) * 0.1 for _ in range(count)]


MAKES: dict[str, Any] = {
    "FedBuff": lambda **more: fastagg.FedBuff(torch.zeros(SIZE), buffer_size=6, **more),
    "FADAS": lambda **more: fastagg.FADAS(torch.ones(SIZE), buffer_size=6, moments="8bit", **more),
    "gradients": lambda **more: fastagg.Server(
        torch.ones(SIZE), fastagg.Buffer(6, kind="gradient"), fastagg.Momentum(0.1), **more
    ),
    "FedAvg": lambda **more: fastagg.FedAvg(torch.ones(SIZE), clients_per_round=6, **{"weighting": "uniform", **more}),
}


@pytest.mark.parametrize("weighting", ["uniform", "samples"])
@pytest.mark.parametrize("name", MAKES)
def test_one_leaf_with_a_whole_buffer_gives_the_bits_of_a_server_without_leaves(name: str, weighting: Any) -> None:
    alone, root = (MAKES[name](weighting=weighting, clip_norm=20.0) for _ in range(2))
    leaf = fastagg.Leaf(torch.zeros(SIZE), clip_norm=20.0, weighting=weighting)
    for turn in range(3):
        task = root.dispatch("leaf")
        for client, update in enumerate(updates(6, turn)):
            alone.dispatch(client)
            one = alone.receive(client, update, num_samples=client + 1)
            leaf.fold(update, client + 1)
        receipt = root.receive_partial("leaf", leaf.take(), task.version, incarnation=task.incarnation)
        assert (receipt.applied, receipt.version, receipt.step_size) == (one.applied, one.version, one.step_size)
        assert torch.equal(root.flat, alone.flat)
    assert root.version == 3


def test_a_sum_that_is_refused_does_not_close_the_buffer() -> None:
    root = fastagg.Server(torch.zeros(SIZE), fastagg.Buffer(6, overflow="close"))
    root.dispatch("leaf")
    root.receive_partial("leaf", fastagg.Partial(torch.ones(SIZE), 4, 4.0))
    root.dispatch("leaf")
    for bad in (torch.full((SIZE,), float("nan")), torch.ones(SIZE - 1)):
        with pytest.raises(fastagg.FastaggError):
            root.receive_partial("leaf", fastagg.Partial(bad, 4, 4.0))
    with pytest.raises(fastagg.UnknownVersion):
        root.receive_partial("leaf", fastagg.Partial(torch.ones(SIZE), 4, 4.0), 7)
    assert root.version == 0 and root.state_dict()["direction"]["versions"] == [0] * 4
    assert not root.receive_partial("leaf", fastagg.Partial(torch.ones(SIZE), 4, 4.0)).applied
    assert root.version == 1 and root.state_dict()["direction"]["versions"] == [0] * 4


@pytest.mark.parametrize("weighting", ["uniform", "samples"])
def test_a_leaf_folds_leaves_sums(weighting: Any) -> None:
    """Two levels give the bits of one that adds in the same order."""
    one, top, low = (fastagg.Leaf(torch.zeros(SIZE), weighting=weighting, clip_norm=20.0) for _ in range(3))
    for turn in range(3):
        inner = torch.zeros(SIZE)
        for number, update in enumerate(updates(2, turn)):
            low.fold(update, number + 3)
        partial = low.take()
        inner += partial.total
        top.fold_partial(partial)
        one._add(inner, partial.updates, partial.weight, (), is_sum=True)
    top.fold(updates(1, 9)[0], 5)
    one.fold(updates(1, 9)[0], 5)
    got, expected = top.take(), one.take()
    assert torch.equal(got.total, expected.total) and got[1:] == expected[1:]
    assert got.updates == 7 and got.weight == (7.0 if weighting == "uniform" else 26.0)
    assert float(got.total.norm()) > 20.0  # a sum is not clipped


def test_a_leaf_counts_an_answer_to_a_task_once() -> None:
    leaf, once = fastagg.Leaf(torch.zeros(SIZE)), fastagg.Leaf(torch.zeros(SIZE))
    first, second = updates(2)
    for update, task in ((first, 1), (second, "1")):
        once.fold(update)
        with pytest.raises(fastagg.NonFiniteUpdate):
            leaf.fold(torch.full((SIZE,), torch.nan), task=task)
        leaf.fold(update, task=task)  # a refused one was no answer
        with pytest.raises(fastagg.AlreadyCounted):
            leaf.fold(update, task=task)
    found = leaf.take()
    assert found.updates == 2 and torch.equal(found.total, once.take().total)
    with pytest.raises(fastagg.AlreadyCounted):  # it was in the last sum
        leaf.fold(first, task=1)
    assert leaf.count == 0


def test_a_leaf_counts_the_sum_of_another_leaf_once() -> None:
    low, high = (fastagg.Leaf(torch.zeros(SIZE)) for _ in range(2))
    low.fold(updates(1)[0])
    partial = low.take()
    high.fold_partial(partial, task=1)
    with pytest.raises(fastagg.AlreadyCounted):
        high.fold_partial(partial, task=1)
    assert high.count == 1 and torch.equal(high.take().total, partial.total)


def test_a_leaf_remembers_the_last_tasks_in_bounded_memory() -> None:
    leaf = fastagg.Leaf(torch.zeros(1))
    for task in range(16_384 + 1):
        leaf.fold(torch.ones(1), task=task)
    with pytest.raises(fastagg.AlreadyCounted):
        leaf.fold(torch.ones(1), task=1)
    leaf.fold(torch.ones(1), task=0)  # the one that is forgotten
    assert leaf.count == 16_384 + 2
