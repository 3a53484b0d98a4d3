"""The quick benchmark compares what computes the same, and reports ratios as it says."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from fastagg import presets, quick


def test_both_sides_of_every_case_end_at_the_same_model() -> None:
    told = []
    found, busy = quick.measure(sizes=(1000,), rounds=2, told=lambda: told.append(1))
    assert [line.case for line in found] == [case.name for case in quick.CASES]
    assert len(told) == 2 and busy >= 0
    for line in found:
        assert len(line.ours) == len(line.torch) == 2
        assert all(seconds > 0 for seconds in (*line.ours, *line.torch))


def test_a_peer_that_computes_something_else_is_not_compared() -> None:
    wrong = dataclasses.replace(quick.CASES[0], ours=lambda x: presets.ASGD(x, lr=2e-3))
    with pytest.raises(AssertionError, match="differ by"):
        quick.measure(sizes=(1000,), rounds=1, cases=[wrong])


def test_ratios_are_taken_within_a_round() -> None:
    line = quick.Measured("rule", "torch", 10, ours=[1.0, 10.0, 1.0], torch=[2.0, 20.0, 4.0])
    assert line.ratio == 2.0
    assert line.spread == (2.0, 4.0)


def test_the_plain_loops_refuse_what_is_not_finite() -> None:
    for case in quick.CASES:
        with pytest.raises(ValueError, match="not finite"):
            case.plain(torch.zeros(3))(0, torch.tensor([0.0, math.nan, 1.0]))
