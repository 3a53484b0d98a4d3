"""Combining updates: the formulas in float64, other packages' own functions, properties of each rule, and refusals."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import reference
from support.kernels import vector
from torch import Tensor

import fastagg
from fastagg import ops
from fastagg.errors import ConfigError, ShapeMismatch

pytestmark = pytest.mark.kernel

# How many updates: in registers, at the end of them, in the L1 cache, with narrow strips.
COUNTS = (1, 2, 3, 4, 5, 7, 8, 10, 13, 16, 17, 25, 50, 64, 65, 130, 300)
RULES: dict[str, dict[str, Any]] = {
    "median": {},
    "trimmed": {"trim": 0.21},
    "mean_around_median": {},
    "krum": {},
    "multi_krum": {},
    "geometric_median": {"iterations": 4, "smoothing": 1e-3},
    "centered_clip": {"iterations": 3, "radius": 20.0},
}


def settings(rule: str, count: int) -> dict[str, Any] | None:
    """The rule's settings for so many updates, a fifth of which lie; None: they are too few."""
    f = max(1, count // 5)
    if rule in ("krum", "multi_krum"):
        return {**RULES[rule], "f": f} if count >= 2 * f + 3 else None
    if rule == "mean_around_median":
        return {**RULES[rule], "f": f} if count > 2 * f else None
    return RULES[rule]


def updates(count: int, size: int, seed: int = 0) -> list[Tensor]:
    """Updates that agree a little; every fifth is far away."""
    common = vector(size, 1000 + seed)
    return [common + vector(size, seed + k) * (30.0 if k % 5 == 4 else 1.0) for k in range(count)]


def near(got: Tensor, want: Tensor, rows: Sequence[Tensor]) -> None:
    scale = max(float(row.abs().max()) for row in rows)
    torch.testing.assert_close(got.double(), want.double(), rtol=1e-6, atol=1e-6 * scale)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("count", COUNTS)
def test_a_rule_is_its_formula(rule: str, count: int, every_isa: Any) -> None:
    if (how := settings(rule, count)) is None:
        pytest.skip("too few updates")
    for size in (1, 41, 1024, 2500):
        rows = updates(count, size)
        weights = [1.0 / (1 + k % 3) for k in range(count)]
        want = reference.combine(rows, rule, weights=weights, **how)
        for _ in every_isa():
            near(ops.combine(rows, rule, weights=weights, **how), want, rows)  # type: ignore[arg-type]


@pytest.mark.parametrize("rule", ["geometric_median", "centered_clip"])
@given(
    count=st.integers(7, 30),
    liars=st.lists(st.floats(0.0, 36.0), min_size=1, max_size=3),
    seed=st.integers(0, 99),
    common=st.sampled_from([0.0, 1.0, 1e4]),
)
def test_a_liar_counts_for_its_formula_however_far_it_is(
    rule: str, count: int, liars: list[float], seed: int, common: float
) -> None:
    honest = [vector(40, 1000 + seed, common) + vector(40, seed + k) for k in range(count)]
    rows = honest + [vector(40, 500 + k, 10.0**exponent) for k, exponent in enumerate(liars)]
    want = reference.combine(rows, rule, **RULES[rule])
    torch.testing.assert_close(
        ops.combine(rows, rule, **RULES[rule]).double(), want, rtol=1e-5, atol=1e-5 * (1.0 + common)
    )


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), -float("inf")])
def test_what_is_not_finite_is_refused_and_nothing_is_written(rule: str, wrong: float) -> None:
    rows, out = updates(9, 3000), torch.zeros(3000)
    rows[4][2999] = wrong
    with pytest.raises(fastagg.NonFiniteUpdate, match="update 4"):
        ops.combine(rows, rule, out=out)  # type: ignore[arg-type]
    with pytest.raises(fastagg.NonFiniteUpdate, match="update 4"):
        ops.combine([row.bfloat16() for row in rows], rule, out=out)  # type: ignore[arg-type]
    rows[4][2999] = 3e38
    with pytest.raises(fastagg.UpdateTooLarge, match="update 4"):
        ops.combine(rows, rule, weights=[-2.0] * 9, out=out)  # type: ignore[arg-type]
    assert not out.any()
    assert ops.combine(rows, rule).isfinite().all()  # type: ignore[arg-type]


def test_updates_that_are_nearly_the_same_keep_their_distances() -> None:
    """Where products of whole updates cancel, differences are added up."""
    far = vector(5000, 1, 1e4)
    rows = [far + vector(5000, 2 + k, 1e-2 * (1 + k)) for k in range(7)]
    assert torch.equal(ops.combine(rows, "krum", f=1), reference.combine(rows, "krum", f=1).float())
    near(ops.combine(rows, "multi_krum", f=1), reference.combine(rows, "multi_krum", f=1), rows)


def test_equals_flower() -> None:
    aggregate = pytest.importorskip("flwr.server.strategy.aggregate")
    for count in (7, 10, 20):
        rows = updates(count, 3000)
        theirs: Any = [([row.numpy()], 10) for row in rows]
        f = (count - 3) // 2
        for name, how, want in (
            ("median", {}, aggregate.aggregate_median(theirs)),
            ("trimmed", {"trim": 0.2}, aggregate.aggregate_trimmed_avg(theirs, 0.2)),
            ("krum", {"f": f}, aggregate.aggregate_krum(theirs, f, 0)),
            ("multi_krum", {"f": f, "keep": 3}, aggregate.aggregate_krum(theirs, f, 3)),
        ):
            near(ops.combine(rows, name, **how), torch.from_numpy(np.asarray(want[0])), rows)  # type: ignore[arg-type]


def test_equals_byzfl() -> None:
    """Its Krum counts one neighbour more, so its f is one more."""
    byzfl = pytest.importorskip("byzfl")
    for count in (8, 11, 20):
        rows, f = updates(count, 3000), (count - 4) // 2
        stacked = np.stack([row.numpy() for row in rows]).astype(np.float64)
        for name, how, theirs in (
            ("median", {}, byzfl.Median()),
            ("trimmed", {"trim": (f + 0.5) / count}, byzfl.TrMean(f)),
            ("mean_around_median", {"f": f}, byzfl.Meamed(f)),
            ("krum", {"f": f}, byzfl.Krum(f + 1)),
            ("multi_krum", {"f": f, "keep": count - f - 1}, byzfl.MultiKrum(f + 1)),
            ("geometric_median", {"smoothing": 0.1, "iterations": 3}, byzfl.GeometricMedian()),
            ("centered_clip", {"radius": 50.0, "iterations": 2}, byzfl.CenteredClipping(None, 2, 50.0)),
        ):
            near(ops.combine(rows, name, **how), torch.from_numpy(theirs(stacked)), rows)  # type: ignore[arg-type]


def test_updates_of_two_sizes_are_refused_before_anything_is_written() -> None:
    out = torch.zeros(5)
    with pytest.raises(ShapeMismatch, match="update 1 has 6 elements"):
        ops.combine([vector(5, 1), vector(6, 2)], "median", out=out)
    with pytest.raises(ShapeMismatch, match="2 updates and 1 weights"):
        ops.combine([vector(5, 1), vector(5, 2)], "median", weights=[1.0], out=out)
    row = vector(5, 1)
    with pytest.raises(ConfigError, match="out overlaps"):
        ops.combine([row, row], "median", out=row)
    assert torch.equal(out, torch.zeros(5))
