"""The same bits on every processor: runs of all presets against committed hashes, whatever the loops and the threads.

What enters from outside IEEE arithmetic is the host's `pow`, in FedAsync's polynomial and in Adam's bias correction: it
is rounded to fp32 before it meets a vector, which hides the last bits in which libraries differ.

After a change that is meant to change bits: `python tests/test_same_bits.py --write`, and say so in the commit.
"""

import json
import sys
from collections.abc import Callable, Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pytest
import torch
from support.presets import PRESETS, Call, calls, model, tensors, update

import fastagg

pytestmark = pytest.mark.kernel

HASHES = Path(__file__).with_name("hashes.json")
ARRIVALS = {3000: 36, 70_001: 15}

# The ends of what the tuning table may hold (csrc/cpu/tuning.h), a number of threads with each.
EXTREMES: dict[str, tuple[dict[str, int], int]] = {
    "nothing clever": (
        {"prefetch": 0, "cache": 0, "width": 128, "wide_below": 0, "spin": 0, "group": 4096, "places": 1}, 2
    ),
    "everything": (
        {"prefetch": 512, "cache": 1, "width": 512, "wide_below": 0, "spin": 100, "group": 65536, "places": 32}, 5
    ),
    "between": (
        {"prefetch": 64, "cache": 10 * 70_001, "width": 256, "wide_below": 0, "spin": 5, "group": 5120, "places": 2}, 1
    ),
    "far ahead, widest": (
        {"prefetch": 1 << 20, "cache": 1, "width": 128, "wide_below": 1 << 40, "spin": 0, "group": 4096,
         "places": 4}, 2
    ),
}  # fmt: skip


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Keeps torch's own threads idle, which copies of 70,001 elements would wake."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def played(name: str, size: int) -> fastagg.Server:
    server = PRESETS[name](model(size), seed=2**40 + 7)
    for call in calls(name, ARRIVALS[size]):
        play(server, call, size)
    return server


def play(server: fastagg.Server, call: Call, size: int) -> None:
    if call.number is None:
        server.dispatch(call.client)
        return
    control: dict[str, Any] = {}
    if server.direction.takes_control and call.number % 2:
        control = {"control": update(call.number + 100, size).float()}
    server.receive(call.client, update(call.number, size), num_samples=3 + call.number % 4, **control)


def hash_of(held: dict[str, torch.Tensor]) -> str:
    found = blake2b(digest_size=16)
    for name, tensor in held.items():
        found.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        found.update(tensor.contiguous().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def hashes() -> dict[str, dict[str, str]]:
    """preset -> size -> hash, of all that run here."""
    return {name: {str(size): hash_of(tensors(played(name, size))) for size in ARRIVALS} for name in PRESETS}


def assert_committed() -> None:
    committed = json.loads(HASHES.read_text())
    assert committed.keys() == PRESETS.keys()
    assert hashes() == committed


def test_every_preset_has_the_committed_bits() -> None:
    assert_committed()


@pytest.mark.parametrize("extreme", EXTREMES)
def test_neither_loops_nor_threads_nor_instruction_sets_change_a_bit(
    extreme: str, every_isa: Callable[[], Iterator[str]], threads: None, tuning: Callable[..., None]
) -> None:
    settings, count = EXTREMES[extreme]
    tuning(**settings)
    fastagg.set_num_threads(count)
    sets = [*every_isa()]
    fastagg.set_isa(sets[[*EXTREMES].index(extreme) % len(sets)])
    assert_committed()


def test_the_runs_move() -> None:
    """A run whose model did not change, or that had no delays, would prove nothing."""
    for name in PRESETS:
        server = played(name, 3000)
        assert server.steps >= ARRIVALS[3000] // 4, name
        assert torch.isfinite(server.flat).all()
        assert (server.flat != model(3000)).float().mean() > 0.9, name


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit("usage: python tests/test_same_bits.py --write")
    HASHES.write_text(json.dumps(hashes(), indent=1) + "\n")
