"""The examples of docs/rules.md run unchanged and compute what the page says."""

import random
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from support.models import same
from torch import Tensor

import fastagg
from fastagg import registry
from fastagg.errors import ConfigError

PAGE = (Path(__file__).parents[2] / "docs" / "rules.md").read_text()
POLICY, OPTIMIZER, DIRECTION, CHECKPOINT = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
SIZE = 50


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
    return torch.randn(count, SIZE, generator=torch.Generator().manual_seed(1))


def send(server: fastagg.Server, rows: torch.Tensor) -> None:
    for row in rows:
        server.dispatch("a")
        server.receive("a", row)


def test_each_class_has_at_most_twenty_lines() -> None:
    for block in (POLICY, OPTIMIZER, DIRECTION):
        (found,) = re.findall(r"^@fastagg\.register\n.*?(?=\n\n\S)", block, re.DOTALL | re.MULTILINE)
        assert len(found.splitlines()) <= 20


@pytest.mark.parametrize("kind", ["delta", "gradient"])
def test_the_direction(run: Any, kind: str) -> None:
    median, rows = run(POLICY, DIRECTION)["Median"], updates(7)
    server = fastagg.Server(torch.zeros(SIZE), median(3, kind=kind), fastagg.SGD(1.0))
    send(server, rows)
    middle = np.median(rows[:3].numpy(), axis=0) + np.median(rows[3:6].numpy(), axis=0)
    assert server.version == 2
    np.testing.assert_allclose(server.flat.numpy(), middle if kind == "delta" else -middle, rtol=1e-6, atol=1e-7)


D = 7
TOLD: list[fastagg.Facts] = []


@dataclass(frozen=True)
class Keeps(fastagg.Direction):
    """Steps along an update and what its client sent the last time, which the server sends it, too."""

    needs_base: ClassVar[bool] = True
    counts: ClassVar[bool] = True
    takes: ClassVar[dict[str, int | None]] = {"loss": 1, "own": None}

    def send(self, client: int | str, state: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"own": state.get(f"own {client}", torch.zeros(1))}

    def combine(
        self, update: Tensor, facts: fastagg.Facts, state: dict[str, Tensor]
    ) -> tuple[Tensor | None, dict[str, Tensor]]:
        TOLD.append(facts)
        name = f"own {facts.client}"
        assert facts.base is not None
        along = update * float(facts.extra["loss"]) + state.get(name, torch.zeros(D)) - 0.1 * facts.base
        return along, {**state, name: facts.extra["own"].clone()}


@dataclass(frozen=True)
class Often(fastagg.Staleness):
    """An update counts less the more often its client took part; losses above 2 are dropped."""

    weighs: ClassVar[bool] = True
    counts: ClassVar[bool] = True
    needs_base: ClassVar[bool] = True
    takes: ClassVar[dict[str, int | None]] = {"loss": 1}

    def weigh(self, facts: fastagg.Facts) -> float | None:
        TOLD.append(facts)
        return None if float(facts.extra["loss"]) > 2 else 1.0 / (1 + facts.taken_part)


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(registry, "_parts", dict(registry._parts))
    for part in (Keeps, Often):
        fastagg.register(part)
    TOLD.clear()
    yield


def make(rule: str) -> fastagg.Server:
    if rule == "direction":
        return fastagg.Server(torch.ones(D), Keeps(), fastagg.SGD(0.5))
    return fastagg.Server(torch.ones(D), fastagg.Buffer(2), fastagg.SGD(0.5), Often())


def trace(server: fastagg.Server, seed: int, steps: range, open_tasks: list[Any]) -> None:
    """Events that depend on the seed and the step alone, not on what was before."""
    for step in steps:
        draw = random.Random(f"{seed} {step}")
        if len(open_tasks) < 3:
            open_tasks.append(server.dispatch(draw.choice(["ann", "bob", 7])))
        task = open_tasks.pop(draw.randrange(len(open_tasks)))
        update = torch.randn(D, generator=torch.Generator().manual_seed(step))
        extra = {"loss": draw.uniform(0.1, 2.5)}
        if isinstance(server.direction, Keeps):
            extra["own"] = task.params + update  # type: ignore[assignment]
        server.receive(task.client, update, task.version, extra=extra, task=task.id)
        for name, value in extra.items():
            assert torch.equal(TOLD[-1].extra[name].reshape(-1), torch.as_tensor(value).reshape(-1))


