"""The HTTP server of docs/integrations/own.md on loopback, per update: it and four clients are processes.

A client fetches a model in fp32 and posts an update in fp16, repeatedly. It does not train.
"""

from __future__ import annotations

import multiprocessing
import re
from functools import partial
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import numpy as np
from problem import Built, Candidate, Case, Problem, Skip

from fastagg.timing import Stopwatch

PAGE = Path(__file__).resolve().parents[2] / "docs" / "integrations" / "own.md"
CLIENTS, SECONDS = 4, 10.0
LAYERS = {650: (64, 10), 11_208_000: (1400, 8000)}  # of a linear layer
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


def train(port: int, name: int, size: int, all: Any, done: Any) -> None:
    """Act as a client without training. Tell how many of its updates were taken, in how many seconds."""
    update, count = np.full(size, 1e-4, np.float16).tobytes(), 0
    all.wait(120)  # processes have started
    watch = Stopwatch()
    while watch.total < SECONDS:
        line = HTTPConnection("127.0.0.1", port)
        line.request("GET", f"/client{name}")
        answer = line.getresponse()
        answer.read()
        line = HTTPConnection("127.0.0.1", port)
        line.request("POST", f"/client{name}/{answer.headers['Task']}", body=update)
        count += line.getresponse().status == 200
    done.put((count, watch.total))


def seconds(rule: str, size: int) -> float:
    """Return the seconds per update that reached the model's buffer."""
    context = multiprocessing.get_context("spawn")
    ready, done = context.Queue(), context.Queue()
    server = context.Process(target=serve, args=(rule, LAYERS[size], ready), daemon=True)
    server.start()
    try:
        port, all = ready.get(timeout=120), context.Barrier(CLIENTS)
        clients = [
            context.Process(target=train, args=(port, name, size, all, done), daemon=True) for name in range(CLIENTS)
        ]
        for client in clients:
            client.start()
        found = [done.get(timeout=120) for _ in clients]
        return max(took for _, took in found) / sum(count for count, _ in found)
    finally:
        server.terminate()
        server.join()


def _built(problem: Problem, rule: str) -> Built:
    if not PAGE.is_file():
        raise Skip("its code is a page of the repository's docs/")
    return Built(lambda: seconds(rule, problem.size), None, warm=0)


CASES = [
    Case(
        f"HTTP, {CLIENTS} clients, {size:,} parameters", 0,
        lambda: [Candidate("fastagg", partial(_built, rule="FedBuff"), 0),
                 Candidate("fastagg, FADAS", partial(_built, rule="FADAS"), 0)],
        "processes", (size,), devices=("cpu",), told=True,
    )
    for size in LAYERS
]  # fmt: skip
