"""Encoded updates: their bits are the formulas', on every processor; rounding has no bias; what lies is refused."""

import pickle
import random
import sys

import numpy as np
import pytest
import torch
from support.wire import decode_wire, encode_wire
from torch import Tensor

import fastagg
from fastagg import EncodingError, ErrorFeedback, TopK, encode
from fastagg._build import native
from fastagg.encoding.encode import UNBIASED as UNBIASED_NAMES
from fastagg.errors import CheckpointError, FastaggError, NonFiniteUpdate, ShapeMismatch
from fastagg.storage.encoded import in_place

pytestmark = pytest.mark.kernel

DENSE = tuple(name for name in native.encoding.formats if name != "topk")
SPARSE = tuple(TopK(share, values) for share, values in ((0.01, "fp32"), (0.3, "bf16"), (0.2, "int8"), (1.0, "int2")))
FORMATS = (*DENSE, *SPARSE)
UNBIASED = (*sorted(UNBIASED_NAMES), *(TopK(1.0, values) for values in native.encoding.values))
SIZES = (1, 7, 255, 256, 257, 1024, 5000, 70_001)


def update(size: int, seed: int = 0) -> Tensor:
    """Numbers of many magnitudes, with zeros and equals among them."""
    g = torch.Generator().manual_seed(seed)
    found = torch.randn(size, generator=g) * 10.0 ** torch.randint(-6, 3, (size,), generator=g)
    found[::17] = 0.0
    found[5::29] = 0.25
    found[6::31] = -0.25
    return found