@pytest.mark.parametrize("rule", ["direction", "policy"])
def test_a_rule_is_told_the_models_and_how_often_a_client_took_part(rule: str) -> None:
    server, models, counted = make(rule), [torch.ones(D)], Counter[Any]()
    open_tasks: list[Any] = []
    for step in range(60):
        TOLD.clear()
        trace(server, 3, range(step, step + 1), open_tasks)
        (facts,) = TOLD
        assert facts.model is not None and facts.base is not None
        assert torch.equal(facts.model, models[-1]) and torch.equal(facts.base, models[facts.version])
        assert facts.delay == len(models) - 1 - facts.version and facts.taken_part == counted[facts.client]
        counted[facts.client] += rule == "direction" or float(facts.extra["loss"]) <= 2
        if server.version == len(models):
            models.append(server.flat.clone())
    assert len(counted) == 3 and len(models) > 20


def test_what_a_client_keeps_is_sent_to_it_and_to_nobody_else() -> None:
    server = make("direction")
    kept = {}
    for number, client in enumerate(["ann", "bob", "ann", "ann", "bob"]):
        task = server.dispatch(client)
        assert torch.equal(task.extra["own"], kept.get(client, torch.zeros(1)))
        kept[client] = torch.full((D,), float(number))
        server.receive(client, torch.ones(D), extra={"loss": 1.0, "own": kept[client]})
    assert torch.equal(server.hand_on(server.dispatch("ann"), "bob").extra["own"], kept["bob"])


@pytest.mark.parametrize("rule", ["direction", "policy"])
def test_a_server_that_was_saved_goes_on_to_the_bit(rule: str, tmp_path: Path) -> None:
    server = make(rule)
    trace(server, 1, range(21), [])
    server.save(tmp_path / "mine.pt")
    other = fastagg.load(tmp_path / "mine.pt")
    for one in (server, other):
        trace(one, 2, range(100, 130), [])
    assert same(server.state_dict(), other.state_dict())


@pytest.mark.parametrize("rule", ["direction", "policy"])
def test_a_log_has_what_clients_sent_besides(rule: str, tmp_path: Path) -> None:
    alone = make(rule)
    trace(alone, 1, range(25), [])
    with fastagg.open(tmp_path / "folder", lambda: make(rule), checkpoint_every=10**9) as server:
        trace(server, 1, range(25), [])
    with fastagg.open(tmp_path / "folder", lambda: make(rule)) as again:
        assert torch.equal(again.flat, alone.flat)
        mine, theirs = again.state_dict(), alone.state_dict()
        assert same(mine["direction"], theirs["direction"]) and mine["taken_part"] == theirs["taken_part"]


