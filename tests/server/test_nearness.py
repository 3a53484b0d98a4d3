"""Models that were sent where updates belong are noticed; updates are not taken for models."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.models import Residual

from fastagg.model import Layout
from fastagg.server.admission import nearer_to_model
from fastagg.storage.pieces import Pieces, as_pieces


def near(update: torch.Tensor, model: torch.Tensor) -> bool:
    """The definition, on all elements."""
    update, model = update.double(), model.double()
    return bool((update - model).norm() < 0.1 * update.norm())


@given(
    cuts=st.lists(st.integers(0, 30), max_size=6),
    scale=st.sampled_from([0.0, 0.05, 0.09, 0.11, 0.3, 1.0, 3.0]),
    dtype=st.sampled_from([torch.float32, torch.float16, torch.bfloat16]),
    length=st.sampled_from([0.0, 1e-3, 1.0]),
)
def test_small_models_are_looked_at_whole(cuts: list[int], scale: float, dtype: torch.dtype, length: float) -> None:
    g = torch.Generator().manual_seed(sum(cuts))
    model = torch.sign(torch.randn(180, generator=g)) * length  # every sample of it is as far away as the whole is
    update = (model + scale * length * torch.sign(torch.randn(180, generator=g))).to(dtype)
    ends = sorted({0, 180, *np.cumsum(cuts).tolist()} & set(range(181)))
    pieces = Pieces([update[a:b] for a, b in pairwise(ends)])
    assert nearer_to_model(pieces, model) == near(update, model)


@pytest.mark.parametrize("size", [1, 16, 17, 1024, 1025, 300_000])
def test_models_of_any_size(size: int) -> None:
    model = torch.randn(size, generator=torch.Generator().manual_seed(size))
    trained = model * 1.01
    for pieces in (1, 3, 100):
        assert nearer_to_model(Pieces(list(trained.chunk(pieces))), model)
        assert not nearer_to_model(Pieces(list((trained - model).chunk(pieces))), model)
        assert not nearer_to_model(Pieces(list((-model).chunk(pieces))), model)


def test_every_place_can_be_the_one_that_differs() -> None:
    """If all elements are compared, a single very different number is noticed."""
    model = torch.ones(1000)
    for place in range(0, 1000, 37):
        update = model.clone()
        update[place] = 50
        assert not nearer_to_model(Pieces(list(update.split(90))), model)


def test_mixed_pieces_of_torch_and_numpy() -> None:
    model = torch.linspace(-1, 1, 3000)
    a, b, c, d = model.split(750)
    fixed = b.numpy().copy()
    fixed.flags.writeable = False
    pieces = [a.view(30, 25), fixed, c.numpy().astype(np.float16), d.bfloat16()]
    assert nearer_to_model(Pieces(pieces), model)
    assert not nearer_to_model(Pieces([*pieces[:3], d * 100]), model)


def test_the_commonest_mistake() -> None:
    module = Residual()
    layout = Layout.of(module)
    flat = layout.take(module, torch.device("cpu")).flat
    trained = {name: v.float() * 1.02 if v.is_floating_point() else v for name, v in module.state_dict().items()}
    assert nearer_to_model(layout.parse(trained).parameters, flat)
    delta = {name: v - module.state_dict()[name] for name, v in trained.items()}
    assert not nearer_to_model(layout.parse(delta).parameters, flat)


def test_nothing_is_said_of_what_cannot_be_told() -> None:
    model = torch.ones(8)
    for update in (
        torch.zeros(8),
        torch.full((8,), float("nan")),
        torch.full((8,), float("inf")),
        torch.ones(7),
    ):
        assert not nearer_to_model(as_pieces(update), model)
    assert not nearer_to_model(as_pieces(torch.ones(8)), torch.zeros(8))
    assert not nearer_to_model(Pieces([]), torch.zeros(0))
    assert not nearer_to_model(as_pieces(torch.ones(8)), torch.ones(8, device="meta"))
    elsewhere = as_pieces(torch.ones(8))
    elsewhere.device = torch.device("cuda", 0)
    assert not nearer_to_model(elsewhere, model)
