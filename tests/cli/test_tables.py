from fastagg.cli.tables import pairs_table, quick_table, verdict
from fastagg.quick import Measured


def measured(*ratios: float) -> Measured:
    return Measured("rule", "torch", 1000, 1.0, ratios[1], ratios)


def test_nested_pairs_become_dotted_names():
    sheet = pairs_table("t", {"a": {"b": True}, "c": [], "d": ["x", "y"]})
    assert sheet.rows == [("a.b", "True"), ("c", "none"), ("d", "x, y")]


def test_a_loss_is_called_one_and_noise_is_not_called_a_win():
    assert verdict(measured(0.6, 0.7, 0.8)) == "SLOWER"
    assert verdict(measured(0.6, 1.7, 1.8)) == "even"
    assert verdict(measured(1.6, 1.7, 1.8)) == "faster"
    (row,) = quick_table([measured(0.5, 0.5, 0.5)], 0).rows
    assert row == ["rule", "1 k", "1000.000", "500.000", "0.50", "0.50 to 0.50", "SLOWER"]


def test_a_busy_machine_is_said():
    assert "OTHER PROCESSES USED 30%" in quick_table([], 0.3).caption
    assert "OTHER" not in quick_table([], 0.01).caption
