"""A worker of DiLoCo: it trains a small language model on its share of a text, and sends what has changed.

python worker.py init model.safetensors                  writes the model that the server starts from
python worker.py ann --shard 0 --shards 2 --rounds 20    a worker; FASTAGG_TOKEN has its token, if it needs one

``diloco`` takes any model and any training loop.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

import fastagg

CONTEXT, WIDTH = 16, 64


def diloco(
    model: nn.Module, step: Callable[[], float], url: str, name: str, token: str = "", *, rounds: int = 20,
    local_steps: int = 50, synchronous: bool = False,
) -> None:  # fmt: skip
    """Train with the server's model until so many updates have counted.

    Args:
        model: as the server's: parameters of the same names and shapes.
        step: makes one local step of the model, and returns its loss. Its optimizer keeps its moments between rounds.
        local_steps: H, unless the server says how many.
        synchronous: wait for the others before the next round.
    """
    client = fastagg.clients.HttpClient(url, name, token, names=dict(model.named_parameters()))
    counted = 0
    while counted < rounds:
        start = client.task(newer=synchronous)
        vector_to_parameters(start.clone(), model.parameters())
        losses = [step() for _ in range(client.local_steps or local_steps)]
        delta = parameters_to_vector(model.parameters()).detach() - start
        try:
            client.send(delta)  # again and again, until it is on the server's disk; it counts once
        except (fastagg.UnknownVersion, fastagg.UnknownClient):  # it is too late to count
            continue
        counted += 1
        print(f"{name}: version {client.version}, loss {sum(losses) / len(losses):.3f}", flush=True)


def network() -> nn.Module:
    """A model of the next byte, from the last ones."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Embedding(128, WIDTH), nn.Flatten(), nn.Linear(CONTEXT * WIDTH, 4 * WIDTH), nn.GELU(),
        nn.Linear(4 * WIDTH, 128),
    )  # fmt: skip


def training(model: nn.Module, text: Tensor) -> Callable[[], float]:
    """Return a local step of AdamW on a random batch of the text."""
    inner = torch.optim.AdamW(model.parameters(), lr=2e-3)

    def step() -> float:
        places = torch.randint(len(text) - CONTEXT, (32,))
        x = torch.stack([text[at : at + CONTEXT] for at in places])
        loss = nn.functional.cross_entropy(model(x), text[places + CONTEXT])
        inner.zero_grad()
        loss.backward()
        inner.step()
        return loss.item()

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name")
    parser.add_argument("model", nargs="?")
    parser.add_argument("--server", default="http://127.0.0.1:8000")
    parser.add_argument("--shard", type=int, default=0)
    parser.add_argument("--shards", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--synchronous", action="store_true")
    given = parser.parse_args()
    model = network()
    if given.name == "init":
        return save_file(model.state_dict(), given.model)
    torch.set_num_threads(1)
    torch.manual_seed(given.shard)
    everything = Path(argparse.__file__).read_bytes().decode("ascii", "ignore")  # a text that is everywhere
    text = torch.tensor([ord(letter) for letter in everything]).tensor_split(given.shards)[given.shard]
    diloco(
        model, training(model, text), given.server, given.name, os.environ.get("FASTAGG_TOKEN", ""),
        rounds=given.rounds, synchronous=given.synchronous,
    )  # fmt: skip


if __name__ == "__main__":
    main()
