"""Pieces of a flat vector, taken from whatever arrays there are."""

from typing import Any

import numpy as np
import pytest
import torch
from support.liars import Foreign, Lying, LyingArray, freed
from torch import Tensor, nn

import fastagg
from fastagg import DTypeMismatch, ops
from fastagg.distill.unlabelled import _read as unlabelled
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
        torch.complex(torch.zeros(6), -torch.arange(6.0)).conj().imag,
        -np.arange(-5, 1, dtype=np.float32)[::-1],
        Foreign(torch.arange(6.0)),
    ],
)
def test_the_numbers_that_memory_holds(given: Any) -> None:
    for pieces in (as_pieces(given), Pieces([given]), as_pieces([given])):
        assert pieces.size == 6 and pieces.native[0][1] == 6 and len(pieces.native) == 1
        assert torch.equal(pieces.flat(torch.float32), HOLDS)
        assert ops.inspect(pieces).norm == pytest.approx(float(HOLDS.norm()))
    assert torch.equal(as_tensor(given).reshape(-1).float(), HOLDS)
    if as_tensor(given).dim() == 1:
        server = server_of()
        assert server.receive(0, given).applied and torch.equal(server.flat, HOLDS)


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


class Exported:
    """Another library's array."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __dlpack__(self, **how: Any) -> Any:
        return self.array.__dlpack__(**how)

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()


ENTRIES: dict[str, Any] = {
    "a server's model": lambda given: fastagg.FedBuff(given),
    "a mapping": lambda given: fastagg.FedBuff({"w": given}),
    "a list": lambda given: fastagg.FedBuff([given]),
    "parts": lambda given: fastagg.parts({"w": given, "v": given}, 2),
    "receive": lambda given: server_of().receive(0, given),
    "receive, by name": lambda given: fastagg_of_names().receive(0, {"w": given}),
    "receive_many": lambda given: raised(server_of().receive_many([(0, given)])[0]),
    "receive_model": lambda given: (on := server_of()).receive_model(on.dispatch(1), given),
    "receive_partial": lambda given: server_of().receive_partial(0, fastagg.Partial(given, 1, 1.0)),
    "extra": lambda given: server_of().receive(0, torch.zeros(6), extra={"loss": given}),
    "control": lambda given: server_of().receive(0, torch.zeros(6), control=given),
    "encode": lambda given: fastagg.encode(given, "int8", seed=0),
    "ops": ops.inspect,
    "unlabelled": lambda given: unlabelled({"x": given}),
    "a leaf": lambda given: fastagg.Leaf(given),
    "a capsule": lambda given: as_tensor(given.__dlpack__()),
}


def server_of() -> fastagg.Server:
    server = fastagg.FedBuff(torch.zeros(6), buffer_size=1)
    server.dispatch(0)
    return server


def fastagg_of_names() -> fastagg.Server:
    server = fastagg.FedBuff({"w": torch.zeros(3, 2)})
    server.dispatch(0)
    return server


def raised(outcome: Any) -> None:
    raise outcome


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize("flip", [np.s_[::-1], np.s_[:, ::-1], np.s_[::-2, ::-1]])
def test_another_librarys_array_with_negative_strides_is_refused_by_name(entry: str, flip: Any) -> None:
    """Torch would end the process."""
    given = Exported(np.arange(6, dtype=np.float32).reshape(3, 2)[flip])
    with pytest.raises(fastagg.FastaggError):
        ENTRIES[entry](given)
    with pytest.raises(DTypeMismatch, match="positive strides"):
        as_pieces([given])


def test_other_strides_of_another_librarys_array_are_read() -> None:
    whole = np.arange(24, dtype=np.float32).reshape(4, 6)
    for part in (whole[::2, ::3], whole.T, whole[:1][::-1], whole[:, :0], np.broadcast_to(np.float32(2), (3, 2))):
        assert torch.equal(as_tensor(Exported(part)), torch.tensor(part.tolist()).reshape(part.shape))
    assert torch.equal(as_tensor(Exported(whole).__dlpack__()), torch.from_numpy(whole))
