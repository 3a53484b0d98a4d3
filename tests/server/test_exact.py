"""Exact sums: the same updates give the same bits in any order, split and tree, and the mean that the formula says."""

import itertools
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from support import reference

import fastagg
from fastagg import ops

pytestmark = pytest.mark.kernel

SIZE = 9_001  # some blocks of 1,024, and a part of one; at this size updates are read once
LARGEST = 4.0


def updates(count: int, size: int = SIZE, seed: int = 0, norm: float = 3.0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    made = [torch.randn(size, generator=generator) for _ in range(count)]
    return [norm * one / one.norm() * (0.2 + 0.8 * (i % 5) / 4) for i, one in enumerate(made)]


def server(size: int = SIZE, buffer: int | None = 12, **more: Any) -> fastagg.Server:
    direction = {"exact": LARGEST, **more.pop("direction", {})}
    more = {"optimizer": fastagg.SGD(1.0), **more}
    return fastagg.Server(torch.zeros(size), fastagg.Buffer(buffer, **direction), **more)


def leaf(size: int = SIZE, **more: Any) -> fastagg.Leaf:
    return fastagg.Leaf(torch.zeros(size), exact=LARGEST, **more)


def expected(given: list[torch.Tensor], shares: list[float]) -> torch.Tensor:
    """The mean by the formula, in whole numbers."""
    unit = ops.exact_unit(LARGEST)
    total = sum(
        (reference.exact_terms(u, share / unit) for u, share in zip(given, shares, strict=True)),
        torch.zeros(given[0].numel(), dtype=torch.int64),
    )
    return total.to(torch.float64).to(torch.float32) * torch.tensor(unit / sum(shares), dtype=torch.float32)


def fold_at_random(draw: random.Random, one: fastagg.Leaf, given: list[Any], samples: list[int], size: int) -> None:
    """Fold updates into a leaf, in any order, partly through leaves of its own, and so on."""
    order = draw.sample(range(len(given)), len(given))
    while order:
        count = draw.randint(1, len(order))
        mine, order = order[:count], order[count:]
        if count == 1 or draw.random() < 0.3:
            for i in mine:
                one.fold(given[i], samples[i])
        else:
            below = leaf(size, weighting="samples")
            fold_at_random(draw, below, [given[i] for i in mine], [samples[i] for i in mine], size)
            one.fold_partial(below.take())


def test_a_thousand_random_trees_give_the_same_bits() -> None:
    """Sums in fp32 do depend on the order: test_numerics.py."""
    size, count = 1100, 12
    given, samples = updates(count, size, norm=0.3), [1 + 3 * i % 7 for i in range(count)]
    want = expected(given, [float(one) for one in samples])
    for seed in range(1000):
        draw = random.Random(seed)
        root = server(size, count, weighting="samples")
        order = draw.sample(range(count), count)
        while order:
            part = draw.randint(1, len(order))
            mine, order = order[:part], order[part:]
            task = root.dispatch(len(order))
            if part == 1 and draw.random() < 0.7:
                root.receive(task.client, given[mine[0]], task.version, samples[mine[0]])
            else:
                one = leaf(size, weighting="samples")
                fold_at_random(draw, one, [given[i] for i in mine], [samples[i] for i in mine], size)
                root.receive_partial(task.client, one.take(), task.version)
        assert root.version == 1 and torch.equal(root.flat, want), seed


@pytest.mark.parametrize("kind", ["delta", "gradient"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_every_way_of_arriving_gives_the_formula(kind: Any, dtype: torch.dtype, tmp_path: Path) -> None:
    """Alone, in pieces, as models, clipped, read once or with a log: the mean of the same whole numbers."""
    given = [one.to(dtype) for one in updates(6)]
    want = expected(given, [1.0] * 6) * (1 if kind == "delta" else -1)
    makes: dict[str, Any] = {
        "one": lambda: server(buffer=6, direction={"kind": kind}),
        "own optimizer": lambda: server(buffer=6, direction={"kind": kind}, optimizer=fastagg.Momentum(1.0, beta=0.0)),
        "8 bits": lambda: server(buffer=6, direction={"kind": kind}, clip_norm=LARGEST),
    }
    for name, make in makes.items():
        for durable in (False, True):
            root = fastagg.open(tmp_path / f"{name} {kind} {dtype}", make) if durable else make()
            for i, update in enumerate(given):
                root.dispatch(i)
                root.receive(i, update)
            assert root.version == 1 and torch.equal(root.flat, want), (name, durable)
            root.close()
    root = makes["one"]()
    for i, update in enumerate(given):  # closed by hand, after the round's last update but before it is full
        if i < 5:
            root.dispatch(i)
            root.receive(i, update)
    assert root.close_round() == 1.0
    assert torch.equal(root.flat, expected(given[:5], [1.0] * 5) * (1 if kind == "delta" else -1))
    if kind == "delta" and dtype is torch.float32:
        root = makes["one"]()
        tasks = [root.dispatch(i) for i in range(6)]
        root.receive_models([(task, one, None) for task, one in zip(tasks, given, strict=True)])
        assert torch.equal(root.flat, want)


def test_lower_halves_are_carried_before_they_overflow(isa: str) -> None:
    """Hundreds of terms of the largest size, with one sign and with changing signs."""
    size = 1500
    for signs in ((1,), (1, 1, -1), (-1,)):
        total, whole = ops.ExactSum.of(size), torch.zeros(size, dtype=torch.int64)
        for i, sign in zip(range(100), itertools.cycle(signs), strict=False):
            update = torch.linspace(-1.0, 1.0, size) * sign * 2.0**30
            ops.accumulate_exact_(total, update, 1.0, fresh=i == 0)
            whole += reference.exact_terms(update)
            if i % 13 == 0:
                assert torch.equal(ops.read_exact(total), whole)
        assert torch.equal(ops.read_exact(total), whole) and int(whole.abs().max()) > 2**32
        again = ops.add_exact_(ops.ExactSum.of(size), whole, fresh=True)
        ops.add_exact_(again, whole)
        assert torch.equal(ops.read_exact(again), 2 * whole)


def test_many_updates_of_the_largest_norm_in_one_element() -> None:
    """The whole range of a server's sum: 300 updates whose norm is in one element."""
    root = server(2000, None)
    update = torch.zeros(2000)
    update[1500] = LARGEST
    below = leaf(2000)
    for i in range(300):
        root.dispatch(i)
        root.receive(i, update)
        below.fold(update)
    root.dispatch("leaf")
    root.receive_partial("leaf", below.take())
    root.close_round()
    assert torch.equal(root.flat, update)


def test_what_a_sum_cannot_hold_is_refused_by_name_and_changes_nothing() -> None:
    root, one = server(), leaf()
    for i, update in enumerate(updates(3)):
        root.dispatch(i)
        root.receive(i, update)
        one.fold(update)
    before = root.state_dict()["direction"]
    for bad, error in (
        (updates(1)[0] * 10.0, fastagg.UpdateTooLarge),
        (torch.full((SIZE,), float("nan")), fastagg.NonFiniteUpdate),
    ):
        root.dispatch("bad")
        with pytest.raises(error):
            root.receive("bad", bad)
        with pytest.raises(error):
            one.fold(bad)
    with pytest.raises(fastagg.UpdateTooLarge, match=r"exact=4\.0; declare a larger one, or set clip_norm"):
        one.fold(torch.ones(SIZE))
    weighted = leaf(weighting="samples")
    with pytest.raises(fastagg.ConfigError, match="whole number"):
        weighted.fold(torch.zeros(SIZE), 1.5)
    partial = one.take()
    assert partial.total.dtype is torch.int64 and partial.exact == LARGEST
    for wrong, error in (
        (partial._replace(exact=2.0), fastagg.ConfigError), (partial._replace(exact=None), fastagg.FastaggError),
        (partial._replace(total=partial.total[:-1]), fastagg.FastaggError),
        (partial._replace(total=partial.total.float()), fastagg.FastaggError),
        (partial._replace(total=partial.total * 2**40), fastagg.UpdateTooLarge),
        (partial._replace(weight=2.5), fastagg.ConfigError),
    ):  # fmt: skip
        with pytest.raises(error):
            root.receive_partial("bad", wrong)
        with pytest.raises(error):
            leaf().fold_partial(wrong)
    after = root.state_dict()["direction"]
    assert torch.equal(before["acc"], after["acc"]) and before["versions"] == after["versions"]
    root.receive_partial("bad", partial)
    twice = root.state_dict()["direction"]
    assert torch.equal(twice["acc"], 2 * before["acc"]) and twice["total"] == 6.0
    with pytest.raises(fastagg.ConfigError, match="exact"):
        fastagg.FedBuff(torch.zeros(2), exact=0.0)
    with pytest.raises(fastagg.ConfigError, match="floats"):
        fastagg.Server(torch.zeros(2), fastagg.CosineBuffer(3, exact=1.0))
    weighs = server(staleness=fastagg.Polynomial(a=0.5))
    weighs.dispatch("leaf")
    with pytest.raises(fastagg.ConfigError, match="not weighed again"):
        weighs.receive_partial("leaf", partial)
    floats = fastagg.FedBuff(torch.zeros(SIZE))
    floats.dispatch("leaf")
    with pytest.raises(fastagg.ConfigError, match="set it alike"):
        floats.receive_partial("leaf", partial)


@pytest.mark.parametrize("overflow", ["take", "close"])
def test_checkpoints_and_logs_go_on_with_the_same_bits(overflow: Any, tmp_path: Path) -> None:
    """Sums and updates, saved at any time and replayed."""

    def make() -> fastagg.Server:
        direction = {"overflow": overflow, "at_least": 4, "grace": 3600.0}
        return server(buffer=10, direction=direction, optimizer=fastagg.AMSGrad(0.1))

    plain, kept = make(), fastagg.open(tmp_path / "state", make)
    for turn in range(15):
        given = updates(3, seed=turn)
        one = leaf()
        for update in given[:2]:
            one.fold(update)
        partial = one.take()
        for each in (plain, kept):
            each.dispatch("leaf")
            each.receive_partial("leaf", partial)
            each.dispatch("alone")
            each.receive("alone", given[2])
        if turn % 4 == 1:
            plain.save(tmp_path / "server.pt")
            plain = fastagg.load(tmp_path / "server.pt")
        if turn == 7:
            kept.checkpoint()
    assert plain.version > 2 and plain.memory()["direction"] == 8 * SIZE
    shutil.copytree(tmp_path / "state", tmp_path / "killed")
    kept.close()
    with fastagg.open(tmp_path / "killed", make) as again:
        for each in (kept, again):
            assert each.version == plain.version and torch.equal(each.flat, plain.flat)
        was, now = plain.state_dict()["direction"], again.state_dict()["direction"]
        assert was["versions"] == now["versions"]
        assert was["acc"] is now["acc"] is None or torch.equal(was["acc"], now["acc"])
    state = plain.state_dict()
    while state["direction"]["acc"] is None:
        plain.dispatch("alone")
        plain.receive("alone", updates(1)[0])
        state = plain.state_dict()
    state["direction"]["acc"] = state["direction"]["acc"] + 2**50
    with pytest.raises(fastagg.CheckpointError):
        make().load_state_dict(state)


def test_terms_are_rounded_to_the_nearest_and_ties_to_even() -> None:
    numbers = torch.tensor([0.5, 1.5, -0.5, -2.5, 2.51, 1e9, -(2.0**30)]).repeat(200)
    want = torch.tensor([0, 2, 0, -2, 3, 10**9, -(2**30)]).repeat(200)
    assert torch.equal(reference.exact_terms(numbers), want)
    assert torch.equal(ops.read_exact(ops.accumulate_exact_(ops.ExactSum.of(1400), numbers, fresh=True)), want)
