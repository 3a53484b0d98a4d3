"""A part of the package whose declaration lacks something is refused by name, when the package is imported."""

from dataclasses import dataclass, field, make_dataclass
from threading import Lock
from typing import Annotated, Any, ClassVar

import pytest
import torch

import fastagg
from fastagg import ops, registry, rules
from fastagg._checks import Betas, NotNegative, SettingRule
from fastagg.rules.optimizers import Adam, Momentum

pytestmark = pytest.mark.kernel


@dataclass(frozen=True)
class Bare(Momentum):
    nesting: float = 0.5


@dataclass(frozen=True)
class Unread(Momentum):
    nesting: NotNegative = 0.5


@dataclass(frozen=True)
class Kernelless(Adam):
    kernel: ClassVar[str] = "adamax"


@dataclass(frozen=True)
class Misnamed(fastagg.Staleness):
    kernel: ClassVar[str] = "parabola"


@pytest.mark.parametrize(("part", "says"), [
    (Bare, "Bare.nesting: any <class 'float'> is taken"), (Unread, "Unread: the engine does not know it so"),
    (Kernelless, "Kernelless: the engine does not know it so"), (Misnamed, "Misnamed: the engine does not know it so"),
])  # fmt: skip
def test_what_a_declaration_lacks_is_named(part: type, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(part, "__module__", "fastagg.rules")  # one of the package's
    with pytest.raises(fastagg.ConfigError, match=says):
        rules._check_declaration(part)


def test_a_kernel_without_a_class_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    rules._check_lists()
    monkeypatch.setitem(ops.OPTIMIZERS, "lion", ("m",))
    with pytest.raises(fastagg.ConfigError, match="differ: lion"):
        rules._check_lists()


def test_a_class_of_ones_own_may_have_slots_and_what_cannot_be_copied() -> None:
    @dataclass(frozen=True, slots=True)
    class Slotted(fastagg.Adam):
        pass

    @dataclass(frozen=True)
    class Locked(fastagg.Staleness):
        lock: Any = field(default_factory=Lock, init=False)

        def rate(self, lr: float, delays: Any) -> float:
            return lr / 2

    server = fastagg.Server(torch.ones(1), optimizer=Slotted(lr=0.1), staleness=Locked())
    assert server.receive(0, torch.ones(1), version=server.dispatch(0).version).step_size == 0.05


def test_a_pair_is_checked_by_its_type() -> None:
    """A new optimizer's betas need no check of their own."""
    kind: Any = make_dataclass(
        "Pair", [("betas", Betas, field(default=(0.9, 0.99))), ("size", Annotated[int, SettingRule(least=1)], 1)],
        bases=(registry.RulePart,), frozen=True,
    )  # fmt: skip
    kind.__module__ = "fastagg.rules"
    assert kind(betas=[0.5, 0.0]).betas == (0.5, 0.0)
    for betas in (0.5, (0.5,), (0.5, 1.0), ("a", 0.5)):
        with pytest.raises(fastagg.ConfigError, match="betas"):
            kind(betas=betas)
