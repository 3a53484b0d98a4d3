"""Moments in 8 bits: their codes, what rounding may do to them, and the fused step to the bit."""

from typing import Any

import pytest
import torch
from support.kernels import DECAYS, extreme, same_bits, spec_step, vector
from support.reference import moments as codec

import fastagg
from fastagg import ops
from fastagg._build import native
from fastagg.rules import moments

pytestmark = pytest.mark.kernel

ADAPTIVE = [name for name in ops.OPTIMIZERS if name not in native.plain_optimizers]
SIZES = (1, 3, 64, 255, 256, 257, 700, 1023, 1024, 1025, 2500, 66_000)


def decoded(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """What the codes stand for, padding included."""
    return {
        name: codec.decode(code, state["units"][int(name != "m")], name == "m")
        for name, code in state.items() if name != "units"
    }  # fmt: skip


def padded(tensor: torch.Tensor, whole: int) -> torch.Tensor:
    return torch.cat([tensor, torch.zeros(whole - tensor.numel())])


def spec(x: torch.Tensor, update: torch.Tensor, optimizer: str, state: dict[str, torch.Tensor], **how: Any) -> Any:
    """The step operation by operation: decode, the fp32 specification, encode."""
    rounding, whole = how.pop("rounding"), state["m"].numel()
    how = {key: padded(value, whole) if isinstance(value, torch.Tensor) else value for key, value in how.items()}
    found = spec_step(padded(x, whole), padded(update, whole), optimizer, **how, **decoded(state))
    bits = codec.random_bits(*rounding, whole)
    units = [codec.units_of(found["m"].clamp(-codec.LARGEST, codec.LARGEST), 15)]
    if "v" in state:
        units.append(codec.units_of(found["vhat" if "vhat" in state else "v"].clamp_max(codec.LARGEST), 31))
    codes = {
        name: codec.encode(found[name], units[int(name != "m")], bits["m" if name == "m" else "v"], name == "m")
        for name in state if name != "units"
    }  # fmt: skip
    return {"x": found["x"][: x.numel()], "units": torch.stack(units), **codes}


def direction(kind: str, size: int) -> dict[str, Any]:
    return {
        "single": {},
        "flush": {"gain": 0.37, "acc": vector(size, 11, 1e-2), "scale": 1 / 3},
        "blend": {"gain": 0.37, "weight": 0.6, "base": vector(size, 12)},
    }[kind]


def to_the_bit(
    optimizer: str, start: torch.Tensor, steps: list[tuple[torch.Tensor, dict[str, Any]]], isas: Any
) -> None:
    """Steps of the specification, once, and of every instruction set."""
    size, expected = start.numel(), [{"x": start, **moments.zeros(optimizer, "8bit", start.numel())}]
    for update, how in steps:
        state = dict(expected[-1])
        expected.append(spec(state.pop("x"), update, optimizer, state, **how))
    for isa in isas():
        x, state = start.clone(), moments.zeros(optimizer, "8bit", size)
        for number, (update, how) in enumerate(steps):
            ops.step_(x, update, optimizer=optimizer, **how, **state)
            want = expected[number + 1]
            assert same_bits(x, want["x"]), f"{isa}, size {size}, step {number}"
            for name, held in state.items():
                assert torch.equal(held, want[name]), f"{isa}, {name}, size {size}, step {number}"


@pytest.mark.parametrize("kind", ["single", "flush", "blend"])
@pytest.mark.parametrize("optimizer", ADAPTIVE)
def test_step_is_the_specification_to_the_bit(optimizer: str, kind: str, every_isa: Any) -> None:
    for size in SIZES if kind == "single" else SIZES[3:-1]:
        steps = []
        for step in range(4):
            # Magnitudes that come and go, so that units move both ways.
            update = vector(size, 2 + step, 10.0 ** (-2 - 3 * (step % 2)))
            how = {"lr": 1e-2, "rounding": (2**40 + 3, 2**33 + step), "correction": step or None, **DECAYS[step]}
            steps.append((update, {**how, **direction(kind, size)}))
        to_the_bit(optimizer, vector(size, 1), steps, every_isa)


@pytest.mark.parametrize("optimizer", ADAPTIVE)
def test_extreme_magnitudes_are_the_specification_to_the_bit(optimizer: str, every_isa: Any) -> None:
    steps = [(extreme(3000, 2 + step), {"lr": 0.1, "eps": 1e-8, "rounding": (1, step)}) for step in range(5)]
    to_the_bit(optimizer, extreme(3000, 1), steps, every_isa)


@pytest.mark.parametrize("first", [1e-6, 0.1, 2.0**-149, 1e30])
@pytest.mark.parametrize("optimizer", ["adam", "amsgrad", "yogi", "lookahead", "adagrad"])
def test_second_moments_start_at_their_nearest_code(optimizer: str, first: float) -> None:
    kinds = {"adam": fastagg.Adam, "amsgrad": fastagg.AMSGrad, "yogi": fastagg.Yogi, "lookahead": fastagg.Lookahead,
             "adagrad": fastagg.Adagrad}  # fmt: skip
    held, plain = (
        fastagg.Server(torch.zeros(700), optimizer=kinds[optimizer](initial=first, moments=format)).state_dict()
        for format in ("8bit", "fp32")
    )
    codes = decoded(held["moments"])
    for name in plain["moments"].keys() - {"m"}:
        assert torch.equal(plain["moments"][name], torch.full((700,), first))
        value = torch.full((768,), torch.tensor(first))
        bits = torch.full((768,), 1 << 19)
        assert torch.equal(held["moments"][name], codec.encode(value, codec.units_of(value, 31), bits, False))
        if first > 1e-20:
            torch.testing.assert_close(codes[name], value, rtol=1 / 16, atol=0)
    assert not codes["m"].any() and not plain["moments"]["m"].any()


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["momentum", "adam"])
def test_rounding_is_unbiased(optimizer: str) -> None:
    """With decay rates of zero m is the update and v its square."""
    size, rounds = 2048, 600
    update = vector(size, 5)
    exact = {"m": update.double(), "v": (update * update).double()}
    totals = {name: torch.zeros(size, dtype=torch.float64) for name in ops.OPTIMIZERS[optimizer]}
    for step in range(rounds):
        state = moments.zeros(optimizer, "8bit", size)
        ops.step_(torch.zeros(size), update, optimizer=optimizer, lr=1.0, betas=(0.0, 0.0), rounding=(9, step), **state)
        for name, values in decoded(state).items():
            totals[name] += values.double() - exact[name]
    for name, total in totals.items():
        c = state["units"][int(name != "m")].double().repeat_interleave(256)
        above = exact[name].abs() + c
        grid = torch.exp2(torch.floor(torch.log2(above)) - 3)
        up = (above / grid) % 1.0
        deviation = grid * (up * (1 - up) * rounds).sqrt()
        stored_as_least = exact[name].abs() < c / 8
        checked = ~stored_as_least if name == "v" else torch.ones(size, dtype=torch.bool)
        assert (total.abs() <= 5.5 * deviation + 10 * grid)[checked].all()  # Bernstein's bound, at 1e-7 an element
        scores = (total / deviation)[checked & (up > 0.05) & (up < 0.95)]
        assert len(scores) > size / 2
        assert abs(float(scores.mean())) < 5 / len(scores) ** 0.5 and 0.9 < float(scores.std()) < 1.1


