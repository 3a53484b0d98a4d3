"""LoRA of a small language model on programs, one module of Python's library for each client.

The base is trained on another text before: ``python reproduction/lora.py TEXT base.pt``. Clients train and send its
adapters alone.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from shared import Text
from torch import Tensor, nn
from torch.nn import functional as F
from transformer import TrainableOnly

from fastagg.sim.data.federated import FederatedData, Samples

LENGTH, WIDTH, HEADS, LAYERS = 64, 96, 4, 2


class Adapted(nn.Module):
    """A linear layer that is frozen, and what it learns: the product of two thin ones, the last of them zero at
    first."""

    def __init__(self, of: nn.Linear, rank: int) -> None:
        super().__init__()
        self.of = of
        self.down, self.up = nn.Linear(of.in_features, rank, bias=False), nn.Linear(rank, of.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.of(x) + self.up(self.down(x))
        return found


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        split = [one.unflatten(-1, (HEADS, -1)).transpose(1, 2) for one in self.qkv(self.before(x)).chunk(3, -1)]
        x = x + self.out(F.scaled_dot_product_attention(*split, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.between(x))))


class Writer(nn.Module):
    """Bytes [batch, length] to logits [batch, length, 128] of the next ones."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes, self.places = nn.Embedding(128, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.Sequential(*[Block() for _ in range(LAYERS)])
        self.last, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 128)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.head(self.last(self.blocks(self.bytes(x) + self.places.weight)))
        return found


def adapters(shape: Sequence[int], classes: int, pretrained: str, rank: int = 8) -> nn.Module:
    """Return the base of the file, of which adapters of the blocks' four matrices train."""
    model = Writer()
    model.load_state_dict(torch.load(pretrained, weights_only=True))
    model.requires_grad_(False)
    for block in model.blocks:
        for name in ("qkv", "out", "up", "down"):
            setattr(block, name, Adapted(getattr(block, name), rank))
    return TrainableOnly(model)


def modules(clients: int, seed: int) -> FederatedData:
    """Return the largest modules of Python's library, cut into windows; each one's last tenth is for the test."""
    paths = sorted(Path(os.__file__).parent.glob("*.py"), key=lambda path: path.stat().st_size)
    cut = [windows(path.read_bytes()) for path in paths[-clients:]]
    last = [len(one) - len(one) // 10 for one in cut]
    tests = [one.part(torch.arange(start, len(one))) for one, start in zip(cut, last, strict=True)]
    test = Samples(torch.cat([one.x for one in tests]), torch.cat([one.y for one in tests]))
    train = [one.part(torch.arange(start)) for one, start in zip(cut, last, strict=True)]
    return FederatedData(train, test.part(torch.arange(0, len(test), 4)), 128, text=Text(128), score=score)


def windows(data: bytes) -> Samples:
    text = torch.tensor([byte for byte in data if byte < 128])
    cut = text[: (len(text) - 1) // LENGTH * LENGTH + 1].unfold(0, LENGTH + 1, LENGTH)
    return Samples(cut[:, :-1].int(), cut[:, 1:])


def score(model: nn.Module, test: Samples) -> tuple[float, float]:
    """The share of next bytes that are right, and the mean cross-entropy."""
    right = loss = 0.0
    for x, y in zip(test.x.split(256), test.y.split(256), strict=True):
        logits = model(x)
        right += float((logits.argmax(-1) == y).sum())
        loss += float(F.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="sum"))
    return right / test.y.numel(), loss / test.y.numel()


def main(text: str, out: str, steps: int = 1500) -> None:
    torch.manual_seed(0)
    model, samples = Writer(), windows(Path(text).read_bytes())
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(steps):
        batch = samples.part(torch.randint(len(samples), (16,)))
        loss = F.cross_entropy(model(batch.x).flatten(0, 1), batch.y.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 100 == 99:
            print(f"step {step + 1}, loss {loss.item():.2f}", flush=True)
    torch.save(model.state_dict(), out)


if __name__ == "__main__":
    main(*sys.argv[1:3])
