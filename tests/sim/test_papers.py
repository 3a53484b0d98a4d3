"""The papers' numbers and claims beside a comparison: reproduction/papers.py reads what it wrote."""

import pytest
from papers import Verdict, beside, claims, claims_table, judge, runs

from fastagg.errors import ConfigError
from fastagg.sim.comparison.groups import Difference
from fastagg.sim.recipes import tables
from fastagg.sim.runs.output import csv_text

TABLE = """
title = "A small table"

[base]
data = { name = "digits", clients = 12 }
client = { lr = 0.1 }
delay = { name = "three-class" }
participation = { rule = "concurrency", concurrency = 6 }
run = { uploads = 30 }

[methods.FedBuff]
algorithm = { name = "FedBuff" }

[methods.FADAS]
algorithm = { name = "FADAS", lr = 0.01 }

[settings.a]
[settings.b]

[paper.values.FADAS]
a = [72.0, 0.94]

[[claims]]
text = "FADAS is above FedBuff"
better = ["FADAS", "a"]
worse = ["FedBuff", "a"]

[[claims]]
text = "FADAS is sooner"
better = ["FADAS", "b"]
worse = ["FedBuff", "b"]
measure = "time_to_target"
less = true
"""


HIGH, LOW = ({"last5_accuracy_mean": a, "time_to_target": t} for a, t in ((0.6, 5.0), (0.5, 9.0)))
NEVER = {**LOW, "time_to_target": None}
RESULTS = {  # of two seeds
    "fadas.a": [HIGH, {**HIGH, "last5_accuracy_mean": 0.601}], "fedbuff.a": [LOW, LOW],
    "fadas.b": [HIGH, HIGH], "fedbuff.b": [LOW, NEVER],
}  # fmt: skip


@pytest.fixture
def table(tmp_path):
    (tmp_path / "small.toml").write_text(TABLE)
    lines = [
        {"name": f"small.{name}", "seed": seed, "virtual_time": 20.0, "stopped": "finished", **result}
        for name, results in RESULTS.items()
        for seed, result in enumerate(results)
    ]
    (tmp_path / "comparison.csv").write_text(csv_text(lines[0], lines))
    return str(tmp_path / "small.toml"), runs(tmp_path)


def test_a_table_s_claims_are_judged(table):
    first, second = judge(*table)
    assert first.difference.mean == pytest.approx(10.05) and first.word == "shown"
    # Less time is better, so more than zero still means that the claim holds.
    assert second.difference.pairs == {0: 4.0, 1: 15.0} and second.word == "tie"
    text = claims_table([first, second]).markdown()
    assert "paired t-test at 5%" in text and "correction for 2 claims none would become a tie" in text
    assert "| FADAS is above FedBuff | +10.0 [+9.4, +10.7] | 2 | shown |" in text
    words = [Verdict("", Difference(mean, None, None, {}, p)).word for mean, p in ((-1.0, 0.01), (1.0, None))]
    assert words == ["reversed", "one seed"] and judge(table[0], {}) == []


def test_the_paper_s_numbers_are_in_brackets(table):
    assert beside(*table).rows == [["FedBuff", "50.0", "50.0"], ["FADAS", "60.1 (72.0±0.9)", "60.0"]]


def test_a_claim_of_no_cell_is_refused(table, tmp_path):
    (tmp_path / "wrong.toml").write_text(TABLE.replace('better = ["FADAS", "a"]', 'better = ["FADAS", "c"]'))
    with pytest.raises(ConfigError, match=r"FADAS is above FedBuff.*FADAS, c, which is not in the table"):
        claims(str(tmp_path / "wrong.toml"))


@pytest.mark.parametrize("name", tables.names())
def test_every_claim_and_number_is_of_a_cell(name):
    claims(name)
    cells = {(cell.method, cell.setting) for cell in tables.load(name).cells}
    for method, values in tables.read(name).paper.values.items():
        # A paper's method that is not a row here has its numbers kept for the reader.
        if method in {method for method, _ in cells}:
            assert {(method, setting) for setting in values} <= {cell for cell in cells}
        assert all(len(numbers) in (1, 2) for numbers in values.values())