def trajectory(format: str, steps: int, size: int = 4096, spread: float = 2.0) -> tuple[dict[str, Any], torch.Tensor]:
    """AMSGrad along noise whose scale differs by `spread` decades within every block."""
    scale = 10.0 ** (-spread * torch.rand(size, generator=torch.Generator().manual_seed(1)))
    state, x = moments.zeros("amsgrad", format, size), torch.zeros(size)
    generator = torch.Generator().manual_seed(2)
    for step in range(steps):
        update = scale * (torch.randn(size, generator=generator) + 0.2)
        ops.step_(x, update, optimizer="amsgrad", lr=1e-3, rounding=(3, step), **state)
    return (decoded(state) if format == "8bit" else state), x


def test_moments_follow_fp32_without_bias_for_a_thousand_steps() -> None:
    """v moves by a hundredth a step, a tenth of a code: rounding to nearest would never move it."""
    coded, x8 = trajectory("8bit", 1000)
    plain, x32 = trajectory("fp32", 1000)
    for name, tolerance in (("m", 0.05), ("v", 0.02)):
        ratio = coded[name].double().abs() / plain[name].double().abs().clamp_min(1e-30)
        if name == "v":
            # Rounding noise of a fifth in each, independent: their mean is that of fp32.
            assert abs(float(ratio.mean()) - 1) < tolerance
            assert 0.1 < float(ratio.std()) < 0.3
        else:
            error = (coded["m"] - plain["m"]).double() / plain["v"].double().sqrt()
            assert abs(float(error.mean())) < 5 * float(error.std()) / len(error) ** 0.5
    # The maximum of a noisier v is larger: by a quarter at most, an eighth of a step.
    ratchet = coded["vhat"].double() / plain["vhat"].double()
    assert 1.0 < float(ratchet.mean()) < 1.3
    assert 0.85 < float((x8 / x32).median()) < 1.0


def test_vhat_does_not_creep_once_nothing_exceeds_it() -> None:
    state, x = moments.zeros("amsgrad", "8bit", 2000), torch.zeros(2000)
    for step, first in enumerate((vector(2000, 1), torch.zeros(2000))):  # rounding the largest may have moved its unit
        ops.step_(x, first, optimizer="amsgrad", lr=0.1, rounding=(0, step), **state)
    before, units = state["vhat"].clone(), state["units"][1].clone()
    for step in range(2, 1000):
        ops.step_(x, vector(2000, step, 1e-3), optimizer="amsgrad", lr=0.1, rounding=(0, step), **state)
    # v can exceed vhat only where the largest later square, 2.5e-5, does.
    still = codec.decode(before, state["units"][1], False) > 1e-4
    assert torch.equal(state["units"][1], units)
    unpacked = [codes.view(-1, 64, 4).transpose(1, 2).reshape(-1) for codes in (state["vhat"], before)]
    assert int(still.sum()) > 1500
    assert torch.equal(unpacked[0][still], unpacked[1][still])


@pytest.mark.parametrize("optimizer", ["adam", "amsgrad", "yogi"])
def test_no_step_explodes_where_scales_differ_by_a_billion(optimizer: str) -> None:
    """The zero-point problem: a v rounded to zero beside an m that is not."""
    size = 1024
    scale = 10.0 ** (-9 * torch.rand(size, generator=torch.Generator().manual_seed(1)))
    x, state = torch.zeros(size), moments.zeros(optimizer, "8bit", size)
    for step in range(300):
        before = x.clone()
        ops.step_(x, scale * vector(size, step), optimizer=optimizer, lr=1.0, eps=1e-30, rounding=(1, step), **state)
        # In exact arithmetic |m| <= 2.35 sqrt(v) for these decay rates; yogi's v may lag by more.
        if step > 20:
            assert float((x - before).abs().max()) < (5.0 if optimizer != "yogi" else 12.0)


def test_memory_is_a_quarter() -> None:
    size, server = 10_000, fastagg.FADAS(torch.zeros(10_000), buffer_size=3, moments="8bit")
    assert server.memory()["moments"] <= 3 * size * (1 + 4 / 256) * 1.03
