"""Measures the rounding errors that documentation pages quote.

python bench/errors.py blocks   # int8 and int4 rows: relative error and bytes, by how many elements share a scale
python bench/errors.py flower   # the mean of 100 models in fp16 and bf16, by Flower and by fastagg: error in ulp
python bench/errors.py drift    # ACE's mean and a plain fp32 mean after many arrivals: error in ulp
"""

from __future__ import annotations

import sys

import checkout  # noqa: F401
import numpy as np
import torch
from torch import Tensor, nn

import fastagg

SIZE, CLIENTS, ARRIVALS = 1_000_000, 50, 5000  # for drift()


def blocks() -> None:
    """Round normal numbers, Student's t with 3 degrees of freedom, and a gradient with layers of unlike scale."""
    torch.manual_seed(0)
    tails = torch.distributions.StudentT(3.0).sample
    data = {"Gaussian": torch.randn(1 << 20), "heavy tails": tails((1 << 20,))}
    model = nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
    samples, labels = torch.randn(50, 784).double(), torch.randint(0, 10, (50,))
    nn.functional.cross_entropy(model.double()(samples), labels).backward()  # double: no digit depends on the machine
    data["a gradient"] = torch.cat([p.grad.reshape(-1) for p in model.parameters() if p.grad is not None]).float()
    print("| levels | block | bytes per element | " + " | ".join(data) + " |\n|---|---|---|" + "---|" * len(data))
    for levels, bits in ((127, 8), (7, 4)):
        for block in (64, 128, 256, 512):
            errors = " | ".join(f"{rounded(values, block, levels):.2%}" for values in data.values())
            print(f"| {2 * levels + 1} | {block} | {bits / 8 + 4 / block:.4f} | {errors} |")


def rounded(values: Tensor, block: int, levels: int) -> float:
    """Return the relative error (root mean square) of unbiased rounding with one scale for ``block`` elements."""
    rows = values[: values.numel() // block * block].view(-1, block)
    scale = rows.abs().amax(dim=1, keepdim=True).clamp_min(1e-30) / levels
    stored = torch.floor(rows / scale + torch.rand_like(rows)) * scale
    return float((stored - rows).norm() / rows.norm())


def flower() -> None:
    """Compare means with float64. Errors are in units of the last place (ulp) of the model's own type."""
    from cases import servers

    from fastagg.integrations.flower import read

    for dtype in (torch.float16, torch.bfloat16):
        start = {"w": (100 + torch.randn(20_000, generator=torch.Generator().manual_seed(7))).to(dtype)}
        draws = (torch.randn(20_000, generator=torch.Generator().manual_seed(client)) for client in range(100))
        sent = [{"w": start["w"] + (0.5 * noise).to(dtype)} for noise in draws]
        for whose in ("Flower", "fastagg"):
            rounds = servers.Rounds(servers.flower("FedAvg", whose), start, sent)
            weights = torch.tensor([reply["metrics"]["num-examples"] for reply in rounds.replies], dtype=torch.float64)
            exact = (torch.stack([one["w"].double() for one in sent]) * weights[:, None]).sum(0) / weights.sum()
            try:
                rounds.prepare()
                rounds.aggregate()
            except Exception as error:  # the error that Flower's users would see
                print(f"{dtype}, {whose}: fails: {type(error).__name__}: {error}")
                continue
            place = 2.0 ** torch.floor(torch.log2(exact.abs())) * torch.finfo(dtype).eps
            off = (read(rounds.model)["w"].double() - exact).abs() / place
            print(f"{dtype}, {whose}: {off.max():.2f} (mean {off.mean():.2f})")


def drift() -> None:
    """Clients that agree are the hardest case, because the sum is n times a row."""
    print(f"d = {SIZE:,}, n = {CLIENTS}, {ARRIVALS:,} arrivals; gradients 1 + N(0, 0.1)\n")
    print("| format | error of the mean, ulp | plain fp32 mean, ulp |\n|---|---|---|")
    draw = torch.Generator().manual_seed(0)
    pool = [torch.randn(SIZE, generator=draw).mul_(0.1).add_(1.0) for _ in range(7)]
    for format in ("fp32", "int8"):
        start = torch.zeros(SIZE)
        server = fastagg.ACE(start, lr=1e-6, num_clients=CLIENTS, cache=format, warmup="partial")
        cache = server._running.extension.state.cache
        plain, held = torch.zeros(SIZE), {client: torch.zeros(SIZE) for client in range(CLIENTS)}
        for turn in range(ARRIVALS):
            client = turn * 7919 % CLIENTS
            server.dispatch(client)
            server.receive(client, pool[turn % 7])
            fresh = fastagg.ops.read_row(cache, client).float()
            plain += (fresh - held[client]) / CLIENTS
            held[client] = fresh
        exact = sum(row.double() for row in held.values()) / CLIENTS
        ulp = float(np.spacing(np.float32(max(float(row.abs().max()) for row in held.values()))))
        means = (server.state_dict(copy=False)["direction"]["sum"].double() / CLIENTS, plain.double())
        errors = (float((mean - exact).abs().max()) / ulp for mean in means)
        print(f"| {format} | " + " | ".join(f"{error:.2f}" for error in errors) + " |", flush=True)


if __name__ == "__main__":
    {"blocks": blocks, "flower": flower, "drift": drift}[sys.argv[1]]()
