"""A model in bf16: every version is the one that a server in fp32 makes of the one before, rounded without bias."""

from __future__ import annotations

import math

import pytest
import torch
from support.presets import PRESETS, calls, model, tensors, update
from support.reference import rows
from torch import Tensor

import fastagg
from fastagg.errors import ConfigError
from fastagg.server import together

pytestmark = pytest.mark.kernel

SEED, SIZE = 2**40 + 7, 3000  # whole blocks and a part of one
VERSIONS, LOOK_AHEADS = 2**32 - 3, 2**32 - 4  # whose rounding a key is of
COMPARES = ("FedAsync", "AsyncFedED", "FedAC")
KEPT = [name for name in PRESETS if not name.startswith(COMPARES) and "bf16" not in name.split(", ")[-1]]


def rounded(x: Tensor, number: int, client: int, seed: int = SEED) -> Tensor:
    bits = rows.random_bits(seed, number, client, x.numel())
    return rows.decode(*rows.encode(x, bits, "bf16"), "bf16", x.numel()).bfloat16()


def in_fp32(server: fastagg.Server, other: fastagg.Server) -> fastagg.Server:
    """``other``, an fp32 server, with the state of one in bf16."""
    state = server.state_dict()
    other.load_state_dict({**state, "flat": state["flat"].float(), "config": {**state["config"], "model_dtype": None}})
    return other


@pytest.mark.parametrize("name", KEPT)
def test_every_version_is_the_fp32_servers_rounded(name: str) -> None:
    make = lambda **how: PRESETS[name](model(SIZE), seed=SEED, **how)  # noqa: E731
    server, other = make(model_dtype="bf16"), make()
    assert torch.equal(server.flat, model(SIZE).bfloat16()) and server.flat.dtype is torch.bfloat16
    for call in calls(name, 12):
        plain, steps, version = in_fp32(server, other), server.steps, server.version
        if call.number is None:
            sent, its = server.dispatch(call.client).flat, plain.dispatch(call.client).flat
            ahead = name.startswith("HeLoCo")
            assert torch.equal(sent, rounded(its, version, LOOK_AHEADS) if ahead else server.flat)
            continue
        given = update(call.number, SIZE)
        receipts = [one.receive(call.client, given, num_samples=3 + call.number % 4) for one in (server, plain)]
        assert receipts[0] == receipts[1]
        assert torch.equal(server.flat, rounded(plain.flat, steps, VERSIONS))
        held, its = tensors(server), tensors(plain)
        assert held.keys() == its.keys() and all(torch.equal(held[key], its[key]) for key in held if key != "flat")
    assert server.steps > 2


def test_steps_far_smaller_than_a_unit_count_on_average() -> None:
    """From 1 on neighbours are 2^-7 apart. Rounded to the nearest, the model would never move."""
    size, steps, step = 4096, 256, 2.0**-12
    for seed in range(3):
        server = fastagg.ASGD(torch.ones(size), lr=step, seed=seed, model_dtype="bf16")
        for _ in range(steps):
            server.dispatch(0)
            server.receive(0, -torch.ones(size))
        share, apart = step * 2**7, 2.0**-7
        error = apart * math.sqrt(steps * share * (1 - share) / size)
        assert abs(float(server.flat.double().mean()) - (1 + steps * step)) < 5 * error


def test_what_is_held_and_sent_is_half_as_large() -> None:
    size = 1_000_000
    server = fastagg.DiLoCo({"a": torch.zeros(size)}, clients_per_round=1, weighting="uniform", model_dtype="bf16")
    task = server.dispatch(0)
    server.receive(0, {"a": torch.ones(size)})
    held, sent = server.flat, server.dispatch(1, format="bf16")
    found = server.memory()
    assert (found["model"], found["moments"]) == (2 * size, 4 * size) and task.flat.nbytes == held.nbytes == 2 * size
    assert sent.flat.data_ptr() == held.data_ptr() and torch.equal(sent.encoded.decode(), held.float())
    server.receive(1, torch.ones(size))
    assert server.memory()["versions"] == 4 * size  # task's, and the one that is held and was sent
    assert task.params["a"].dtype is server.parameters()["a"].dtype is torch.float32
    assert fastagg.FedBuff(torch.zeros(9).bfloat16(), model_dtype="bf16").parameters().dtype is torch.bfloat16


def test_a_device_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(together, "on_cuda", lambda device: True)
    with pytest.raises(ConfigError, match="model_dtype: only one on the CPU"):
        fastagg.FedBuff(torch.zeros(3), model_dtype="bf16")
