"""Fused server steps: every optimizer, direction and instruction set against the specification and float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.kernels import BETAS, SIZES, bits, clones, extreme, moments, same_bits, spec_step, vector

import fastagg
from fastagg import ops, reference
from fastagg.errors import ConfigError, DTypeMismatch, ShapeMismatch

pytestmark = pytest.mark.kernel

DIRECTIONS = ("single", "clipped", "flush", "blend")


def direction(kind: str, size: int) -> dict[str, object]:
    return {
        "single": {},
        "clipped": {"gain": 0.37, "weight": 0.5},
        "flush": {"gain": 0.37, "acc": vector(size, 11, 1e-2), "scale": 1 / 3},
        "blend": {"gain": 0.37, "weight": 0.6, "base": vector(size, 12)},
    }[kind]


@pytest.mark.parametrize("kind", DIRECTIONS)
@pytest.mark.parametrize("optimizer", ops.OPTIMIZERS)
def test_step_is_the_specification_to_the_bit(optimizer: str, kind: str, isa: str) -> None:
    for size in SIZES:
        x, update, state = vector(size, 1), vector(size, 2, 1e-2), moments(optimizer, size, 3)
        how = {"lr": 1e-2, **direction(kind, size)}
        expected = spec_step(x, update, optimizer, **how, **state)
        ops.step_(x, update, optimizer=optimizer, **how, **state)
        for name, got in {"x": x, **state}.items():
            assert same_bits(got, expected[name]), f"{name} at size {size}"


@pytest.mark.parametrize("optimizer", ops.OPTIMIZERS)
def test_extreme_magnitudes_are_the_specification_to_the_bit(optimizer: str, isa: str) -> None:
    size = 5000  # denormals, zeros and 1e3 side by side; fast-math or flushing to zero would show here
    x, update = extreme(size, 1), extreme(size, 2)
    state = {n: extreme(size, 3 + i) if n == "m" else extreme(size, 3 + i).abs()
             for i, n in enumerate(ops.OPTIMIZERS[optimizer])}  # fmt: skip
    expected = spec_step(x, update, optimizer, lr=0.1, correction=7, **state)
    ops.step_(x, update, optimizer=optimizer, lr=0.1, correction=7, **state)
    for name, got in {"x": x, **state}.items():
        assert bits(got) == bits(expected[name]), name


@pytest.mark.parametrize("kind", DIRECTIONS)
@pytest.mark.parametrize("optimizer", ops.OPTIMIZERS)
@pytest.mark.parametrize("correction", [None, 1, 20])
def test_step_is_near_the_float64_reference(optimizer: str, kind: str, correction: int | None) -> None:
    size = 3001
    x, update, state = vector(size, 1), vector(size, 2, 1e-2), moments(optimizer, size, 3)
    how = {"lr": 1e-2, "correction": correction, "betas": BETAS, **direction(kind, size)}
    x64, state64 = x.double(), clones(state, torch.float64)
    how64 = {k: v.double() if isinstance(v, torch.Tensor) else v for k, v in how.items()}
    reference.step_(x64, update, optimizer=optimizer, **how64, **state64)
    ops.step_(x, update, optimizer=optimizer, **how, **state)
    torch.testing.assert_close(x.double(), x64, rtol=1e-6, atol=2e-6)
    for name, got in state.items():
        torch.testing.assert_close(got.double(), state64[name], rtol=2e-6, atol=1e-8)


def test_adam_and_amsgrad_are_torch_adam_with_bias_correction() -> None:
    size = 1000
    for optimizer in ("adam", "amsgrad"):
        theirs = torch.nn.Parameter(vector(size, 1).double())
        adam = torch.optim.Adam([theirs], lr=0.01, betas=BETAS, eps=1e-8, amsgrad=optimizer == "amsgrad")
        x, state = vector(size, 1), {n: torch.zeros(size) for n in ops.OPTIMIZERS[optimizer]}
        for r in range(1, 6):
            update = vector(size, 10 + r, 1.0 / r)
            theirs.grad = -update.double()
            adam.step()
            ops.step_(x, update, optimizer=optimizer, lr=0.01, correction=r, betas=BETAS, **state)
        torch.testing.assert_close(x.double(), theirs.detach(), rtol=1e-5, atol=1e-6)


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
def test_writing_beside_the_model_leaves_it_alone(size: int, offset: int) -> None:
    x, update = vector(size, 1), vector(size, 2, 1e-2)
    before, out = x.clone(), torch.empty(size + offset)[offset:]
    assert ops.step_(x, update, optimizer="sgd", lr=0.5, out=out) is out
    assert same_bits(x, before)
    ops.step_(x, update, optimizer="sgd", lr=0.5)
    assert same_bits(out, x)


def test_named_functions_are_step() -> None:
    size = 500
    update = vector(size, 2)
    calls = {
        "sgd": lambda x, s: ops.sgd_(x, update, lr=0.1),
        "momentum": lambda x, s: ops.momentum_(x, update, s["m"], lr=0.1, beta=0.9),
        "adam": lambda x, s: ops.adam_(x, update, s["m"], s["v"], lr=0.1, betas=BETAS, correction=2),
        "amsgrad": lambda x, s: ops.amsgrad_(x, update, s["m"], s["v"], s["vhat"], lr=0.1, betas=BETAS, correction=2),
        "yogi": lambda x, s: ops.yogi_(x, update, s["m"], s["v"], lr=0.1, betas=BETAS, correction=2),
        "adagrad": lambda x, s: ops.adagrad_(x, update, s["m"], s["v"], lr=0.1, beta=0.9),
    }
    assert set(calls) <= set(ops.OPTIMIZERS)
    for name, call in calls.items():
        a, state_a = vector(size, 1), moments(name, size, 3)
        b, state_b = vector(size, 1), moments(name, size, 3)
        call(a, state_a)
        correction = 2 if name in ("adam", "amsgrad", "yogi") else None
        ops.step_(b, update, optimizer=name, lr=0.1, betas=BETAS, correction=correction, **state_b)
        assert same_bits(a, b) and all(same_bits(state_a[k], state_b[k]) for k in state_a), name


def test_thread_count_changes_no_bit(threads: None) -> None:
    size = 1_000_003
    results = []
    for count in (1, 2, 3, 7):
        fastagg.set_num_threads(count)
        x, state = vector(size, 1), moments("amsgrad", size, 3)
        ops.step_(x, vector(size, 2, 1e-2), optimizer="amsgrad", lr=1e-2, acc=vector(size, 4), scale=0.2, **state)
        results.append((x, *state.values()))
    for other in results[1:]:
        assert all(same_bits(a, b) for a, b in zip(results[0], other, strict=True))


def refused(error: type[Exception], **changes: object) -> None:
    """step_ raises and leaves every vector as it was."""
    size = 64
    arguments: dict[str, object] = {
        "x": vector(size, 1), "update": vector(size, 2), "optimizer": "amsgrad", "lr": 0.1,
        **moments("amsgrad", size, 3),
    }  # fmt: skip
    arguments.update(changes)
    before = {k: v.clone() for k, v in arguments.items() if isinstance(v, torch.Tensor)}
    with pytest.raises(error):
        ops.step_(arguments.pop("x"), arguments.pop("update"), **arguments)
    for name, tensor in before.items():
        held = changes.get(name, arguments.get(name))
        if isinstance(held, torch.Tensor):
            assert torch.equal(held, tensor)


def test_bad_arguments_are_refused_and_nothing_is_written() -> None:
    refused(ShapeMismatch, update=vector(63, 2))
    refused(ShapeMismatch, x=vector(64, 1).view(8, 8))
    refused(ShapeMismatch, m=vector(128, 1)[::2])
    refused(DTypeMismatch, m=vector(64, 1).double())
    refused(DTypeMismatch, update=vector(64, 2).double())
    refused(DTypeMismatch, update=torch.arange(64))
    refused(DTypeMismatch, update="an update")
    refused(DTypeMismatch, update=np.zeros(64, dtype=">f4"))
    refused(ConfigError, optimizer="adamw")
    refused(ConfigError, vhat=None)
    refused(ConfigError, optimizer="adam")  # has no vhat
    refused(ConfigError, acc=vector(64, 1), base=vector(64, 1))
    both = vector(80, 1)
    refused(ConfigError, x=both[:64], out=both[16:])
