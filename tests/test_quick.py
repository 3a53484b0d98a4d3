"""The quick benchmark measures the suite's own cases, and reports ratios as they are."""

from __future__ import annotations

from fastagg import quick


def test_every_rule_is_compared_with_torch() -> None:
    told = []
    found, busy = quick.measure(sizes=(1000,), rounds=2, told=lambda: told.append(1))
    assert [line.rule for line in found] == list(quick.RULES)
    assert len(told) == len(quick.RULES) and 0 <= busy <= 1
    for line in found:
        assert line.size == 1000 and line.ours > 0 and line.torch > 0
        assert line.ratio[0] <= line.ratio[1] <= line.ratio[2]
