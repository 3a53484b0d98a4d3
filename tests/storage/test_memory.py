"""The server's own vectors: their memory, and its reuse."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from fastagg._build import native
from fastagg.storage import memory

MIB = 1 << 20


def resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("size", [0, 1, 15, 16_383, 16_384, 100_000, 524_288, 600_001])
def test_vectors_are_what_they_say(size: int) -> None:
    vector = memory.empty(size)
    assert vector.dtype is torch.float32 and vector.shape == (size,) and vector.is_contiguous()
    assert vector.untyped_storage().nbytes() == 4 * size
    assert not size or vector.data_ptr() % 64 == 0
    assert size * 4 < 2 * MIB or vector.data_ptr() % (2 * MIB) == 0
    vector.fill_(1.0)
    assert float(vector.sum()) == size
    assert memory.empty_bytes(size).dtype is torch.uint8


def test_a_block_comes_back_when_its_last_view_is_gone() -> None:
    memory.trim()
    size = 3 * MIB // 4
    vector = memory.empty(size)
    at, view = vector.data_ptr(), vector[10:20]
    del vector
    gc.collect()
    assert memory.empty(size).data_ptr() != at  # a view still reads it
    del view
    assert memory.empty(size).data_ptr() == at


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is asked of Linux")
@pytest.mark.parametrize("recycle", [True, False])
def test_what_is_not_to_be_kept_goes_back(recycle: bool) -> None:
    memory.trim()
    before = resident()
    memory.empty_bytes(256 * MIB, recycle=recycle).zero_()
    assert (resident() - before > 128 * MIB) == recycle
    memory.trim()
    assert resident() - before < 128 * MIB


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is asked of Linux")
def test_many_sizes_do_not_pile_up() -> None:
    memory.trim()
    before = resident()
    for size in range(MIB // 4, MIB // 4 + 2_000):
        memory.empty(size).zero_()
    assert resident() - before < 64 * MIB


def test_threads_take_and_give_back() -> None:
    wrong = []

    def work(value: float) -> None:
        for _ in range(200):
            vector = memory.empty(20_000).fill_(value)
            if not bool((vector == value).all()):
                wrong.append(value)

    threads = [threading.Thread(target=work, args=(float(i),)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_memory_that_is_not_there_is_said() -> None:
    with pytest.raises(MemoryError):
        memory.empty(1 << 55)
    native.memory.fail_after(0)
    with pytest.raises(MemoryError):
        memory.empty(10)
    assert memory.empty(10).numel() == 10


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_has_memory() -> None:
    vector = memory.empty(100_000).fill_(3.0)
    child = os.fork()
    if child == 0:
        fresh = memory.empty(100_000)
        fresh[0] = 1.0
        os._exit(0 if float(vector[0]) == 3.0 else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_with_an_older_torch_vectors_come_through_a_capsule() -> None:
    exchange = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)

    def use(exchange: object, from_dlpack: Callable[[object], object]) -> None:
        native.memory.use_torch(torch.Tensor, exchange, from_dlpack, np.ndarray, memory._tensors)

    use(None, torch.utils.dlpack.from_dlpack)
    try:
        size = 3 * MIB // 4
        vector = memory.empty(size).fill_(2.0)
        at = vector.data_ptr()
        assert float(vector[-1]) == 2.0 and vector.shape == (size,)
        del vector
        assert memory.empty(size).data_ptr() == at

        def broken(capsule: object) -> None:
            raise RuntimeError("no")

        use(None, broken)
        with pytest.raises(RuntimeError, match="no"):
            memory.empty(size)
    finally:
        use(exchange, torch.utils.dlpack.from_dlpack)
