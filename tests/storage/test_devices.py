"""Which devices are accepted, and the errors for the others."""

from __future__ import annotations

import types
from typing import Any

import pytest
import torch

import fastagg
from fastagg.errors import ConfigError, DeviceError
from fastagg.storage import devices, memory

needs_none = pytest.mark.skipif(torch.cuda.is_available(), reason="plays a machine with a GPU that has none")


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """torch finds one GPU."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    return monkeypatch


def native(words: str, capability: tuple[int, int], built: str = "80,90,100") -> types.SimpleNamespace:
    """A build for some cards, on a machine whose driver says no, or nothing against it."""
    cuda = types.SimpleNamespace(compute_capability=lambda device: capability)
    return types.SimpleNamespace(
        cuda_architectures=built, cuda_ptx="80", cuda_answer=lambda: (int(not words), 13000, words), cuda=cuda
    )


@needs_none
def test_no_gpu() -> None:
    with pytest.raises(ConfigError, match=r"no CUDA device here \(.*\); use device='cpu'"):
        fastagg.FedBuff(torch.zeros(4), device="cuda")


@needs_none
def test_an_index_that_is_not_there(gpu: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="there are 1 CUDA devices"):
        devices.choose("cuda:7", torch.zeros(1))


@needs_none
def test_an_old_driver(gpu: pytest.MonkeyPatch) -> None:
    gpu.setattr(devices, "native", native("the driver supports CUDA 12.4 and this build needs 13.0", (9, 0)))
    with pytest.raises(DeviceError, match=r"cuda:0: torch finds it.*supports CUDA 12\.4 and this build needs 13\.0"):
        devices.choose("cuda", torch.zeros(1))


@needs_none
def test_a_card_without_code(gpu: pytest.MonkeyPatch) -> None:
    gpu.setattr(devices, "native", native("", (7, 5)))
    with pytest.raises(DeviceError, match=r"compute capability 7\.5.*FASTAGG_CUDA_ARCHITECTURES=75"):
        devices.choose("cuda", torch.zeros(1))


@needs_none
def test_a_build_without_kernels(gpu: pytest.MonkeyPatch) -> None:
    without = types.SimpleNamespace(cuda_architectures="", cuda_skipped="no CUDA device was found")
    gpu.setattr(devices, "native", without)
    with pytest.raises(DeviceError, match=r"\(no CUDA device was found\); .*FASTAGG_CUDA=ON .*or use .*'cpu'"):
        devices.choose("cuda", torch.zeros(1))


@needs_none
def test_why_torch_finds_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch finds no device, and fastagg's own runtime tells why."""
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(devices, "native", native("there is no NVIDIA driver here: install one", (9, 0)))
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


@pytest.mark.parametrize("device", ["meta", "mps", "xpu:1", torch.device("vulkan")])
def test_devices_that_nobody_wrote_kernels_for(device: str | torch.device) -> None:
    with pytest.raises(DeviceError, match=r"kernels for CPUs and CUDA devices alone.*use device='cpu'"):
        fastagg.FedBuff(torch.zeros(4), device=device)


@pytest.mark.parametrize("device", ["gpu", "cuda:x", 3.5])
def test_what_is_no_device(device: Any) -> None:
    with pytest.raises(ConfigError, match=r"^device: "):
        fastagg.FedBuff(torch.zeros(4), device=device)


def test_out_of_memory_is_a_named_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*sizes: int, **given: object) -> torch.Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 4.00 GiB")

    monkeypatch.setattr(torch, "empty", full)
    with pytest.raises(DeviceError, match=r"cuda:0 is out of memory: 4\.00 GB more were asked for"):
        memory.empty(10**9, "cuda:0")
