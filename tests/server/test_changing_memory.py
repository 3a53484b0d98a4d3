"""A sender that writes to an update while the server reads it: what the server takes stays finite and within bounds.

Another process writes to the update's memory all the time: small numbers, NaN, infinity, the largest float. An answer
is counted or refused by name. ``still`` says that nobody writes, so the server reads twice: a lie must not spoil it.
"""

from __future__ import annotations

import mmap
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from support.models import same
from support.presets import CLIENTS, PRESETS, calls, model, update
from torch import Tensor

import fastagg

pytestmark = pytest.mark.kernel

SIZE = 20_000  # larger than the updates that are copied
SMALL = 1e-3
WRITER = """
import mmap, sys
import numpy as np
with open(sys.argv[1], "r+b") as file:
    numbers = np.frombuffer(mmap.mmap(file.fileno(), 0), np.float32)
print("ready", flush=True)
while True:
    for value in (np.nan, 1e-3, 1e-3, np.inf, -1e-3, 1e-3, -3e38, 1e-3, 1e-3):
        numbers[:] = value
"""


@pytest.fixture(scope="module")
def changing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tensor]:
    """Numbers that another process changes all the time."""
    path: Path = tmp_path_factory.mktemp("memory") / "numbers"
    path.write_bytes(bytes(4 * SIZE))
    with subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None and writer.stdout.readline() == b"ready\n"
        with path.open("r+b") as file:
            yield torch.frombuffer(mmap.mmap(file.fileno(), 0), dtype=torch.float32)
        writer.kill()


def played(server: fastagg.Server, update: Tensor, least: int, still: bool) -> list[fastagg.Receipt]:
    """Answers until at least so many were counted, and so many were refused. Returns the receipts."""
    receipts: list[fastagg.Receipt] = []
    refused = arrival = 0
    until = time.monotonic() + 60
    while (len(receipts) < least or refused < least) and time.monotonic() < until:
        server.dispatch(arrival % CLIENTS)
        answer = fastagg.Answer(arrival % CLIENTS, update, num_samples=2.0, still=still)
        outcome = server.receive_many([answer])[0]
        if isinstance(outcome, fastagg.Receipt):
            receipts.append(outcome)
        else:
            assert isinstance(outcome, (fastagg.NonFiniteUpdate, fastagg.UpdateTooLarge))
            refused += 1
        arrival += 1
    assert len(receipts) >= least and refused >= least
    return receipts


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("still", [False, True])
@pytest.mark.parametrize("name", PRESETS)
def test_what_a_server_keeps_stays_finite(name: str, still: bool, changing: Tensor) -> None:
    server = PRESETS[name](model(SIZE))
    played(server, changing, 100, still)
    for arrival in range(6 * CLIENTS):  # a spoiled sum, row or moment would reach the model now
        server.dispatch(arrival % CLIENTS)
        server.receive(arrival % CLIENTS, torch.full((SIZE,), SMALL), num_samples=2.0)
    assert torch.isfinite(torch.as_tensor(server.flat)).all()
    server.load_state_dict(server.state_dict())  # refuses numbers that are not finite


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("still", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("buffer_size", [1, 4])
def test_the_model_moves_at_most_as_far_as_the_norms_say(
    buffer_size: int, dtype: torch.dtype, still: bool, changing: Tensor
) -> None:
    changing = changing.view(dtype)[:SIZE]
    server = fastagg.FedBuff(torch.zeros(SIZE), buffer_size=buffer_size, answers_per_step=None)
    norms = sum(receipt.update_norm for receipt in played(server, changing, 1_000, still))
    assert server.flat.abs().max().item() <= norms / buffer_size * (1 + 1e-6)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", PRESETS)
def test_still_changes_no_bit(name: str) -> None:
    changing, still = (PRESETS[name](model(SIZE)) for _ in range(2))
    for client, number in calls(name, 14):
        if number is None:
            changing.dispatch(client), still.dispatch(client)
        else:
            receipt = changing.receive(client, update(number, SIZE), num_samples=2.0)
            assert still.receive(client, update(number, SIZE), num_samples=2.0, still=True) == receipt
    assert same(changing.state_dict(), still.state_dict())
