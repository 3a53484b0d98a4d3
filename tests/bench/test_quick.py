"""The quick benchmark measures the suite's own cases, and reports ratios as they are."""

from __future__ import annotations

import pytest


def measured(*ratios: float):
    from quick import Measured

    return Measured("rule", "torch", 1000, 1.0, ratios[1], ratios)


def test_every_rule_is_compared_with_torch_and_has_a_line(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    import quick

    taken = []
    monkeypatch.setattr(quick.measure, "__defaults__", ((1000,), 2, lambda: None))
    monkeypatch.setattr(quick, "show", taken.append)
    quick.main()
    (sheet,) = taken
    assert [row[0] for row in sheet.rows] == list(quick.RULES)
    for rule, size, ours, theirs, ratio, spread, _ in sheet.rows:
        low, high = spread.split(" to ")
        assert size == "1 k" and float(ours) > 0 < float(theirs) and float(low) <= float(ratio) <= float(high), rule


def test_a_loss_is_called_one_and_noise_is_not_called_a_win() -> None:
    from quick import quick_table, verdict

    assert verdict(measured(0.6, 0.7, 0.8)) == "SLOWER"
    assert verdict(measured(0.6, 1.7, 1.8)) == "even"
    assert verdict(measured(1.6, 1.7, 1.8)) == "faster"
    (row,) = quick_table([measured(0.5, 0.5, 0.5)], 0).rows
    assert row == ["rule", "1 k", "1000.000", "500.000", "0.50", "0.50 to 0.50", "SLOWER"]


def test_the_table_loses_nothing_in_eighty_columns_and_says_that_a_machine_is_busy() -> None:
    import io

    from quick import Measured, quick_table
    from rich.console import Console

    from fastagg.cli.screen import draw

    line = Measured("ACE int8", "torch.compile with an int8 cache", 4_000_000, 0.001234, 0.0123, (9.9, 9.97, 10.1))
    console = Console(width=80, record=True, file=io.StringIO(), highlight=False)
    draw(quick_table([line], 0.3), console)
    text = console.export_text()
    assert max(map(len, text.splitlines())) <= 80
    assert all(word in text for word in ("ACE int8", "4 M", "1.234", "9.90 to 10.10", "faster"))
    assert "OTHER PROCESSES USED 30%" in " ".join(text.split())
    assert "OTHER" not in quick_table([], 0.01).caption
