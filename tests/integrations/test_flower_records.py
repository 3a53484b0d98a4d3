"""Flower's .npy bytes as tensors: the same numbers, the same types, no copy, and no surprise in damaged ones."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import fastagg

pytest.importorskip("flwr")

import contextlib

from flwr.app import Array, ArrayRecord

from fastagg.integrations.flower import read, records, write

DTYPES = [
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float64,
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.bool,
]


def npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(3, 4), (5,), (), (0,), (2, 0, 3)], ids=str)
def test_there_and_back(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    array = torch.randint(0, 2, shape).to(dtype) if dtype is torch.bool else (torch.randn(shape) * 50).to(dtype)
    record = write({"a": array})
    back = read(record)["a"]
    assert back.dtype == dtype and back.shape == shape and torch.equal(back, array)
    if dtype is not torch.bfloat16:  # which Flower itself cannot write from a tensor
        theirs = Array(array.numpy())
        assert (theirs.dtype, theirs.shape, theirs.data) == (record["a"].dtype, record["a"].shape, record["a"].data)
        np.testing.assert_array_equal(record["a"].numpy(), array.numpy())


def test_reading_copies_nothing() -> None:
    record = ArrayRecord({"a": Array(np.arange(1000, dtype=np.float32))})
    start = np.frombuffer(record["a"].data, np.uint8).ctypes.data
    assert start < read(record)["a"].data_ptr() < start + len(record["a"].data)


def test_reading_warns_of_nothing(recwarn: pytest.WarningsRecorder) -> None:
    read(write({"a": torch.ones(3)}))
    assert not recwarn.list


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("kind", ["<f4", ">f4", "<i8", ">i8", "<f2"])
def test_other_orders(order: str, kind: str) -> None:
    array = np.asarray(np.arange(24).reshape(2, 3, 4), dtype=kind, order=order)
    assert torch.equal(records.from_npy(npy(array)), torch.tensor(array.astype(array.dtype.newbyteorder("="))))


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"", fastagg.ShapeMismatch),
        (b"not a file at all", fastagg.ShapeMismatch),
        (npy(np.ones(4, np.float32))[:-1], fastagg.ShapeMismatch),
        (npy(np.ones(4, np.float32)) + b"x", fastagg.ShapeMismatch),
        (npy(np.ones(4, np.complex64)), None),
        (npy(np.array(["text"])), fastagg.DTypeMismatch),
    ],
)
def test_damaged(data: bytes, error: type[Exception] | None) -> None:
    if error is None:  # numbers, if no model's: Layout has the last word
        assert records.from_npy(data).is_complex()
        return
    with pytest.raises(error, match="array 'w'"):
        records.from_npy(data, label="array 'w'")


@given(st.data())
def test_any_damage_is_a_named_error_or_an_array(data: st.DataObject) -> None:
    good = bytearray(npy(np.arange(6, dtype=np.float32).reshape(2, 3)))
    for _ in range(data.draw(st.integers(1, 4))):
        good[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(good[: data.draw(st.integers(0, len(good)))])
    with contextlib.suppress(fastagg.FastaggError):
        assert isinstance(records.from_npy(cut), torch.Tensor)


def test_other_bytes() -> None:
    with pytest.raises(fastagg.DTypeMismatch, match=r"numpy\.ndarray"):
        read({"a": Array("float32", (1,), "pickle", b"...")})
