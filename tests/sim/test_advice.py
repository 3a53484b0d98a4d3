"""``advise``: what it recommends is what a full simulation finds, within the memory, with intervals over seeds."""

from __future__ import annotations

import math
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import stdtrit
from typer.testing import CliRunner

import fastagg
from fastagg import registry
from fastagg.errors import ConfigError, DataError
from fastagg.sim.many import advice, rules
from fastagg.sim.many.cells import run_cells
from fastagg.sim.show.progress import Watcher

CLIENTS, FLIGHT = 20, 10


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three rules, three rates, shorter runs, fewer seeds; the way is the same."""
    few = {name: advice.RULES[name] for name in ("FedAvg", "FedBuff", "ACE")}
    middles = {name: rule.rates[len(rule.rates) // 2] for name, rule in few.items()}
    few = {name: replace(rule, rates=range(middles[name] - 1, middles[name] + 2)) for name, rule in few.items()}
    for module in (advice, rules):
        monkeypatch.setattr(module, "RULES", few)
    for name, value in {"UPLOADS": 100, "SEARCHERS": 1, "JUDGES": 3, "FINALISTS": 2}.items():
        monkeypatch.setattr(advice, name, value)


@pytest.fixture
def tiny(small: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """One rule of them, and two seeds."""
    for module in (advice, rules):
        monkeypatch.setattr(module, "RULES", {"FedBuff": advice.RULES["FedBuff"]})
    monkeypatch.setattr(advice, "JUDGES", 2)


def arrays(clients: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    means = rng.normal(size=(3, 6))
    found = {}
    for part, count in (("train", 300), ("test", 90)):
        labels = np.arange(count) % 3
        found[f"x_{part}"] = (means[labels] + 0.3 * rng.normal(size=(count, 6))).astype(np.float32)
        found[f"y_{part}"] = labels
    return found | ({"client_train": 7 * (np.arange(300) % clients)} if clients else {})


@pytest.mark.parametrize("name", advice.RULES)
def test_the_memory_is_that_of_a_server(name: str) -> None:
    size, clients, flight = 50_000, 10, 10
    for cache in advice.RULES[name].caches:
        keywords = advice.keywords_of(name, 0, cache, flight)
        server = registry.presets()[name](torch.zeros(size), **keywords, **({"num_clients": clients} if cache else {}))
        for client in range(clients):
            server.dispatch(client)
        for client in range(clients):
            server.receive(client, torch.full((size,), 1e-6), num_samples=1)
            if name == "FedAsync":  # each open task has its own version
                server.dispatch(client)
        needed = advice.server_bytes(name, size, clients, flight, cache)
        next_version = 4 * size  # which memory() does not count
        assert needed == pytest.approx(server.memory()["total"] + next_version, rel=0.03), cache


def test_the_line_makes_the_server(small: None) -> None:
    for name, rule in advice.RULES.items():
        for flight in (1, 10, 1000):
            settings = advice.keywords_of(name, rule.rates[0], rule.caches[-1], flight)
            settings |= {"num_clients": 3} if rule.caches[-1] else {}
            one = advice.Ranked(name, settings, None, None, 0)  # type: ignore[arg-type]
            server = eval(one.line, {"fastagg": fastagg, "model": torch.zeros(5)})
            assert isinstance(server, fastagg.Server)


def test_rates_are_a_grid_of_ones_and_threes() -> None:
    found = [advice.keywords_of("FedBuff", rate, "", 5)["lr"] for rate in range(-4, 3)]
    assert found == [0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0]


def test_it_recommends_what_a_simulation_of_everything_finds(small: None, tmp_path: Path) -> None:
    found = advice.advise(CLIENTS, slow=20.0, seed=3)

    # Everything: each rule at each rate of its grid, with the seeds that judge.
    (tmp_path / "slow.csv").write_text(advice._slow(20.0, 0.1))
    delay = {"name": "measured", "file": str(tmp_path / "slow.csv")}
    base = {"data": {"name": "digits", "clients": CLIENTS, "alpha": 0.1}, "delay": delay}
    lab = advice._Lab(
        base, {"FedAvg": "", "FedBuff": "", "ACE": "fp32"}, FLIGHT, {"uploads": 100}, tmp_path, 1, Watcher()
    )
    (pace,) = lab.run([("FedBuff", 0, 1003)]).values()
    lab.end = {"time": pace.summary["virtual_time"]}
    wanted = [(n, rate, s) for n, rule in advice.RULES.items() for rate in rule.rates for s in (3, 4, 5)]
    runs = lab.run(wanted)
    means = {
        (name, rate): statistics.fmean(advice._accuracy(runs[name, rate, own]) for own in (3, 4, 5))
        for name, rate, _ in wanted
    }
    best = max(means, key=lambda one: means[one])
    first = found.ranked[0]
    assert first.rule == best[0] == "FedBuff"
    rate = next(
        rate
        for rate in advice.RULES["FedBuff"].rates
        if advice.keywords_of("FedBuff", rate, "", 5)["lr"] == first.settings["lr"]
    )
    assert first.accuracy.mean == pytest.approx(means["FedBuff", rate])
    assert means[best] - first.accuracy.mean < 3.0  # its rate was searched with another seed

    # Intervals: Student's, over pairs of the same seed.
    for one in found.ranked:
        assert sorted(one.accuracy.pairs) == sorted(one.behind.pairs) == [3, 4, 5]
        pairs = [one.accuracy.pairs[own] - first.accuracy.pairs[own] for own in (3, 4, 5)]
        assert one.behind.mean == pytest.approx(statistics.fmean(pairs))
        for difference, values in ((one.accuracy, one.accuracy.pairs.values()), (one.behind, pairs)):
            half = stdtrit(2, 0.975) * statistics.stdev(values) / math.sqrt(3)
            assert (difference.low, difference.high) == pytest.approx((difference.mean - half, difference.mean + half))
    assert first.behind.mean == 0.0 and len(found.ranked) == 2
    assert found.command == "fastagg advise 20 --slow 20.0 --slow-share 0.1 --skew strong --parameters 1000000 --seed 3"
    said = " ".join(found.why)
    assert all(name in said for name in advice.RULES)


@pytest.mark.slow
def test_the_number_of_processes_changes_nothing(small: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(advice, "_FEW", 0)
    assert advice.advise(CLIENTS, jobs=2) == advice.advise(CLIENTS, jobs=1)


def test_settings_are_scaled_to_all_clients(tiny: None, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def noted(cells: Any, *rest: Any) -> Any:
        asked.extend(cell.config for cell in cells)
        return run_cells(cells, *rest)

    monkeypatch.setattr(advice, "run_cells", noted)
    found = advice.advise(5000, in_flight=1000, skew="none", slow=1.0)
    assert advice.advise(5000, in_flight=1000, skew="none", slow=1.0) == found  # the same seed gives the same advice
    assert {config.data.clients for config in asked} == {50}
    assert {config.participation.concurrency for config in asked} == {10}
    assert {config.algorithm.keywords["buffer_size"] for config in asked} == {2}
    assert [one.settings["buffer_size"] for one in found.ranked] == [200]


@pytest.mark.parametrize(
    ("memory", "cache", "without"),
    [
        (None, "fp32", []),
        ("12GB", "bf16", ["ACE with fp32 cache"]),
        ("6GB", "int8", ["ACE with fp32 cache", "ACE with bf16 cache"]),
        ("2GB", None, [f"ACE with {cache} cache" for cache in ("fp32", "bf16", "int8", "int4")]),
    ],
)
def test_what_does_not_fit_is_left_out(memory: str | None, cache: str | None, without: list[str], small: None) -> None:
    size, clients = 10_000_000, 500
    limit = math.inf if memory is None else advice.bytes_of("memory", memory)
    fitting, left_out = rules.fitting(size, clients, 250, limit)
    assert fitting.get("ACE") == cache and [name for name in left_out if name.startswith("ACE")] == without
    for name, needs in left_out.items():
        assert needs > limit, name
    assert {"FedAvg", "FedBuff"} <= fitting.keys()


def test_rows_that_do_not_fit_are_not_recommended(small: None) -> None:
    found = advice.advise(CLIENTS, parameters="10M", memory="500MB")
    assert "ACE with fp32 cache" in found.left_out and "ACE with int8 cache" not in found.left_out
    for one in found.ranked:
        assert one.settings.get("cache") in (None, "int8") and one.memory <= 500e6


def test_measured_delays(tmp_path: Path, tiny: None) -> None:
    lines = [f"{client},{1 + 9 * (client == 3) + 0.1 * turn}" for turn in range(40) for client in range(5)]
    (tmp_path / "delays.csv").write_text("\n".join(["client,seconds", *lines]))
    said = advice.advise(CLIENTS, delays=tmp_path / "delays.csv")
    assert f"--delays {tmp_path / 'delays.csv'}" in said.command and "--slow" not in said.command


@pytest.mark.parametrize("owners", [0, 12])
def test_data_of_ones_own(owners: int, tmp_path: Path, tiny: None) -> None:
    np.savez(tmp_path / "mine.npz", **arrays(owners))  # type: ignore[arg-type]
    section, uploads = advice._data(tmp_path / "mine.npz", tmp_path, 8, 0.3, seed=0)
    assert section["clients"] == 8 and uploads == advice.UPLOADS
    with np.load(tmp_path / "data.npz") as kept:
        if owners:
            assert sorted(set(kept["client_train"])) == list(range(8)) and len(kept["x_train"]) == 300 / 12 * 8
        else:
            assert len(kept["x_train"]) == 300
    found = advice.advise(8, data=tmp_path / "mine.npz", skew="none")
    assert found.ranked[0].accuracy.mean > 90  # three clear groups


def test_larger_inputs_get_shorter_runs(tmp_path: Path) -> None:
    sizes = {}
    for inputs in (64, 784, 3072):
        x = np.random.default_rng(0).normal(size=(40, inputs)).astype(np.float32)
        np.savez(tmp_path / "mine.npz", x_train=x, y_train=np.arange(40) % 2, x_test=x, y_test=np.arange(40) % 2)
        sizes[inputs] = advice._data(tmp_path / "mine.npz", tmp_path, 4, 1.0, 0)[1]
    assert sizes[64] == advice.UPLOADS > sizes[784] > sizes[3072] >= 200


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"clients": 1}, "clients: expected a whole number >= 2, got 1"),
        ({"skew": "much"}, "skew: expected one of 'none', 'mild', 'strong', got 'much'"),
        ({"skew": 0.0}, "skew: expected .* > 0, got 0.0"),
        ({"slow": 0.5}, "slow: expected .* >= 1, got 0.5"),
        ({"slow_share": 1.5}, r"slow_share: expected a share in 0\.\.1, got 1.5"),
        ({"parameters": "lots"}, "parameters: expected a number, such as .*, got 'lots'"),
        ({"memory": "1kB"}, "memory: expected at least .* bytes, got 1,000"),
        ({"memory": "much"}, "memory: expected bytes, such as .*, got 'much'"),
        ({"in_flight": 99}, "in_flight: expected a whole number in 1..20, got 99"),
        ({"seed": -1}, "seed: expected a whole number >= 0, got -1"),
        ({"delays": 3}, "delays: expected a path"),
    ],
)
def test_bad_input_is_refused_before_anything_runs(
    given: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(advice, "run_cells", None)
    with pytest.raises(ConfigError, match=words):
        advice.advise(**{"clients": CLIENTS, **given})


def test_bad_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(advice, "run_cells", None)
    path = tmp_path / "file"
    for text, words in (
        ("", "expected lines of .*client,seconds or only seconds, got none"),
        ("client,seconds\n", "got none"),
        ("a,1\nb,slow\n", r"line 2: expected .*client,seconds .*, got 'b,slow'"),
        ("1\n-2\n", "line 2: .* got '-2'"),
        ("1\n0\n", "line 2"),
        ("1\nnan\n", "line 2"),
    ):
        path.write_text(text)
        with pytest.raises(DataError, match=words):
            advice.advise(CLIENTS, delays=path)
        with pytest.raises(DataError, match="npz file"):
            advice.advise(CLIENTS, data=path)
    with pytest.raises(DataError, match="cannot read"):
        advice.advise(CLIENTS, delays=tmp_path)
    with pytest.raises(DataError, match="there is no file"):
        advice.advise(CLIENTS, data=tmp_path / "nothing.npz")
    x = np.zeros((4, 5000), np.float32)
    np.savez(tmp_path / "wide.npz", x_train=x, y_train=np.zeros(4, int), x_test=x, y_test=np.zeros(4, int))
    with pytest.raises(DataError, match=r"expected at most 4096 numbers a sample, got 5000; average"):
        advice.advise(CLIENTS, data=tmp_path / "wide.npz")
    np.savez(tmp_path / "owned.npz", **{**arrays(), "client_train": np.zeros(3, int)})  # type: ignore[arg-type]
    with pytest.raises(DataError, match="client_train must be the client"):
        advice.advise(CLIENTS, data=tmp_path / "owned.npz")


def test_the_command_fits_a_terminal_and_names_the_line_to_type(small: None) -> None:
    from fastagg.cli.app import app

    done = CliRunner().invoke(app, ["advise", str(CLIENTS), "--parameters", "10M", "--memory", "500MB", "-j", "1"])
    assert done.exit_code == 0, done.output
    *lines, again = done.stdout.splitlines()
    assert all(len(line) <= 80 for line in lines) and again.startswith("Again: fastagg advise 20 ")
    assert lines[0] == "Use" and lines[1].startswith("  fastagg.") and lines[2] == "Runners-up"
    assert "Too large for the memory: ACE with fp32 cache (920.0 MB)" in done.stdout
    refused = CliRunner().invoke(app, ["advise", str(CLIENTS), "--skew", "much"])
    assert refused.exit_code == 2 and "skew: expected one of" in refused.stderr
