"""Claims of tables: paired differences, their intervals, what they say."""

from __future__ import annotations

import statistics
from pathlib import Path

import numpy as np
import pytest

from fastagg.errors import ConfigError
from fastagg.sim.many.cells import cells
from fastagg.sim.many.groups import STUDENT, Judged, grouped, judged, paired
from fastagg.sim.one.result import Result
from fastagg.sim.recipes import tables
from fastagg.sim.show.findings import claims_table
from fastagg.sim.show.plots import claims as figure

TABLE = """
title = "A small table"
source = "nobody"

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

[[claims]]
text = "FADAS is above FedBuff"
better = ["FADAS", "a"]
worse = ["FedBuff", "a"]

[[claims]]
text = "FADAS is sooner"
better = ["FADAS", "b"]
worse = ["FedBuff", "b"]
measure = "time_to_target"
scale = 1
less = true
"""


def test_the_interval_is_student_s():
    """Against a simulation of Student's law, which no table of quantiles is needed for."""
    rng = np.random.default_rng(0)
    for count in (2, 3, 5, 10):
        draws = rng.standard_normal((400_000, count))
        t = draws.mean(axis=1) / (draws.std(axis=1, ddof=1) / np.sqrt(count))
        assert (np.abs(t) < STUDENT[count - 2]).mean() == pytest.approx(0.95, abs=0.002)


def test_pairs_are_by_seed_and_decide():
    better, worse = {0: 5.0, 1: 7.0, 2: 9.0, 9: 100.0}, {0: 1.0, 1: 3.5, 2: 4.5, 5: 0.0}
    difference = paired(better, worse)
    assert dict(difference.pairs) == {0: 4.0, 1: 3.5, 2: 4.5} and difference.mean == pytest.approx(4.0)
    half = 4.303 * statistics.stdev([4.0, 3.5, 4.5]) / 3**0.5
    assert (difference.low, difference.high) == (pytest.approx(4 - half), pytest.approx(4 + half))
    assert difference.verdict == "shown"
    assert paired(worse, better).verdict == "reversed"
    assert paired({0: 1.0, 1: 5.0}, {0: 2.0, 1: 1.0}).verdict == "tie"
    assert paired({0: 1.0}, {0: 0.0}).verdict == "one seed"


def results(path: Path, scores):
    """Two seeds a cell; ``scores`` maps (method, setting) to what summary.json says of each seed."""
    runs = []
    for cell in cells([str(path)], {}, {}, 2):
        setting = dict(cell.choice)["setting"]
        runs.append((cell, Result(cell.config, [], scores[cell.method, setting][cell.config.seed], "10 s")))
    return grouped(runs)


def test_a_table_s_claims_are_judged(tmp_path):
    path = tmp_path / "small.toml"
    path.write_text(TABLE)
    high, low = {"last5_accuracy_mean": 0.6, "time_to_target": 5.0}, {"last5_accuracy_mean": 0.5, "time_to_target": 9.0}
    never = {"last5_accuracy_mean": 0.5, "time_to_target": None}
    scores = {
        ("FADAS", "a"): [high, {**high, "last5_accuracy_mean": 0.601}],
        ("FedBuff", "a"): [low, low],
        ("FADAS", "b"): [high, high],
        ("FedBuff", "b"): [low, never],
    }
    first, second = judged([str(path)], results(path, scores))
    assert first.difference.mean == pytest.approx(10.05) and first.difference.verdict == "shown"
    # Less time is better, so more than zero still means that the claim holds; a seed that never got there has none.
    assert second.difference.mean == pytest.approx(4.0) and second.difference.verdict == "one seed"
    text = claims_table([first, second]).markdown()
    assert "| FADAS is above FedBuff | +10.0 [+9.4, +10.7] | 2 | shown |" in text
    assert len(figure([first, second], "title").axes[0].get_yticklabels()) == 2
    assert isinstance(first, Judged) and judged(["fedbuff-digits-large"], []) == []


def test_a_claim_about_what_is_not_there_is_refused(tmp_path):
    path = tmp_path / "small.toml"
    path.write_text(TABLE.replace('better = ["FADAS", "b"]', 'better = ["FADAS", "c"]'))
    with pytest.raises(ConfigError, match="FADAS is sooner"):
        tables.load(str(path))


def test_a_method_may_be_left_out_of_a_setting(tmp_path):
    path = tmp_path / "small.toml"
    path.write_text(
        TABLE.partition("[[claims]]")[0].replace(
            'algorithm = { name = "FedBuff" }', 'algorithm = { name = "FedBuff" }\nnot_at = ["b"]'
        )
    )
    table = tables.load(str(path))
    assert [(cell.method, cell.setting) for cell in table.cells] == [("FedBuff", "a"), ("FADAS", "a"), ("FADAS", "b")]
    path.write_text(path.read_text().replace('not_at = ["b"]', 'not_at = ["c"]'))
    with pytest.raises(ConfigError, match="FedBuff has changes at c"):
        tables.load(str(path))