def tensors(encoded: fastagg.Encoded) -> dict[str, Tensor]:
    return {name: torch.from_numpy(one.copy()) for name, one in encoded.arrays().items() if name != "header"}


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("format", FORMATS, ids=str)
def test_codes_and_numbers_are_the_formulas(format: object) -> None:
    for size in SIZES:
        x = update(size)
        arrays = {"a": x[: size // 3], "b": x[size // 3 :]} if size > 3 else {"b": x}
        made = encode(arrays, format, seed=2**40 + 5)  # type: ignore[arg-type]
        name, values = (format, "fp32") if isinstance(format, str) else ("topk", format.values)  # type: ignore[attr-defined]
        count = 0 if isinstance(format, str) else max(1, round(format.share * size))  # type: ignore[attr-defined]
        ends = torch.tensor([len(one) for one in arrays.values()]).cumsum(0)
        expected = encode_wire(x, str(name), 2**40 + 5, ends=ends, count=count, values=values)
        found = tensors(made)
        assert found.keys() == {name for name, one in expected.items() if one.numel()}
        for key, one in found.items():
            assert one.contiguous().view(torch.uint8).tolist() == expected[key].contiguous().view(torch.uint8).tolist()
        assert torch.equal(made.decode(), decode_wire(found, str(name), size, values))
        assert made.size == size and made.nbytes == len(made.to_bytes())


@pytest.mark.parametrize("format", UNBIASED, ids=str)
def test_rounding_has_no_bias(format: object) -> None:
    x, turns = update(600, seed=1).clamp(-0.1, 0.1), 400
    found = torch.stack([encode(x, format, seed=seed).decode() for seed in range(turns)]).double()  # type: ignore[arg-type]
    error, step = found.mean(0) - x, (found.amax(0) - found.amin(0)).max()  # a step: between two codes
    assert bool((error.abs() <= 5.5 * step / 2 / turns**0.5 + 1e-8).all())
    assert abs(float(error.sum())) <= 5 * float((found.var(0).sum() / turns) ** 0.5) + 1e-6


def test_every_form_has_the_same_bytes() -> None:
    x = update(3000)
    parts = {"w": x[:1000].reshape(10, 100), "b": x[1000:]}
    for format in ("int8", TopK(0.1)):
        made = encode(x, format, seed=3).to_bytes()  # type: ignore[arg-type]
        numpy = {name: one.numpy() for name, one in parts.items()}
        forms = (parts, list(parts.values()), numpy, x.numpy(), {**parts, "bn.running_mean": torch.ones(4)})
        assert all(encode(form, format, seed=3).to_bytes() == made for form in forms)  # type: ignore[arg-type]
        before, large = fastagg.get_num_threads(), update(200_000)
        try:
            made = []
            for threads in (1, 3):
                fastagg.set_num_threads(threads)
                made.append(encode(large, format, seed=1).to_bytes())  # type: ignore[arg-type]
            assert made[0] == made[1]
        finally:
            fastagg.set_num_threads(before)
    half = x.clamp(-100, 100).to(torch.bfloat16)
    assert encode(half, "int8", seed=3).to_bytes() == encode(half.float(), "int8", seed=3).to_bytes()


@pytest.mark.parametrize("format", FORMATS, ids=str)
def test_there_and_back(format: object) -> None:
    made = encode(update(5000), format, seed=0)  # type: ignore[arg-type]
    arrays = made.arrays()
    torch_arrays = {name: torch.from_numpy(one.copy()) for name, one in arrays.items()}
    for other in (
        fastagg.Encoded.from_bytes(made.to_bytes()), fastagg.Encoded.from_bytes(bytearray(made.to_bytes())),
        fastagg.Encoded.from_arrays(arrays), fastagg.Encoded.from_arrays(torch_arrays),
        pickle.loads(pickle.dumps(made)),
    ):  # fmt: skip
        assert other.to_bytes() == made.to_bytes() and torch.equal(other.decode(), made.decode())
    for one in arrays.values():
        with pytest.raises(ValueError, match="read-only"):
            one[0] = 1


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("format", FORMATS, ids=str)
@pytest.mark.parametrize("size", [1, 300, 5000])
def test_the_largest_finite_numbers_are_encoded(format: object, size: int) -> None:
    most = torch.finfo(torch.float32).max * (1.0 if format == "sign" else 0.99)  # codes times a scale may round up
    for x in (torch.full((size,), most), update(size).sign() * most, torch.full((size,), -0.9 * most)):
        read = encode(x, format, seed=3).decode()  # type: ignore[arg-type]
        assert read.isfinite().all()
        if format == "sign" and bool((x != 0).all()):
            torch.testing.assert_close(read, x, rtol=1e-6, atol=0.0)


@pytest.mark.parametrize("format", FORMATS, ids=str)
def test_bytes_are_kept_and_what_can_change_is_copied(format: object) -> None:
    """Its arrays live as long as somebody has one of them, and bytes as long as they are read."""
    made = encode(update(70_001), format, seed=0)  # type: ignore[arg-type]
    data, numbers = made.to_bytes(), made.decode()
    before = sys.getrefcount(data)
    native.memory.fail_after(1000)
    kept = fastagg.Encoded.from_bytes(data)
    allocated = 1000 - native.memory.left_to_fail()
    native.memory.fail_after(-1)
    assert allocated == 0 and sys.getrefcount(data) == before + 1
    codes = kept.arrays()["codes"]
    del kept
    assert sys.getrefcount(data) == before + 1 and codes.tobytes() == made.arrays()["codes"].tobytes()
    del codes
    assert sys.getrefcount(data) == before
    buffer, whole = bytearray(data), np.frombuffer(data, np.uint8)
    odd = np.concatenate([whole[:1], whole])[1:]  # numbers that begin at odd addresses
    arrays = {name: one.copy() for name, one in made.arrays().items()}
    copies = [fastagg.Encoded.from_bytes(given) for given in (buffer, memoryview(buffer), odd, memoryview(data))]
    copies += [fastagg.Encoded.from_arrays(arrays), in_place(odd)]
    assert sys.getrefcount(data) == before + 1  # of `whole`
    buffer[:], odd[:] = bytes(len(buffer)), 255
    for array in arrays.values():
        array[:] = 1
    assert all(one.to_bytes() == data and torch.equal(one.decode(), numbers) for one in copies)


@pytest.mark.parametrize("format", FORMATS, ids=str)
def test_feedback_sends_all_in_the_end(format: object) -> None:
    feedback, total, sent = ErrorFeedback(), torch.zeros(2000, dtype=torch.float64), torch.zeros(2000).double()
    restored = ErrorFeedback(0.5)
    for turn in range(12):
        delta = update(2000, seed=turn).clamp(-1, 1)
        restored.load_state_dict(feedback.state_dict())
        made = encode(delta, format, seed=1, feedback=feedback)  # type: ignore[arg-type]
        assert encode(delta, format, seed=1, feedback=restored).to_bytes() == made.to_bytes()  # type: ignore[arg-type]
        total += delta
        sent += made.decode()
        assert feedback.residual is not None and feedback.count == turn + 1
        torch.testing.assert_close((sent + feedback.residual), total, rtol=0, atol=1e-4)
        assert restored.residual is not None and torch.equal(restored.residual, feedback.residual)
    kept = feedback.residual.clone()
    with pytest.raises(NonFiniteUpdate):
        encode(torch.full((2000,), torch.nan), format, seed=1, feedback=feedback)  # type: ignore[arg-type]
    with pytest.raises(ShapeMismatch, match="feedback"):
        encode(torch.ones(3), format, seed=1, feedback=feedback)  # type: ignore[arg-type]
    assert torch.equal(feedback.residual, kept) and feedback.count == 12
    with pytest.raises(CheckpointError):
        feedback.load_state_dict({"residual": torch.tensor([torch.inf]), "decay": 1.0, "count": 1})
    assert torch.equal(feedback.residual, kept)


def test_what_is_not_finite_is_refused() -> None:
    for format in FORMATS:
        for place, bad in enumerate((torch.nan, -torch.nan, torch.inf, -torch.inf)):
            x = update(3000)
            x[(0, 700, 2047, 2999)[place]] = bad
            with pytest.raises(NonFiniteUpdate):
                encode(x, format, seed=0)  # type: ignore[arg-type]


def changed(encoded: fastagg.Encoded, name: str, place: int, value: float) -> bytes:
    arrays = {key: one.copy() for key, one in encoded.arrays().items()}
    arrays[name][place] = value
    return fastagg.Encoded.from_arrays(arrays).to_bytes()


def test_what_lies_is_named() -> None:
    top, blocks, tensor = (encode(update(700), format, seed=0) for format in (TopK(0.1, "int8"), "int8", "int8-tensor"))
    first = top.arrays()["indices"]
    for encoded, name, place, value, said in (
        (top, "indices", 1, first[0], "each once"), (top, "indices", -1, 700, "each once"),
        (top, "indices", 0, -1, "each once"), (top, "scales", 0, -1.0, "a scale"),
        (top, "scales", 0, np.inf, "a scale"),
        (blocks, "scales", 1, np.nan, "a scale"), (blocks, "codes", -1, 1, "behind its last"),
        (tensor, "ends", 0, 699, "end before"), (tensor, "ends", 0, 0, "do not rise"),
        (tensor, "header", 0, 0, "FAEU"), (tensor, "header", 4, 2, "version"), (tensor, "header", 5, 9, "format"),
        (tensor, "header", 40, 1, "zero"), (blocks, "header", 16, 1, "count"), (top, "header", 6, 7, "values"),
    ):  # fmt: skip
        with pytest.raises(EncodingError, match=said):
            changed(encoded, name, place, value)
    whole = top.to_bytes()
    for data in (whole[:-1], whole + b"\0", whole[:63], b"", whole[:64]):
        with pytest.raises(EncodingError, match="bytes"):
            fastagg.Encoded.from_bytes(data)
    huge = bytearray(blocks.to_bytes()[:64])
    huge[8:16] = (2**40).to_bytes(8, "little")  # a terabyte, of which nothing is allocated
    with pytest.raises(EncodingError, match="tells of"):
        fastagg.Encoded.from_bytes(huge)
    arrays = blocks.arrays()
    for wrong in ({**arrays, "more": arrays["scales"]}, {"header": arrays["header"]}, {}, [], {**arrays, "codes": 3}):
        with pytest.raises(EncodingError):
            fastagg.Encoded.from_arrays(wrong)  # type: ignore[arg-type]


def test_damaged_bytes_are_refused_or_are_another_update() -> None:
    chance = random.Random(0)
    refused = taken = 0
    originals = [encode(update(size), format, seed=0).to_bytes() for format in FORMATS for size in (1, 300, 2000)]
    for _ in range(4000):
        data = bytearray(chance.choice(originals))
        for _ in range(chance.randint(1, 4)):
            at = chance.choice((chance.randrange(24), chance.randrange(len(data)), chance.randrange(64, len(data))))
            data[at] = chance.choice((0, 255, 127, 128, data[at] ^ 1 << chance.randrange(8)))
        if chance.random() < 0.2:
            data = data[: chance.randrange(len(data))] if chance.random() < 0.5 else data + bytes(chance.randint(1, 64))
        try:
            made = fastagg.Encoded.from_bytes(data)
            taken += 1
        except EncodingError:
            refused += 1
            continue
        server = fastagg.FedBuff(torch.zeros(2000), buffer_size=2)
        server.dispatch(0)
        before = server.flat.clone()
        try:
            server.receive(0, made)
            assert made.size == 2000 == len(made.decode())
        except FastaggError:
            assert torch.equal(server.flat, before) and server.memory()["direction"] == 0
    assert refused > 500 and taken > 500
