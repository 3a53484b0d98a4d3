"""Which devices are taken, and what is said of those that are not."""

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


def native(count: int, capability: tuple[int, int], built: str = "80,90,100") -> types.SimpleNamespace:
    cuda = types.SimpleNamespace(compute_capability=lambda device: capability)
    return types.SimpleNamespace(
        cuda_architectures=built, cuda_version=13000, cuda_device_count=lambda: count, cuda=cuda
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
    gpu.setattr(devices, "native", native(0, (9, 0)))
    with pytest.raises(DeviceError, match=r"the driver is older than this build's CUDA 13\.0; update it"):
        devices.choose("cuda", torch.zeros(1))


@needs_none
def test_a_card_without_code(gpu: pytest.MonkeyPatch) -> None:
    gpu.setattr(devices, "native", native(1, (7, 5)))
    with pytest.raises(DeviceError, match=r"compute capability 7\.5.*FASTAGG_CUDA_ARCHITECTURES=75"):
        devices.choose("cuda", torch.zeros(1))


@needs_none
def test_a_build_without_kernels(gpu: pytest.MonkeyPatch) -> None:
    gpu.setattr(devices, "native", native(0, (9, 0), built=""))
    with pytest.raises(DeviceError, match=r"cuda:0: .*no CUDA kernels; install it where nvcc is found, or use .*'cpu'"):
        devices.choose("cuda", torch.zeros(1))


@pytest.mark.parametrize("device", ["meta", "mps", "xpu:1", torch.device("vulkan")])
def test_devices_that_nobody_wrote_kernels_for(device: str | torch.device) -> None:
    with pytest.raises(DeviceError, match=r"kernels for CPUs and CUDA devices alone.*use device='cpu'"):
        fastagg.FedBuff(torch.zeros(4), device=device)


@pytest.mark.parametrize("device", ["gpu", "cuda:x", 3.5])
def test_what_is_no_device(device: Any) -> None:
    with pytest.raises(ConfigError, match=r"^device: "):
        fastagg.FedBuff(torch.zeros(4), device=device)


@pytest.mark.parametrize(
    ("card", "runs"),
    [((7, 5), False), ((8, 0), True), ((8, 9), True), ((9, 0), True), ((10, 0), True), ((12, 0), True)],
)
def test_which_cards_have_code(card: tuple[int, int], runs: bool) -> None:
    assert devices._has_code(*card, [80, 90, 100]) is runs


def test_out_of_memory_is_a_named_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*sizes: int, **given: object) -> torch.Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 4.00 GiB")

    monkeypatch.setattr(torch, "empty", full)
    with pytest.raises(DeviceError, match=r"cuda:0 is out of memory: 4\.00 GB more were asked for"):
        memory.empty(10**9, "cuda:0")
