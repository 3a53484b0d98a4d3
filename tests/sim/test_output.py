import json
import math

import pytest

from fastagg.errors import DataError
from fastagg.sim.one.metrics import ClientRow, Row
from fastagg.sim.one.output import read_rows, replace_file, rows_csv, summary_json, write_text


def test_rows_read_back_to_the_same_bits(tmp_path):
    rows = [
        Row(0, 0.0, 0, 0.1, 1 / 3, 0.0, 0),
        Row(10, 1e-17 + 2 / 3, 50, 0.9, math.pi, 2.5, 7, 2**40, 3, 0.1 + 0.2, 0.0, 1 / 7),
    ]
    clients = [ClientRow(0, 5, 2, None), ClientRow(1, 7, 0, 2 / 3)]
    for kind, written in ((Row, rows), (ClientRow, clients)):
        write_text(tmp_path / "rows.csv", rows_csv(kind, written))
        assert read_rows(kind, tmp_path / "rows.csv") == written


def test_rows_of_an_older_version_lack_columns_at_the_end_only(tmp_path):
    path = tmp_path / "metrics.csv"
    older = "version,time,uploads,accuracy,loss,delay_mean,delay_max"
    path.write_text(f"{older}\n3,1.5,9,0.5,0.25,2.0,4\n")
    assert read_rows(Row, path) == [Row(3, 1.5, 9, 0.5, 0.25, 2.0, 4)]
    for wrong in (older.removesuffix(",delay_max"), older.replace("loss", "cost"), ""):
        path.write_text(f"{wrong}\n3,1.5,9,0.5,0.25,2.0\n")
        with pytest.raises(DataError, match=r"cannot read .*metrics"):
            read_rows(Row, path)


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
