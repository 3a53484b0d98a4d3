"""CRC-32C: the published vectors, the instruction against the table, chaining, pieces."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.crc import crc32c as by_definition

from fastagg._build import native
from fastagg.ops.checks import Update, update_of
from fastagg.storage.pieces import as_pieces

pytestmark = pytest.mark.kernel

PART = 4096  # bytes that csrc/cpu/crc32c.cpp reads in three places at once


def floats(data: bytes, offset: int = 0) -> torch.Tensor:
    """Bytes as fp16 or fp32 numbers that begin ``offset`` bytes into an allocation."""
    dtype = torch.float16 if len(data) % 4 or offset % 4 else torch.float32
    held = torch.zeros(offset + len(data), dtype=torch.uint8)
    held[offset:].numpy()[:] = np.frombuffer(data, np.uint8)
    return held[offset:].view(dtype)


def crc32c(update: Update, before: int = 0, *, in_software: bool = False) -> int:
    """The checksum of the bytes of all pieces, one after the other, behind that of others."""
    pieces = as_pieces(update)
    sizes = [size * (4, 2, 2)[code] for _, size, code in pieces.native if size]
    return native.crc32c(update_of(pieces), bytes=sizes, before=before, in_software=in_software)


def random(size: int, seed: int) -> bytes:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (size,), dtype=torch.uint8, generator=generator).numpy().tobytes()


@pytest.mark.parametrize("in_software", [False, True])
@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(range(31, -1, -1)), 0x113FDB5C),
    ],
)  # RFC 3720, B.4
def test_published_vectors(data: bytes, expected: int, in_software: bool) -> None:
    assert crc32c(floats(data), in_software=in_software) == expected == by_definition(data)


@given(
    size=st.one_of(st.integers(1, 40), st.integers(1, 16_000)).map(lambda n: 2 * n),
    offset=st.integers(0, 8).map(lambda n: 2 * n),
    before=st.integers(0, 2**32 - 1),
    seed=st.integers(0, 999),
)
def test_the_instruction_is_the_table(size: int, offset: int, before: int, seed: int) -> None:
    data = floats(random(size, seed), offset)
    assert crc32c(data, before) == crc32c(data, before, in_software=True)


@pytest.mark.parametrize("in_software", [False, True])
@pytest.mark.parametrize("size", [3 * PART - 2, 3 * PART, 3 * PART + 2, 6 * PART + 14, 7 * PART + 4])
def test_lengths_around_its_parts_are_the_definition(size: int, in_software: bool) -> None:
    data = random(size, size)
    assert crc32c(floats(data, 2), in_software=in_software) == by_definition(data)


@pytest.mark.parametrize("in_software", [False, True])
@pytest.mark.parametrize("cut", [0, 2, 14, 3 * PART, 3 * PART + 6, 20_000])
def test_one_after_the_other_is_all_at_once(cut: int, in_software: bool) -> None:
    data = random(20_000, 1)
    whole = crc32c(floats(data), in_software=in_software)
    first = crc32c(floats(data[:cut]), in_software=in_software)
    assert crc32c(floats(data[cut:]), first, in_software=in_software) == whole
    assert crc32c([floats(data[:cut]), floats(data[cut:])], in_software=in_software) == whole


def test_pieces_of_several_types_are_their_bytes_in_order() -> None:
    data = random(40_000, 2)
    pieces = [
        floats(data[:4004]),
        torch.empty(0),
        floats(data[4004:4010]).view(torch.bfloat16),
        floats(data[4010:30_010]).numpy(),
        floats(data[30_010:]),
    ]
    assert crc32c(pieces) == crc32c(floats(data)) == crc32c(pieces, in_software=True)
    assert crc32c(pieces[::-1]) != crc32c(pieces)


def test_nothing_leaves_what_came_before() -> None:
    assert crc32c(torch.empty(0)) == 0 and crc32c([], 123) == 123
