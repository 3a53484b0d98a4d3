import csv
import io
import json
import math

import pytest

from fastagg.sim.metrics import Row
from fastagg.sim.output import metrics_csv, replace_file, summary_json, write_text


def test_metrics_read_back_to_the_same_bits():
    rows = [Row(0, 0.0, 0, 0.1, 1 / 3, 0.0, 0), Row(10, 1e-17 + 2 / 3, 50, 0.9, math.pi, 2.5, 7)]
    lines = list(csv.DictReader(io.StringIO(metrics_csv(rows))))
    assert list(lines[0]) == ["version", "time", "uploads", "accuracy", "loss", "delay_mean", "delay_max"]
    assert [
        Row(*(type(v)(t) for v, t in zip(vars(r).values(), line.values(), strict=True)))
        for r, line in zip(rows, lines, strict=True)
    ] == rows


def test_a_loss_that_is_not_a_number_becomes_null():
    assert json.loads(summary_json({"loss": math.nan, "time": math.inf, "n": 1})) == {
        "loss": None,
        "time": None,
        "n": 1,
    }


def test_a_file_is_replaced_whole(tmp_path):
    write_text(tmp_path / "a.txt", "old")
    with (tmp_path / "a.txt").open() as reader:
        write_text(tmp_path / "a.txt", "new")
        assert reader.read() == "old"  # another file took the name: nobody ever sees half of one
    assert (tmp_path / "a.txt").read_text() == "new"
    assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]


def test_a_failed_write_leaves_the_old_file_and_no_litter(tmp_path):
    write_text(tmp_path / "a.txt", "old")

    def full_disk(temporary):
        temporary.write_text("ha")
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        replace_file(tmp_path / "a.txt", full_disk)
    assert (tmp_path / "a.txt").read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]
