"""Where a run's data, training and server lie."""

import pytest
import torch
from cifar import crop_and_flip

from fastagg.errors import ConfigError
from fastagg.sim.data.federated import FederatedData, Samples
from fastagg.sim.one.build import build_device
from fastagg.sim.one.run import run
from fastagg.sim.seeds import generator

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def test_a_device_that_is_not_here_is_a_config_error():
    for name in ("cuda:99", "nowhere", ""):
        with pytest.raises(ConfigError, match=r"run\.device"):
            build_device(name)
    assert build_device("cpu") == torch.device("cpu")


def test_data_moves_whole():
    samples = Samples(torch.zeros(3, 2), torch.zeros(3, dtype=torch.int64), crop_and_flip)
    data = FederatedData([samples, samples], samples, classes=2)
    moved = data.to(torch.device("meta"))
    parts = [*moved.clients, moved.test]
    assert {tensor.device.type for part in parts for tensor in (part.x, part.y)} == {"meta"}
    assert all(part.augment is crop_and_flip for part in parts)


@needs_gpu
@pytest.mark.cuda
def test_a_run_on_a_gpu_is_the_run_on_the_cpu_up_to_rounding(tiny):
    here, there = (run(tiny({"run.device": device, "run.uploads": 12})) for device in ("cpu", "cuda"))
    for a, b in zip(here.rows, there.rows, strict=True):
        assert (a.version, a.uploads, a.time) == (b.version, b.uploads, b.time)
        assert a.loss == pytest.approx(b.loss, rel=1e-3)


@needs_gpu
@pytest.mark.cuda
def test_crops_on_a_gpu_are_those_on_the_cpu():
    x = torch.randn(8, 3, 32, 32)
    here, there = (crop_and_flip(x.to(device), generator(0, "a")) for device in ("cpu", "cuda"))
    assert torch.allclose(here, there.cpu(), atol=1e-6)
