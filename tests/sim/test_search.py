"""Settings searched for every method alike: which runs, on which seeds, with which result; stopped and gone on."""

import csv
import math

import pytest

from fastagg import sim
from fastagg.cli.runs import parse_range
from fastagg.errors import ConfigError, RunFailed
from fastagg.sim.comparison.search import SEED, Range

pytest.importorskip("optuna")

SHORT = {"run.uploads": 20, "data.clients": 30, "run.evaluate_every": 2}
RULES = {"FedBuff": "FedBuff", "FedAsync": "FedAsync"}


def searched(out, **settings):
    settings = {"rules": RULES, "search": {"client.lr": (0.003, 1.0)}, "budget": 3, "seeds": [0, 1], **settings}
    return sim.compare("fedbuff-digits-large", SHORT, out=out, **settings)


def lines(out):
    with (out / "search.csv").open() as file:
        return list(csv.DictReader(file))


def test_each_method_gets_the_best_of_its_own_trials_and_all_have_as_many(tmp_path):
    found = searched(tmp_path)
    tried = lines(tmp_path)
    assert len(tried) == 6 and {line["trial"] for line in tried} == {"0", "1", "2"}
    for group in found.groups:
        own = [line for line in tried if line["method"] == group.name]
        best = max(own, key=lambda line: float(line["accuracy"]))
        assert all(result.config.client.lr == float(best["client.lr"]) for result in group.results)
        assert group.seeds == [0, 1] and all(0.003 <= float(line["client.lr"]) <= 1.0 for line in own)
    runs = sorted(path.name for path in tmp_path.glob("search/*/*/seed*"))
    assert set(runs) == {f"seed{SEED}"} and len(runs) == 6, "no trial has a seed that is compared"
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("summary.json")}
    again = searched(tmp_path)
    assert [group.results[0].rows for group in again.groups] == [group.results[0].rows for group in found.groups]
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("summary.json")} == before, "read, not run again"


def test_a_trial_that_fails_counts_for_nothing_and_a_method_without_any_is_named(tmp_path):
    found = searched(tmp_path, search={"client.lr": (0.01, 1e8)}, budget=6, rules={"FedBuff": "FedBuff"})
    scores = [float(line["accuracy"]) for line in lines(tmp_path)]
    assert 0.0 in scores and max(scores) > 0.0, "what diverged is the worst"
    best = max(lines(tmp_path), key=lambda line: float(line["accuracy"]))
    assert found.groups[0].results[0].config.client.lr == float(best["client.lr"])
    with pytest.raises((RunFailed, ConfigError), match="batch_size"):
        searched(tmp_path / "none", search={"client.batch_size": (-5, -1)})


@pytest.mark.parametrize(
    ("text", "span"),
    [("client.lr=0.01..1", Range(0.01, 1)), ("a.b = 1..20", Range(1, 20)), ("a=-1e-3..0.5", Range(-0.001, 0.5))],
)
def test_a_range_on_the_command_line(text, span):
    assert parse_range(text)[1] == span and Range(*parse_range(text)[1]).whole == (text.startswith("a.b"))


@pytest.mark.parametrize("text", ["client.lr", "client.lr=1", "client.lr=2..1", "=1..2", "lr=a..b", "lr=1..inf",
                                  "lr=nan..1"])  # fmt: skip
def test_a_range_that_is_none_is_refused(text):
    with pytest.raises(ConfigError, match=r"--search: expected KEY=LOW..HIGH"):
        parse_range(text)


def test_a_key_is_compared_or_searched_and_not_both(tmp_path):
    with pytest.raises(ConfigError, match=r"client.lr: give values to compare, or a range"):
        searched(tmp_path, grid={"client.lr": [0.1, 0.2]})


def test_ranges_on_a_logarithmic_scale_are_searched_by_ratios(tmp_path):
    searched(tmp_path, budget=8, rules={"FedBuff": "FedBuff"}, search={"client.lr": (1e-6, 1.0)}, seeds=1)
    tried = [math.log10(float(line["client.lr"])) for line in lines(tmp_path)]
    assert min(tried) < -2 and max(tried) > -4