@pytest.mark.parametrize(("rule", "hook"), [("direction", "send"), ("direction", "combine"), ("policy", "weigh")])
def test_a_hook_that_raises_changes_nothing(rule: str, hook: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def raises(*given: Any) -> Any:
        raise ValueError("no")

    monkeypatch.setattr(Keeps if rule == "direction" else Often, hook, raises)
    server = make(rule)
    if hook != "send":
        server.dispatch("ann")
    before = server.state_dict()
    own = {"own": torch.ones(D)} if rule == "direction" else {}
    with pytest.raises(ValueError, match="no"):
        if hook == "send":
            server.dispatch("ann")
        server.receive("ann", torch.ones(D), extra={"loss": 1.0, **own})
    assert same(before, server.state_dict())


GIVEN: dict[str, tuple[str, Any, str]] = {
    "no pair from step": ("step", lambda x: None, "expected a pair: a vector and the new state, got None"),
    "a vector alone": ("step", lambda x: x, "expected a pair"),
    "a list": ("step", lambda x: (x.tolist(), {}), "expected a float32 vector of 7 elements"),
    "fp64": ("combine", lambda x: (x.double(), {}), "expected a float32 vector"),
    "a longer one": ("combine", lambda x: (torch.ones(D + 1), {}), "expected a float32 vector of 7"),
    "no state": ("combine", lambda x: (x, None), "expected a dict of tensors by name, got None"),
    "a number as state": ("combine", lambda x: (x, {"n": 1}), "expected a dict of tensors"),
    "text from weight": ("weight", "half", "expected a finite float32 number >= 0, got 'half'"),
    "a weight of NaN": ("weight", float("nan"), "expected a finite"),
    "a weight below zero": ("weight", -0.5, "expected a finite float32 number >= 0, got -0.5"),
    "a weight of its facts below zero": ("weigh", -0.5, "weigh: what it returned"),
    "a rate below zero": ("rate", -1.0, "rate: what it returned"),
    "no rate": ("rate", None, "rate: what it returned"),
    "text to send": ("send", {"c": "text"}, "expected a dict of tensors by name"),
}


@pytest.mark.parametrize("what", GIVEN)
def test_what_a_rule_gives_back_is_checked_and_nothing_changes(what: str) -> None:
    method, value, words = GIVEN[what]

    def answer(self: object, *given: Any, **more: Any) -> Any:
        x = next((one for one in given if isinstance(one, Tensor)), torch.zeros(D))
        return value(x) if callable(value) else value

    base: Any = {"step": fastagg.Optimizer, "combine": fastagg.Direction, "send": fastagg.Direction}.get(
        method, fastagg.Staleness
    )
    body = {method: answer, "weighs": True}
    if method == "send":
        body["combine"] = lambda self, update, facts, state: (update, state)
    rule = dataclass(frozen=True)(type("Wrong", (base,), body))()
    parts = {fastagg.Direction: (rule, None), fastagg.Optimizer: (None, rule)}.get(base, (None, None))
    policy = rule if base is fastagg.Staleness else fastagg.Constant()
    server = fastagg.Server(
        torch.zeros(D), parts[0] or fastagg.Single(), parts[1] or fastagg.SGD(1.0), policy, num_clients=1
    )
    before = server.state_dict()
    with pytest.raises(ConfigError, match=words):
        server.dispatch(0)
        server.receive(0, torch.ones(D))
    assert torch.equal(server.flat, before["flat"]) and server.version == 0


@pytest.mark.parametrize("value", [len, Path("here"), torch.ones(1), {1: 2.0}, [object()]])
def test_a_setting_that_cannot_be_saved_is_refused_when_the_server_is_made(value: object) -> None:
    @dataclass(frozen=True)
    class Holds(fastagg.Staleness):
        what: object = 1.0

    fastagg.Server(torch.zeros(2), staleness=Holds(what=[1, None, ("a", {"b": 2.0})]))
    with pytest.raises(ConfigError, match="Holds: what: expected a number, text or None"):
        fastagg.Server(torch.zeros(2), staleness=Holds(what=value))


@pytest.mark.parametrize("holds", [False, True])
@pytest.mark.parametrize("where", ["direction", "policy"])
def test_a_version_that_a_rule_keeps_stays_as_it_was(
    where: str, holds: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether somebody else holds versions changes nothing, and neither does a recovery."""
    monkeypatch.setattr(registry, "_parts", dict(registry._parts))
    kept: list[tuple[Tensor, Tensor]] = []

    @fastagg.register
    @dataclass(frozen=True)
    class Keeping(fastagg.Direction):
        def combine(self, update: Tensor, facts: Any, state: Any) -> Any:
            return update + 0.5 * (facts.model - state.get("last", facts.model)), {"last": facts.model}

    @fastagg.register
    @dataclass(frozen=True)
    class Watching(fastagg.Staleness):
        def weigh(self, facts: Any) -> float:
            kept.append((facts.model, facts.model.clone()))
            return 1.0

    def make() -> fastagg.Server:
        parts = (Keeping(),) if where == "direction" else (fastagg.Single(),)
        return fastagg.Server(torch.zeros(4), *parts, fastagg.SGD(1.0), Watching())

    server, held = fastagg.open(tmp_path / "state", make), []
    for client in "abcd":
        server.dispatch(client)
    for client in "abcd":
        held += [server.flat] if holds else []
        server.receive(client, torch.ones(4))
    assert all(torch.equal(*pair) for pair in kept)
    assert where == "policy" or float(server.flat[0]) == 6.125  # 1, 1.5, 1.75 and 1.875
    model = server.flat.clone()
    server.close()
    with fastagg.open(tmp_path / "state", make) as again:
        assert torch.equal(again.flat, model)
