"""Servers that are drawn from all settings are what their float64 models are, and find a defect of each kind.

FASTAGG_FUZZ_SERVERS=20000 FASTAGG_FUZZ_SEED=1 pytest -m slow tests/fuzz -k many      (a failure names its seed)
"""

import logging
import os
from collections.abc import Iterator

import pytest
import torch

import fastagg
from fastagg.durable import log
from fuzz import drawn, planted
from fuzz.beside import Wrong, run
from fuzz.own import OWN

SEED, COUNT = 6, 300  # at every commit: with this seed they have all pairs
NIGHTLY = int(os.environ.get("FASTAGG_FUZZ_SERVERS", "20000"))


@pytest.fixture(autouse=True)
def alone(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Own rules are registered here alone, every upload has a file, and small vectors need no threads."""
    caplog.set_level(logging.CRITICAL, "fastagg")
    monkeypatch.setattr(log, "SMALL", 0)
    monkeypatch.setattr(fastagg.registry, "_parts", dict(fastagg.registry._parts))
    for part in OWN:
        fastagg.register(part)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def test_servers_are_what_their_models_are() -> None:
    for number, values in enumerate(drawn.servers(SEED, COUNT)):
        run(SEED, number, values)


@pytest.mark.slow
def test_many_servers_are_what_their_models_are() -> None:
    seed = int(os.environ.get("FASTAGG_FUZZ_SEED", "1000"))
    for number, values in enumerate(drawn.servers(seed, NIGHTLY)):
        run(seed, number, values)


@pytest.mark.slow  # drawing alone, but of several thousand
def test_every_pair_of_settings_that_may_stand_together_is_drawn() -> None:
    at_commits, many = (
        {pair for values in drawn.servers(seed, count) for pair in drawn.pairs_of(values)}
        for seed, count in ((SEED, COUNT), (2, 3000))
    )
    assert many == at_commits, sorted(map(str, many ^ at_commits))


@pytest.mark.slow  # it is of the fuzz, and not of the package
@pytest.mark.parametrize("name", planted.DEFECTS)
def test_a_planted_defect_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    planted.DEFECTS[name](monkeypatch.setattr)
    for number, values in enumerate(drawn.servers(SEED, COUNT)):
        try:
            run(SEED, number, values)
        except Wrong as error:
            assert isinstance(error.__cause__, (Wrong, fastagg.FastaggError)), error
            print(f"{name}: server {number}")
            return
    raise AssertionError("it was not found")
