"""The examples of docs/rules.md run unchanged and compute what the page says."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from support.models import same

import fastagg
from fastagg import registry

PAGE = (Path(__file__).parents[2] / "docs" / "rules.md").read_text()
POLICY, OPTIMIZER, DIRECTION, CHECKPOINT = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
D = 50


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs blocks of the page one after the other; what they register is gone after the test."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(registry, "_parts", dict(registry._parts))
    scope: dict[str, Any] = {"__name__": __name__}

    def run(*blocks: str) -> dict[str, Any]:
        for block in blocks:
            exec(compile(block, "docs/rules.md", "exec", dont_inherit=True), scope)  # without our __future__
        return scope

    return run


def updates(count: int) -> torch.Tensor:
    return torch.randn(count, D, generator=torch.Generator().manual_seed(1))


def send(server: fastagg.Server, rows: torch.Tensor) -> None:
    for row in rows:
        server.dispatch("a")
        server.receive("a", row)


def goes_on(server: fastagg.Server, path: Path) -> None:
    """A server in the middle of things and one from its checkpoint do the same, to the bit."""
    send(server, updates(5))
    server.save(path)
    other = fastagg.load(path)
    for one in (server, other):
        send(one, updates(9))
    assert same(server.state_dict(), other.state_dict())


def test_each_class_has_at_most_twenty_lines() -> None:
    for block in (POLICY, OPTIMIZER, DIRECTION):
        (found,) = re.findall(r"^@fastagg\.register\n.*?(?=\n\n\n)", block, re.DOTALL | re.MULTILINE)
        assert len(found.splitlines()) <= 20


def test_the_staleness_policy(run: Any, tmp_path: Path) -> None:
    half_life = run(POLICY)["HalfLife"]
    server = fastagg.Server(torch.zeros(D), fastagg.Single(), fastagg.SGD(1.0), half_life(versions=1.0, most=3))
    for late in ("late", "later"):
        server.dispatch(late)
    send(server, torch.zeros(2, D))
    receipt = server.receive("late", torch.ones(D))  # two versions late: a quarter
    assert receipt.delay == 2 and receipt.weight == 0.25
    assert torch.equal(server.flat, torch.full((D,), 0.25))
    send(server, torch.zeros(1, D))
    before = server.flat.clone()
    assert server.receive("later", torch.ones(D)).delay == 4  # a sixteenth, and a tenth of the rate
    torch.testing.assert_close(server.flat - before, torch.full((D,), 1 / 160))
    goes_on(server, tmp_path / "s.pt")


def test_the_checkpoint(run: Any, tmp_path: Path) -> None:
    run(POLICY, CHECKPOINT)
    assert (tmp_path / "mine.pt").is_file()


def test_hooks_are_pure(run: Any) -> None:
    """The same arguments twice give the same result, and are as they were."""
    scope = run(POLICY, OPTIMIZER.partition("\n\n\nserver")[0], DIRECTION.partition("\n\n\nserver")[0])
    x, row = updates(2)
    facts = SimpleNamespace(client="a", version=0, delay=0)
    _, moments = scope["Lion"](1.0).step(x, row, {}, 0.5, 1)
    none, held = scope["Median"](2).combine(row, facts, {})
    assert none is None and held["0"].data_ptr() != row.data_ptr()
    for call in (
        lambda: scope["Lion"](1.0).step(x, row, moments, 0.5, 2),
        lambda: scope["Median"](2).combine(x, facts, held),
        lambda: scope["Median"](3).combine(x, facts, held),
    ):
        before = [tensor.clone() for tensor in (x, row, *moments.values(), *held.values())]
        assert same(call(), call())
        assert same([x, row, *moments.values(), *held.values()], before)


def test_the_optimizer(run: Any, tmp_path: Path) -> None:
    lion = run(POLICY, OPTIMIZER)["Lion"]
    server = fastagg.Server(torch.zeros(D), fastagg.Single(), lion(0.5, beta1=0.7, beta2=0.8))
    x, m = np.zeros(D), np.zeros(D)
    for row in updates(4):
        send(server, row[None])
        x += 0.5 * np.sign(0.7 * m + 0.3 * row.numpy())
        m = 0.8 * m + 0.2 * row.numpy()
        assert np.array_equal(server.flat.numpy(), x)
    goes_on(server, tmp_path / "s.pt")


@pytest.mark.parametrize("kind", ["delta", "gradient"])
def test_the_direction(run: Any, tmp_path: Path, kind: str) -> None:
    median, rows = run(POLICY, DIRECTION)["Median"], updates(7)
    server = fastagg.Server(torch.zeros(D), median(3, kind=kind), fastagg.SGD(1.0))
    send(server, rows)
    middle = np.median(rows[:3].numpy(), axis=0) + np.median(rows[3:6].numpy(), axis=0)
    assert server.version == 2
    np.testing.assert_allclose(server.flat.numpy(), middle if kind == "delta" else -middle, rtol=1e-6, atol=1e-7)
    goes_on(server, tmp_path / "s.pt")
