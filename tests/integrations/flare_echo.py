"""FedEcho's data on the server for tests: digits without labels, every second one of the test images."""

from model import Digits

import fastagg
from fastagg.sim.data import digits


def distillation() -> fastagg.Distillation:
    """The function that FLARE's configuration names."""
    images = digits.load(4, alpha=10.0, seed=0).test.x[::2]
    return fastagg.Distillation(Digits(), images, lr=1e-3, steps=5, batch_size=64)
