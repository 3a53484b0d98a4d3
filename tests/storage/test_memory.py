"""The server's own vectors: their memory, and its reuse."""

import gc
import os
import resource
import subprocess
import sys
import types
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.presets import CLIENTS, PRESETS

import fastagg
from fastagg._build import native
from fastagg.errors import ConfigError, DeviceError
from fastagg.storage import devices, memory

MIB = 1 << 20


# The ways in which an update's bytes come.
BIG = torch.linspace(-1e-3, 1e-3, 600_000)  # its memory is mapped, and not the C library's
HALF, ARRAYS = BIG.bfloat16(), [BIG[:9].numpy(), BIG[9:].numpy()]
SENT = fastagg.encode(BIG, "int8", seed=0)
ROUTES: dict[str, Callable[[fastagg.Server, fastagg.Dispatch], object]] = {
    "tensor": lambda server, task: server.receive(task.client, BIG, num_samples=3),
    "arrays": lambda server, task: server.receive(task.client, ARRAYS, num_samples=3),
    "bf16": lambda server, task: server.receive(task.client, HALF, num_samples=3),
    "int8": lambda server, task: server.receive(task.client, SENT, num_samples=3),
    "model": lambda server, task: server.receive_model(task, ARRAYS, num_samples=3),
    "together": lambda server, task: server.receive_many([fastagg.Answer(task.client, BIG, num_samples=3)]),
}


@pytest.mark.parametrize("name", PRESETS)
def test_a_steady_arrival_maps_no_memory(name: str) -> None:
    """Twelve arrivals in a row, with whole rounds, have no page fault. The interpreter has some, but not always."""
    before = fastagg.get_num_threads()
    fastagg.set_num_threads(2)
    try:
        for route, answer in ROUTES.items():
            server, faults = PRESETS[name]([BIG[:9], BIG[9:]]), []
            while len(faults) < 8 and 0 not in faults:
                first = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
                try:
                    for turn in range(12):
                        answer(server, server.dispatch(turn % CLIENTS))
                except fastagg.ConfigError:  # the rule does not take this form
                    assert route in ("model", "int8")
                    break
                faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - first)
            assert not faults or 0 in faults, f"{route}: {faults}"
    finally:
        fastagg.set_num_threads(before)


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

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, map(float, range(4))))
    assert not wrong


def test_memory_that_is_not_there_is_said() -> None:
    with pytest.raises(MemoryError):
        memory.empty(1 << 55)
    native.memory.fail_after(0)
    with pytest.raises(MemoryError):
        memory.empty(10)
    assert memory.empty(10).numel() == 10


FORKED = """
import os, sys, tempfile
import numpy as np, torch, fastagg
fastagg.set_num_threads(2)
torch.set_num_threads(2)
(torch.ones(1 << 20) + 1).sum()  # torch's threads begin
ones = np.ones((256, 1024), np.float32)
parent = fastagg.FedBuff([ones], buffer_size=1)
parent.dispatch(0)
parent.receive(0, [ones])  # and fastagg's
child = os.fork()
if child != 0:
    sys.exit(os.waitpid(child, 0)[1])
for model in ([ones], ones.reshape(-1), {"w": ones}, torch.nn.Linear(1024, 256)):
    server = fastagg.FADAS(model, buffer_size=1)
    task = server.dispatch("ann")
    server.receive("ann", np.ones(server.flat.numel(), np.float32))
    task = server.dispatch("ann")
    server.receive_model(task, task.params)
    server.parameters(), server.memory()
    server.load_state_dict(server.state_dict())
    with tempfile.TemporaryDirectory() as folder:
        server.save(folder + "/saved")
        fastagg.load(folder + "/saved")
        with fastagg.open(folder + "/state", lambda: fastagg.FADAS(model)) as stored:
            stored.dispatch(0)
            stored.checkpoint()
    fastagg.Leaf(model)
    fastagg.encode(ones, "int8", seed=0).decode()
os._exit(0)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_may_make_a_server_of_any_size() -> None:
    subprocess.run([sys.executable, "-P", "-c", FORKED], check=True, timeout=100)


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


needs_none = pytest.mark.skipif(torch.cuda.is_available(), reason="plays a machine with a GPU that has none")


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """torch finds one GPU."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    return monkeypatch


