"""BatchNorm's statistics and counters of clients: what a model could not bear is refused by name."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fastagg.errors import ConfigError, DTypeMismatch, FastaggError, NonFiniteUpdate
from fastagg.model import Layout

SHAPES = {"a.running_mean": 3, "a.running_var": 3, "b.running_var": 2, "c.running_mean": 1}


def model(dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    return {"w": torch.zeros(2), **{name: torch.ones(size, dtype=dtype) for name, size in SHAPES.items()}}


def raised(layout: Layout, update: Any) -> type[FastaggError] | None:
    try:
        layout.parse(update)
    except FastaggError as error:
        return type(error)
    return None


values = st.floats(width=32, allow_nan=False, allow_infinity=False) | st.sampled_from([0.0, -0.0, math.nan, math.inf])


@given(
    numbers=st.lists(values, min_size=9, max_size=9),
    own=st.sampled_from([torch.float32, torch.float16, torch.float64, torch.bfloat16]),
)
def test_what_is_taken_has_a_mean_that_the_model_can_hold(numbers: list[float], own: torch.dtype) -> None:
    layout = Layout.of(model(own))
    cut = torch.tensor(numbers).split(list(SHAPES.values()))
    update = {"w": torch.zeros(2), **dict(zip(SHAPES, cut, strict=True))}
    together = torch.cat(cut).double()
    variances = torch.cat([update["a.running_var"], update["b.running_var"]])
    bearable = bool((together.abs() <= min(2.0**107, torch.finfo(own).max)).all())  # as the next test says
    got = raised(layout, update)
    if not bearable:
        assert got is NonFiniteUpdate
    else:
        assert got is (ConfigError if bool((variances < 0).any()) else None)


def test_the_limit_bears_a_million_clients() -> None:
    """The largest value that is taken, summed as the server does: in fp32, one client after the other."""
    layout = Layout.of({"w": torch.zeros(1), "a.running_mean": torch.ones(1)})
    largest = torch.tensor([2.0**107])
    layout.parse({"w": torch.zeros(1), "a.running_mean": largest})
    beyond = torch.nextafter(largest, torch.tensor(math.inf))
    with pytest.raises(NonFiniteUpdate, match=r"'a.running_mean'.*whose mean over many clients is finite"):
        layout.parse({"w": torch.zeros(1), "a.running_mean": beyond})
    for value in (largest, torch.nextafter(largest, torch.zeros(1))):
        total = np.cumsum(value.expand(2**20).numpy())[-1]
        assert total.dtype == np.float32 and np.isfinite(total)


def test_every_array_is_named() -> None:
    layout = Layout.of(model())
    for name in SHAPES:
        for value, kind in ((math.nan, NonFiniteUpdate), (-1e34, NonFiniteUpdate), (-1.0, ConfigError)):
            update = {key: array.clone() for key, array in model().items()}
            update[name][-1] = value
            if kind is ConfigError and "mean" in name:
                layout.parse(update)
                continue
            with pytest.raises(kind, match=f"trained model.*{name}"):
                layout.parse(update, "trained model")


INTEGERS = [torch.int64, torch.int32, torch.int8, torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.bool]


@pytest.mark.parametrize("own", INTEGERS)
@pytest.mark.parametrize("theirs", INTEGERS)
@pytest.mark.parametrize("name", ["bn.num_batches_tracked", "index"])
@pytest.mark.parametrize("shape", [(), (2,)])
def test_counters_fit_the_models_own_type(own: torch.dtype, theirs: torch.dtype, name: str, shape: Any) -> None:
    layout = Layout.of({"w": torch.zeros(1), name: torch.zeros(shape).to(own)}, buffers={"index": "max"})

    def span(dtype: torch.dtype) -> tuple[int, int]:
        return (0, 1) if dtype is torch.bool else (torch.iinfo(dtype).min, torch.iinfo(dtype).max)

    for number in {*span(theirs), 0, 1}:
        counter = torch.zeros(shape, dtype=torch.int64).to(theirs)
        counter.reshape(-1)[-1:] = torch.tensor([number], dtype=theirs)
        fits = span(own)[0] <= number <= span(own)[1]
        got = raised(layout, {"w": torch.zeros(1), name: counter})
        if "tracked" in name and number < 0:
            assert got is ConfigError
        else:
            assert got is (None if fits else DTypeMismatch), (number, got)


def test_empty_buffers_and_counters_hold_nothing_wrong() -> None:
    empty = {"w": torch.zeros(1), "a.running_var": torch.zeros(0), "n": torch.zeros(0, dtype=torch.int64)}
    layout = Layout.of(empty)
    layout.parse({**empty, "n": torch.zeros(0, dtype=torch.uint8)})
