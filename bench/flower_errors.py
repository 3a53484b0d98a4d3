"""The largest error of a mean of 100 models in fp16 and bf16, of Flower's FedAvg and fastagg's: bench/flower_errors.py

In units of the last place of the model's own type, compared with float64."""

from __future__ import annotations

import checkout  # noqa: F401
import torch
from cases.servers import Rounds, flower

from fastagg.integrations.flower import read


def errors(dtype: torch.dtype, whose: str) -> str:
    """Return the largest and the mean error."""
    start = {"w": (100 + torch.randn(20_000, generator=torch.Generator().manual_seed(7))).to(dtype)}
    draws = (torch.randn(20_000, generator=torch.Generator().manual_seed(client)) for client in range(100))
    given = [{"w": start["w"] + (0.5 * noise).to(dtype)} for noise in draws]
    rounds = Rounds(flower("FedAvg", whose), start, given)
    weights = torch.tensor([reply["metrics"]["num-examples"] for reply in rounds.replies], dtype=torch.float64)
    exact = (torch.stack([one["w"].double() for one in given]) * weights[:, None]).sum(0) / weights.sum()
    try:
        rounds.prepare()
        rounds.aggregate()
    except Exception as error:  # the error that Flower's users would see
        return f"fails: {type(error).__name__}: {error}"
    place = 2.0 ** torch.floor(torch.log2(exact.abs())) * torch.finfo(dtype).eps
    off = (read(rounds.model)["w"].double() - exact).abs() / place
    return f"{off.max():.2f} (mean {off.mean():.2f})"


if __name__ == "__main__":
    for dtype in (torch.float16, torch.bfloat16):
        print(f"{dtype}: Flower {errors(dtype, 'Flower')}, fastagg {errors(dtype, 'fastagg')}")