def build_for(words: str, capability: tuple[int, int], built: str = "80,90,100") -> types.SimpleNamespace:
    """A build for some cards, on a machine whose driver says no, or nothing against it."""
    cuda = types.SimpleNamespace(compute_capability=lambda device: capability)
    return types.SimpleNamespace(
        cuda_architectures=built, cuda_ptx="80", cuda_answer=lambda: (int(not words), 13000, words), cuda=cuda
    )


NO_KERNELS = types.SimpleNamespace(cuda_architectures="", cuda_skipped="no CUDA device was found")
OLD_DRIVER = build_for("the driver supports CUDA 12.4 and this build needs 13.0", (9, 0))


@needs_none
@pytest.mark.parametrize(
    ("device", "native", "error", "words"),
    [
        ("cuda:7", build_for("", (9, 0)), ConfigError, "there are 1 CUDA devices"),
        ("cuda", OLD_DRIVER, DeviceError, r"cuda:0: torch finds it.*supports CUDA 12\.4 and this build needs 13\.0"),
        ("cuda", build_for("", (7, 5)), DeviceError, r"compute capability 7\.5.*FASTAGG_CUDA_ARCHITECTURES=75"),
        ("cuda", NO_KERNELS, DeviceError, r"\(no CUDA device was found\); .*FASTAGG_CUDA=ON .*or use .*'cpu'"),
    ],
)
def test_a_card_that_cannot_be_used(
    device: str, native: Any, error: type[Exception], words: str, gpu: pytest.MonkeyPatch
) -> None:
    gpu.setattr(devices, "native", native)
    with pytest.raises(error, match=words):
        devices.choose(device, torch.zeros(1))


@needs_none
def test_why_torch_finds_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch finds no device, and fastagg's own runtime tells why."""
    with pytest.raises(ConfigError, match=r"no CUDA device here \(.*\); use device='cpu'"):
        fastagg.FedBuff(torch.zeros(4), device="cuda")
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(devices, "native", build_for("there is no NVIDIA driver here: install one", (9, 0)))
    with pytest.raises(ConfigError, match=r"no CUDA device here \(there is no NVIDIA driver here: install one\)"):
        devices.choose("cuda", torch.zeros(1))
    monkeypatch.setattr(devices, "native", types.SimpleNamespace(cuda_architectures=""))
    with pytest.raises(ConfigError, match=r"\(no GPU, or too old a driver\)"):
        devices.choose("cuda", torch.zeros(1))


@pytest.mark.parametrize(
    "built, ptx, runs",
    [
        ("80", "", [80, 86, 87, 89]),
        ("86,90", "", [86, 87, 89, 90]),
        ("90a", "", [90]),
        ("80,90a", "80", [80, 86, 87, 89, 90, 100, 103, 120]),
        ("100f", "", [100, 103]),
        ("90,120", "90", [90, 100, 103, 120]),
        ("80,86,89,90,100,120", "80", [80, 86, 87, 89, 90, 100, 103, 120]),
    ],
)
def test_which_cards_a_build_has_code_for(built: str, ptx: str, runs: list[int]) -> None:
    cards = (75, 80, 86, 87, 89, 90, 100, 103, 120)
    assert [card for card in cards if devices._has_code(card // 10, card % 10, built.split(","), ptx)] == runs


def test_out_of_memory_is_a_named_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*sizes: int, **given: object) -> torch.Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 4.00 GiB")

    monkeypatch.setattr(torch, "empty", full)
    with pytest.raises(DeviceError, match=r"cuda:0 is out of memory: 4\.00 GB more were asked for"):
        memory.empty(10**9, "cuda:0")
