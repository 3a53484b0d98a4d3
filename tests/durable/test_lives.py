"""Whole lives keep every promise, and a life finds each defect that is put back."""

import logging
import os
import random
import signal
import time

import pytest
import torch
from support import simulated
from support.simulated import Machine

import fastagg
from fastagg.durable import log, opening

pytestmark = pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no such signals here")

SECONDS = float(os.environ.get("FASTAGG_LIVES_SECONDS", "60"))  # of the slow test; an hour before a release


@pytest.fixture(autouse=True)
def no_log(caplog: pytest.LogCaptureFixture) -> None:
    """Else pytest keeps the records, these the errors, and these the servers that nobody is to hold."""
    caplog.set_level(logging.CRITICAL, "fastagg")


@pytest.fixture(autouse=True)
def fp32_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "SMALL", 2 * simulated.SIZE)


@pytest.fixture(autouse=True)
def own_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rule of a user's own is registered here alone."""
    monkeypatch.setattr(fastagg.registry, "_parts", dict(fastagg.registry._parts))
    fastagg.register(simulated.Own)


@pytest.mark.parametrize("name", simulated.RULES)
def test_a_life_keeps_every_promise(name: str) -> None:
    assert len(set(simulated.live(name, 1, 60))) > 15


@pytest.mark.slow
def test_many_lives_keep_every_promise() -> None:
    until, seed = time.monotonic() + SECONDS, 1000
    done: set[str] = set()
    while time.monotonic() < until:
        for name in simulated.RULES:
            done |= set(simulated.live(name, seed, 80))
        seed += 1
    assert done == set(simulated.ACTIONS)


def asgd() -> fastagg.Server:
    return fastagg.ASGD(torch.zeros(simulated.SIZE), lr=1.0)


def test_a_life_that_wrote_nothing_has_an_incarnation_of_its_own() -> None:
    disk = Machine()
    server = opening.open_on(disk, asgd, "none")
    left = disk.after(len(disk.steps), random.Random(1), 512)
    for client in range(2):
        server.dispatch(client)
        server.receive(client, torch.ones(simulated.SIZE), num_samples=1)
    lost = server.dispatch(0)
    server.close()
    again = opening.open_on(left, asgd, "none")
    for client in range(2):
        again.dispatch(client)
        again.receive(client, torch.ones(simulated.SIZE), num_samples=1)
    assert again.dispatch(0).version == lost.version
    with pytest.raises(fastagg.StaleIncarnation):
        again.receive(0, torch.ones(simulated.SIZE), lost.version, 1, incarnation=lost.incarnation)
    again.close()


def answered(server: fastagg.Server) -> fastagg.Receipt:
    server.dispatch(0)
    return server.receive(0, torch.ones(simulated.SIZE), num_samples=1)


def test_a_sync_that_fails_in_the_head_of_a_new_segment_ends_acknowledgements() -> None:
    class Heads(Machine):
        """The first sync of a segment with another number than 1 fails, and later ones pretend to succeed."""

        failed = 0

        def sync(self, file: int) -> None:
            name = next((name for name, node in self.names_of.items() if node == self.open_files[file]), "")
            if name.startswith("journal-") and not name.endswith("1") and not self.failed:
                self.failed += 1
                raise OSError(5, "Input/output error")
            super().sync(file)

    disk = Heads()
    server = opening.open_on(disk, asgd, "arrival", segment=8192)
    acknowledged = 0
    with pytest.raises(fastagg.NotDurable, match="open the folder again"):
        for _ in range(1000):
            assert answered(server).durable
            acknowledged += 1
    assert disk.failed == 1 and acknowledged > 0
    for call in (lambda: answered(server), server.flush, server.checkpoint):
        with pytest.raises(fastagg.FastaggError):
            call()
    with pytest.raises(fastagg.NotDurable):
        server.close()
    assert opening.open_on(disk, asgd, "arrival", segment=8192).version in (acknowledged, acknowledged + 1)
