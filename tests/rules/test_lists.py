"""A part of the package whose declaration lacks something is refused by name, when the package is imported."""

from dataclasses import dataclass, field, make_dataclass
from typing import Annotated, Any, ClassVar, cast

import pytest

import fastagg
from fastagg import registry, rules
from fastagg._checks import Betas, NotNegative, SettingRule
from fastagg.ops.combine import ROBUST
from fastagg.rules import staleness
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
class Formulaless(fastagg.Staleness):
    def weight(self, delay: int) -> float:
        return 1.0


@dataclass(frozen=True)
class Misnamed(fastagg.Staleness):
    weight_formula: ClassVar[str] = "parabola"

    def weight(self, delay: int) -> float:
        return 1.0


@pytest.mark.parametrize(("part", "says"), [
    (Bare, "Bare.nesting: any <class 'float'> is taken"), (Unread, "Unread: the engine does not know it so"),
    (Kernelless, "Kernelless: the engine does not know it so"), (Misnamed, "Misnamed: the engine does not know it so"),
    (Formulaless, "weight_formula does not say which formula"),
])  # fmt: skip
def test_what_a_declaration_lacks_is_named(part: type, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(part, "__module__", "fastagg.rules")  # one of the package's
    with pytest.raises(fastagg.ConfigError, match=says):
        rules._check_declaration(part)


def test_lists_of_names_are_those_of_what_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    rules._check_lists()
    monkeypatch.setitem(cast(dict[str, Any], ROBUST), "bulyan", ROBUST["krum"])
    with pytest.raises(fastagg.ConfigError, match=r"RobustRule and ROBUST .* differ: bulyan"):
        rules._check_lists()
    monkeypatch.undo()
    monkeypatch.setitem(cast(dict[str, Any], staleness.DelayAdaptive.formulas), "square", max)
    with pytest.raises(fastagg.ConfigError, match=r"names.Rule and DelayAdaptive.formulas differ: square"):
        rules._check_lists()


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
