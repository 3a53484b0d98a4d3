"""A client of server.py: it trains softmax regression on its part of the digits.

FASTAGG_TOKEN=secret python client.py ann --part 0 --parts 2 --seconds 10

It needs torch and scikit-learn, and not fastagg.
"""

from __future__ import annotations

import argparse
import os
import time
import urllib.error
import urllib.request
from collections.abc import Mapping

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

LATER = 429, 503  # the server is busy or its disk is full: the same request again
AGAIN = 404, 409, 410  # this task does not count any more: another one
TESTED = 297  # of 1,797 images


def call(url: str, body: bytes | None = None) -> tuple[int, Mapping[str, str], bytes]:
    """Send a request, again and again if there is no answer; return status, headers and body.

    An update may be sent twice: it counts once.
    """
    token = os.environ["FASTAGG_TOKEN"]
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/x-float32"}
    while True:
        try:
            with urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=60) as answer:
                return answer.status, answer.headers, answer.read()
        except urllib.error.HTTPError as error:
            if error.code not in LATER:
                return error.code, error.headers, error.read()
        except OSError:  # the server is not there, or it starts again
            pass
        time.sleep(1)


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
    model, counted, last, until = nn.Linear(64, 10), 0, "", time.monotonic() + given.seconds
    while time.monotonic() < until:
        status, headers, body = call(f"{given.server}/task/{given.name}")
        if status != 200:
            raise SystemExit(f"{status}: {body.decode()}")
        if headers["X-Version"] == last:  # it has answered this version already
            time.sleep(0.1)
            continue
        sent = torch.frombuffer(bytearray(body), dtype=torch.float32)  # [d], little endian
        nn.utils.vector_to_parameters(sent.clone(), model.parameters())
        right = (model(x[-TESTED:]).argmax(1) == y[-TESTED:]).float().mean()
        print(f"{given.name}: version {headers['X-Version']} has accuracy {right:.0%}", flush=True)
        train(model, x[mine], y[mine])
        update = nn.utils.parameters_to_vector(model.parameters()).detach() - sent
        answer = f"{given.server}/update/{given.name}/{headers['X-Version']}?incarnation={headers['X-Incarnation']}"
        status, _, body = call(answer, update.numpy().tobytes())
        if status == 200:
            counted, last = counted + 1, headers["X-Version"]
        elif status not in AGAIN:
            raise SystemExit(f"{status}: {body.decode()}")
    print(f"{given.name}: {counted} updates counted")


if __name__ == "__main__":
    main()
