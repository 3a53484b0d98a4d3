"""A client of server.py: it trains softmax regression on its part of the digits.

FASTAGG_TOKEN=secret python client.py ann --part 0 --parts 2 --seconds 10

It needs torch, scikit-learn and fastagg.
"""

from __future__ import annotations

import argparse
import os
import time

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import fastagg

TESTED = 297  # of 1,797 images


def train(model: nn.Module, x: Tensor, y: Tensor) -> None:
    """Do 20 steps of gradient descent."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(20):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()


def main() -> None:
    """Work for the server for some seconds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name")
    parser.add_argument("--part", type=int, default=0)
    parser.add_argument("--parts", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--server", default="http://127.0.0.1:8000")
    given = parser.parse_args()
    x, y = (torch.tensor(part) for part in load_digits(return_X_y=True))
    x = x.float() / 16
    mine = slice(given.part, len(x) - TESTED, given.parts)
    client = fastagg.clients.HttpClient(given.server, given.name, os.environ["FASTAGG_TOKEN"])
    model, counted, last = nn.Linear(64, 10), 0, None
    client.task()  # waits until the server is there
    until = time.monotonic() + given.seconds
    while time.monotonic() < until:
        sent = client.task()
        if client.version == last:  # it has answered this version already
            time.sleep(0.1)
            continue
        nn.utils.vector_to_parameters(sent.clone(), model.parameters())
        right = (model(x[-TESTED:]).argmax(1) == y[-TESTED:]).float().mean()
        print(f"{given.name}: version {client.version} has accuracy {right:.0%}", flush=True)
        train(model, x[mine], y[mine])
        try:
            client.send(nn.utils.parameters_to_vector(model.parameters()).detach() - sent)
        except (fastagg.UnknownVersion, fastagg.UnknownClient):  # this task does not count any more: another one
            continue
        counted, last = counted + 1, client.version
    print(f"{given.name}: {counted} updates counted")


if __name__ == "__main__":
    main()
