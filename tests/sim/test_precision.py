"""Training in bf16 and with the layout channels_last, as the papers' own sizes are run on a GPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from fastagg.sim import run


class Seen:
    """A model's factory. It notes how convolutions are called in training."""

    def __init__(self) -> None:
        self.layouts: set[bool] = set()
        self.types: set[torch.dtype] = set()

    def __call__(self, shape: Any, classes: int) -> nn.Module:
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Conv2d(shape[0], 8, 3, padding=1), nn.GroupNorm(2, 8), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1),
            nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, classes),
        )  # fmt: skip
        model[3].register_forward_hook(self.note)
        return model

    def note(self, layer: nn.Module, inputs: Any, output: torch.Tensor) -> None:
        if layer.training:
            assert isinstance(layer, nn.Conv2d)
            self.layouts.add(layer.weight.is_contiguous(memory_format=torch.channels_last))
            self.types.add(output.dtype)


@pytest.fixture
def trained(tiny):
    """Return what a run with these settings of `run` noted, and its last row."""

    def act(**settings: bool) -> tuple[Seen, Any]:
        seen = Seen()
        changes = {"run.uploads": 60, "client.lr": 0.2, "run.fused": False}
        changes |= {f"run.{name}": value for name, value in settings.items()}
        return seen, run(tiny(changes), model=seen)

    return act


def test_bf16_is_of_the_forward_pass_and_channels_last_is_kept_from_the_server_to_the_clients(trained):
    plain, exact = trained()
    assert plain.types == {torch.float32} and plain.layouts == {False}
    for autocast, last in ((True, False), (False, True), (True, True)):  # both as on a GPU
        seen, other = trained(autocast=autocast, channels_last=last)
        assert seen.types == {torch.bfloat16 if autocast else torch.float32} and seen.layouts == {last}
        assert other.rows[-1].loss < other.rows[0].loss, "it learns"
        assert other.rows[-1].loss == pytest.approx(exact.rows[-1].loss, rel=0.05 if autocast else 1e-4)
        assert (other.rows[-1].loss != exact.rows[-1].loss) or not autocast


def test_bf16_is_trained_by_torch_and_says_so(tiny):
    result = run(tiny({"run.uploads": 6, "run.autocast": True}))
    assert result.summary["fused"] == "run.autocast is on"
