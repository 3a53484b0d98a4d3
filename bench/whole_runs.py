"""Whole runs of the simulator beside a plain torch loop that does the same: python bench/whole_runs.py

The plain loop keeps the same clients, delays, arrivals and batches, trains each client by itself with torch.optim.SGD
and autograd, and adds deltas up as FedBuff does: what one writes without a package. Setup, dispatch, training, server
and the tests of the model are timed, on one thread, the two by turns; printed are client updates a second and the ratio
of pairs.
"""

from __future__ import annotations

import argparse
import heapq
import statistics
import sys
import time

import torch
from torch import nn

from fastagg.sim import build, config
from fastagg.sim.simulation import run

MODELS = (
    ("MLP, 64", {"name": "mlp", "widths": [64]}),
    ("CNN, 16 and 32 channels", {"name": "cnn", "widths": [16, 32]}),
    ("CNN, 8, 16 and 32 channels, GroupNorm", {"name": "cnn", "widths": [8, 16, 32], "norm": "group"}),
)


def recipe(model: dict[str, object], uploads: int) -> config.Config:
    """Twenty-five of fifty clients in flight, two epochs of batches of 50 on digits, a buffer of 5."""
    values = {
        "name": "whole",
        "algorithm": {"name": "FedBuff", "buffer_size": 5},
        "data": {"name": "digits", "clients": 50},
        "model": model,
        "client": {"lr": 0.1, "epochs": 2},
        "delay": {"name": "three-class"},
        "participation": {"rule": "concurrency", "concurrency": 25},
        "run": {"uploads": uploads, "evaluate_every": 10},
    }
    return config.from_dict(values, "bench")


def plain(given: config.Config) -> float:
    """The same run as anybody would write it; the test accuracy at the end."""
    data = build.build_data(given.data, given.seed)
    module = build.build_model(given.model, data, given.seed)
    loss, size = nn.CrossEntropyLoss(), given.client.batch_size
    generator = torch.Generator().manual_seed(given.seed)
    ranges = ((1.0, 2.0), (3.0, 5.0), (50.0, 80.0))
    kinds = torch.randint(3, (len(data.clients),), generator=generator).tolist()
    state = {name: value.clone() for name, value in module.state_dict().items()}
    flying: list[tuple[float, int, int, dict[str, torch.Tensor]]] = []
    now, sent = 0.0, 0

    def dispatch(client: int) -> None:
        nonlocal sent
        low, high = ranges[kinds[client]]
        due = now + low + (high - low) * float(torch.rand(1, generator=generator))
        heapq.heappush(flying, (due, sent, client, state))
        sent += 1

    order = torch.randperm(len(data.clients), generator=generator).tolist()
    idle = order[25:]
    for client in order[:25]:
        dispatch(client)
    buffer: list[dict[str, torch.Tensor]] = []
    accuracy, version = 0.0, 0
    for _ in range(given.run.uploads or 0):
        now, _, client, start = heapq.heappop(flying)
        samples = data.clients[client]
        module.load_state_dict(start)
        module.train()
        optimizer = torch.optim.SGD(module.parameters(), lr=given.client.lr)
        for _ in range(given.client.epochs or 1):
            for batch in torch.randperm(len(samples), generator=generator).split(size):
                optimizer.zero_grad()
                loss(module(samples.x[batch]), samples.y[batch]).backward()
                optimizer.step()
        buffer.append({name: value - start[name] for name, value in module.state_dict().items()})
        if len(buffer) == 5:
            state = {
                name: value + sum(delta[name] for delta in buffer) / 5
                if value.is_floating_point()
                else value + buffer[-1][name]
                for name, value in state.items()
            }
            buffer, version = [], version + 1
            if version % given.run.evaluate_every == 0:
                module.load_state_dict(state)
                module.eval()
                with torch.inference_mode():
                    accuracy = float((module(data.test.x).argmax(1) == data.test.y).float().mean())
        idle.append(client)
        dispatch(idle.pop(int(torch.randint(len(idle), (1,), generator=generator))))
    return accuracy


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--uploads", type=int, default=1000)
    parser.add_argument("--cpu", action="store_true", help="seconds of the core, for a machine that others use as well")
    given = parser.parse_args()
    torch.set_num_threads(1)
    clock = time.thread_time if given.cpu else time.perf_counter
    print(
        "| model | plain loop, updates/s | simulator, updates/s | ratio | server's share |\n|---|---:|---:|---:|---:|"
    )
    for label, model in MODELS:
        one = recipe(model, given.uploads)
        plain(recipe(model, 50)), run(recipe(model, 50))
        seconds: list[tuple[float, float]] = []
        share = 0.0
        for _ in range(given.rounds):
            start = clock()
            plain(one)
            middle = clock()
            share = run(one).summary["server_share"]
            seconds.append((middle - start, clock() - middle))
        rates = [given.uploads / statistics.median(times) for times in zip(*seconds, strict=True)]
        ratio = statistics.median(a / b for a, b in seconds)
        print(f"| {label} | {rates[0]:.0f} | {rates[1]:.0f} | {ratio:.1f} | {share:.0%} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
