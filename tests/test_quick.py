"""The quick benchmark compares what computes the same, and reports ratios as it says."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from fastagg import presets, quick
from fastagg.errors import ConfigError


def test_both_sides_of_every_case_end_at_the_same_model() -> None:
    told = []
    found, busy = quick.measure(sizes=(1000,), rounds=2, told=lambda: told.append(1))
    assert [line.case for line in found] == [case.name for case in quick.cases()]
    assert len(told) == 2 and busy >= 0
    for line in found:
        assert len(line.ours) == len(line.torch) == 2
        assert all(seconds > 0 for seconds in (*line.ours, *line.torch))


def test_a_peer_that_computes_something_else_is_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = dataclasses.replace(quick.cases()[0], ours=lambda x: presets.ASGD(x, lr=2e-3))
    monkeypatch.setattr(quick, "cases", lambda: [wrong])
    with pytest.raises(AssertionError, match="differ by"):
        quick.measure(sizes=(1000,), rounds=1)


def test_ratios_are_taken_within_a_round() -> None:
    line = quick.Measured("rule", "torch", 10, ours=[1.0, 10.0, 1.0], torch=[2.0, 20.0, 4.0])
    assert line.ratio == 2.0
    assert line.spread == (2.0, 4.0)


def test_the_plain_loops_refuse_what_is_not_finite() -> None:
    for case in quick.cases():
        with pytest.raises(ValueError, match="not finite"):
            case.plain(torch.zeros(3))(0, torch.tensor([0.0, math.nan, 1.0]))


def test_a_rule_asked_for_stands_beside_eager_and_compiled_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = []
    monkeypatch.setattr(quick, "_compile", lambda step: compiled.append(1) or step)
    found, _ = quick.measure(sizes=(1000,), rounds=1, chosen=quick.asked("ace-int8"))
    assert [line.peer for line in found] == [
        "torch with an fp32 cache", "torch with an int8 cache", "torch.compile with an int8 cache",
    ]  # fmt: skip
    assert compiled
    with pytest.raises(ConfigError, match="bench: expected one of"):
        quick.asked("ace-int9")


def test_what_torch_cannot_compile_is_left_out_with_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(step: object) -> None:
        raise RuntimeError("no C++ compiler\nand much more")

    monkeypatch.setattr(quick, "_compile", refuse)
    with pytest.warns(UserWarning, match="torch.compile, in place is left out: no C\\+\\+ compiler$"):
        found, _ = quick.measure(sizes=(1000,), rounds=1, chosen=quick.asked("fadas"))
    assert [line.peer for line in found] == ["torch, in place"]
