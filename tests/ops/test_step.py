"""Fused server steps: every optimizer, direction and instruction set against the specification, torch and optax."""

import itertools
from typing import Any

import pytest
import torch
from support.kernels import DECAYS, SIZES, extreme, moments, same_bits, spec_step, vector

import fastagg
from fastagg import ops

pytestmark = pytest.mark.kernel

DIRECTIONS = ("single", "clipped", "flush", "blend")


def direction(kind: str, size: int) -> dict[str, object]:
    return {
        "single": {},
        "clipped": {"gain": 0.37, "weight": 0.5},
        "flush": {"gain": 0.37, "acc": vector(size, 11, 1e-2), "scale": 1 / 3},
        "blend": {"gain": 0.37, "weight": 0.6, "base": vector(size, 12)},
    }[kind]


def to_the_bit(optimizer: str, x: torch.Tensor, update: torch.Tensor, isas: Any, how: Any, state: Any) -> None:
    """A step of the specification, once, and of every instruction set."""
    expected = spec_step(x, update, optimizer, **how, **state)
    for isa in isas():
        found = {name: value.clone() for name, value in {"x": x, **state}.items()}
        ops.step_(update=update, optimizer=optimizer, **how, **found)
        for name, got in found.items():
            assert same_bits(got, expected[name]), f"{isa}: {name} at size {x.numel()}"


@pytest.mark.parametrize("kind", DIRECTIONS)
@pytest.mark.parametrize("optimizer", ops.OPTIMIZERS)
def test_step_is_the_specification_to_the_bit(optimizer: str, kind: str, every_isa: Any) -> None:
    for i, (size, has_decay) in enumerate(itertools.product(SIZES, (False, True))):
        decay = DECAYS[i // 2 % 4] if has_decay else {}
        how = {"lr": 1e-2, "correction": (None, 1, 20)[i % 3], **direction(kind, size), **decay}
        to_the_bit(optimizer, vector(size, 1), vector(size, 2, 1e-2), every_isa, how, moments(optimizer, size, 3))


@pytest.mark.parametrize("optimizer", ops.OPTIMIZERS)
def test_extreme_magnitudes_are_the_specification_to_the_bit(optimizer: str, every_isa: Any) -> None:
    size = 5000  # denormals, zeros and 1e3 side by side; fast-math or flushing to zero would show here
    state = {n: extreme(size, 3 + i) if n == "m" else extreme(size, 3 + i).abs()
             for i, n in enumerate(ops.OPTIMIZERS[optimizer])}  # fmt: skip
    to_the_bit(optimizer, extreme(size, 1), extreme(size, 2), every_isa, {"lr": 0.1, "correction": 7}, state)


# What users of torch write, and the same here.
FROM_TORCH: dict[str, tuple[Any, fastagg.Optimizer]] = {
    "SGD": (lambda p: torch.optim.SGD(p, 0.1, weight_decay=0.3), fastagg.SGD(0.1, weight_decay=0.3)),
    "SGD, momentum": (
        lambda p: torch.optim.SGD(p, 0.1, momentum=0.8, weight_decay=0.3), fastagg.Momentum(0.1, 0.8, weight_decay=0.3)
    ),
    "SGD, Nesterov": (
        lambda p: torch.optim.SGD(p, 0.1, momentum=0.8, nesterov=True, weight_decay=0.3),
        fastagg.Nesterov(0.1, 0.8, weight_decay=0.3),
    ),
    "SGD, Nesterov, delayed by nothing": (
        lambda p: torch.optim.SGD(p, 0.1, momentum=0.8, nesterov=True), fastagg.DelayedNesterov(0.1, 0.8, 1)
    ),
    "Adam": (
        lambda p: torch.optim.Adam(p, 0.01, weight_decay=0.3),
        fastagg.Adam(0.01, (0.9, 0.999), bias_correction=True, weight_decay=0.3),
    ),
    "AdamW": (
        lambda p: torch.optim.AdamW(p, 0.01, weight_decay=0.3),
        fastagg.Adam(0.01, (0.9, 0.999), bias_correction=True, weight_decay=0.3, decoupled_weight_decay=True),
    ),
    "AdamW, AMSGrad": (
        lambda p: torch.optim.AdamW(p, 0.01, amsgrad=True, weight_decay=0.3),
        fastagg.AMSGrad(0.01, (0.9, 0.999), bias_correction=True, weight_decay=0.3, decoupled_weight_decay=True),
    ),
    "Adagrad": (
        lambda p: torch.optim.Adagrad(p, 0.01, weight_decay=0.3, initial_accumulator_value=0.2),
        fastagg.Adagrad(0.01, eps=1e-10, weight_decay=0.3, initial=0.2),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FROM_TORCH)
def test_servers_step_as_torch_optim(name: str) -> None:
    make, ours = FROM_TORCH[name]
    size = 1000
    theirs = torch.nn.Parameter(vector(size, 1).double())
    steps, server = make([theirs]), fastagg.Server(vector(size, 1), optimizer=ours)
    for r in range(1, 7):
        update = vector(size, 10 + r, 1.0 / r)
        theirs.grad = -update.double()
        steps.step()
        server.dispatch(0)
        server.receive(0, update)
    torch.testing.assert_close(server.flat.double(), theirs.detach(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", DIRECTIONS)
def test_a_period_is_the_specification_to_the_bit(kind: str, isa: str) -> None:
    size = 3001
    x, state = vector(size, 1), moments("delayed", size, 3)
    for number in range(1, 8):
        update = vector(size, 10 + number, 1e-2)
        how = {"lr": 0.1, "betas": (0.9, 0.0), "period": 3, "correction": number, **direction(kind, size)}
        expected = spec_step(x, update, "delayed", **how, **state)
        ops.step_(x, update, optimizer="delayed", **how, **state)
        for name, got in {"x": x, **state}.items():
            assert same_bits(got, expected[name]), f"{name} at step {number}"
    assert not torch.equal(state["v"], torch.zeros(size))  # in the middle of a period


@pytest.mark.parametrize("offset", [0, 1, 4, 7, 16])
def test_misaligned_vectors(offset: int, isa: str) -> None:
    size = 70_000
    x, update = vector(size, 1, offset=offset), vector(size, 2, 1e-2, offset=3 - offset % 3)
    state = moments("amsgrad", size, 3, offset=offset)
    expected = spec_step(x, update, "amsgrad", lr=1e-2, **state)
    ops.step_(x, update, optimizer="amsgrad", lr=1e-2, **state)
    assert all(same_bits(got, expected[name]) for name, got in {"x": x, **state}.items())


@pytest.mark.parametrize("size", [1000, 1 << 20, (1 << 20) + 17])  # below and above the streaming threshold
@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize("optimizer", ["sgd", "adam in 8 bits"])
def test_writing_beside_the_model_leaves_it_alone(optimizer: str, size: int, offset: int) -> None:
    x, update = vector(size, 1), vector(size, 2, 1e-2)
    before, out = x.clone(), torch.empty(size + offset)[offset:]
    kind, _, coded = optimizer.partition(" ")
    aside, inside = (fastagg.rules.moments.zeros(kind, "8bit", size) if coded else {} for _ in range(2))
    assert ops.step_(x, update, optimizer=kind, lr=0.5, out=out, **aside) is out
    assert same_bits(x, before)
    ops.step_(x, update, optimizer=kind, lr=0.5, **inside)
    assert same_bits(out, x) and all(torch.equal(aside[name], inside[name]) for name in aside)
