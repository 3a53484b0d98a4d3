"""Pieces of a flat vector, taken from whatever arrays there are."""

from typing import Any

import numpy as np
import pytest
import torch
from support.liars import Lying, LyingArray, freed
from torch import Tensor, nn

from fastagg import DTypeMismatch, ops
from fastagg.storage.pieces import Pieces, as_pieces, as_tensor

pytestmark = pytest.mark.kernel

HOLDS = torch.arange(6.0)


@pytest.mark.parametrize(
    "given",
    [
        HOLDS,
        torch.arange(-3.0, 6.0)[3:],  # a view that begins further on
        torch.arange(6.0).view(2, 3),
        nn.Parameter(torch.arange(6.0)),
        torch.arange(6.0).as_subclass(Lying),
        torch._neg_view(-torch.arange(6.0)),
        np.arange(6, dtype=np.float32).view(LyingArray),
        np.arange(6, dtype=np.float16).view(np.matrix),
        np.arange(12, dtype=np.float32)[::2].view(LyingArray) / np.float32(2),
    ],
)
def test_the_numbers_that_memory_holds(given: Any) -> None:
    for pieces in (as_pieces(given), Pieces([given]), as_pieces([given])):
        assert pieces.size == 6 and pieces.native[0][1] == 6 and len(pieces.native) == 1
        assert torch.equal(pieces.flat(torch.float32), HOLDS)
        assert ops.inspect(pieces).norm == pytest.approx(float(HOLDS.norm()))
    assert torch.equal(as_tensor(given).reshape(-1).float(), HOLDS)


def test_nothing_is_copied_that_need_not_be() -> None:
    plain, array = torch.zeros(6), np.zeros(6, np.float32)
    lying = plain.as_subclass(Lying)
    assert as_pieces(plain).native[0][0] == as_pieces(lying).native[0][0] == plain.data_ptr()
    assert as_pieces(plain[2:]).native[0][0] == plain.data_ptr() + 8
    assert as_pieces(array.view(LyingArray)).native[0][0] == array.ctypes.data


def test_transforms_of_functions_have_no_memory() -> None:
    def read(update: Tensor) -> Tensor:
        with pytest.raises(DTypeMismatch):
            as_pieces(update)
        return update

    torch.func.vmap(read)(torch.zeros(2, 3))


@pytest.mark.parametrize("left", [0, 4])
def test_nothing_may_be_left_of_nothing(left: int) -> None:
    assert as_pieces(freed(torch.zeros(0), left)).size == 0
    assert as_pieces(freed(torch.zeros(6)[6:], left)).size == 0
