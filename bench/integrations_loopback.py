"""Measures the twenty-line HTTP server of docs/integrations/own.md over loopback: updates per second.

The server and every client are processes. A client fetches a model and posts an update in fp16, repeatedly. It does not
train.
"""

from __future__ import annotations

import http.client
import multiprocessing
import re
import time
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from integrations_common import stamped
from results import Row
from timing import Quantiles

PAGE = Path(__file__).resolve().parents[1] / "docs" / "integrations" / "own.md"
CLIENTS = 4
SECONDS = 10.0
SIZES = ((64, 10), (1400, 8000))  # of a linear layer: 650 and 11.2 M parameters
LINE = "server = fastagg.FedBuff(torch.nn.Linear(64, 10), buffer_size=2)"


def serve(rule: str, shape: tuple[int, int], ready: Any) -> None:
    """Run the page's own code with another model."""
    code = next(block for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S) if LINE in block)
    line = f"server = fastagg.{rule}(torch.nn.Linear{shape}, buffer_size=10)"
    scope: dict[str, Any] = {}
    exec(compile(code.replace(LINE, line), str(PAGE), "exec"), scope)
    scope["Handler"].log_message = lambda *_: None
    ready.put(scope["http"].server_port)
    scope["http"].serve_forever()


def train(port: int, name: int, size: int, begin: float, done: Any) -> None:
    """Act as a client without training. Return how many of its updates were taken, and when the last one was."""
    update, count = np.full(size, 1e-4, np.float16).tobytes(), 0
    time.sleep(max(0.0, begin - time.time()))
    while time.time() < begin + SECONDS:
        line = http.client.HTTPConnection("127.0.0.1", port)
        line.request("GET", f"/client{name}")
        answer = line.getresponse()
        answer.read()
        line = http.client.HTTPConnection("127.0.0.1", port)
        line.request("POST", f"/client{name}/{answer.headers['Version']}", body=update)
        count += line.getresponse().status == 200
    done.put((count, time.time()))


def rate(rule: str, shape: tuple[int, int]) -> float:
    """Return the updates per second that reached the model's buffer."""
    context = multiprocessing.get_context("spawn")
    ready, done = context.Queue(), context.Queue()
    server = context.Process(target=serve, args=(rule, shape, ready), daemon=True)
    server.start()
    try:
        port, begin = ready.get(timeout=120), time.time() + 5.0  # when all processes have started
        size = shape[0] * shape[1] + shape[1]
        given = [(port, name, size, begin, done) for name in range(CLIENTS)]
        clients = [context.Process(target=train, args=one, daemon=True) for one in given]
        for client in clients:
            client.start()
        found = [done.get(timeout=120) for _ in clients]
        return sum(count for count, _ in found) / (max(end for _, end in found) - begin)
    finally:
        server.terminate()
        server.join()


def report(rounds: int) -> list[Row]:
    """Measure updates per second. The model is sent in fp32, and updates come in fp16."""
    rows = []
    for (rows_, columns), rule in product(SIZES, ("FedBuff", "FADAS")):
        found = Quantiles.of([rate(rule, (rows_, columns)) for _ in range(rounds)])
        size = rows_ * columns + columns
        rows.append(Row(f"server, HTTP, {CLIENTS} processes", rule, size, 0, found.p50, found.p20, found.p80, "1/s"))
    return stamped(rows)
