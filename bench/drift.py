"""Measures whether a client cache's mean drifts: python bench/drift.py --size 11200000 --clients 50 --arrivals 5000

It runs ACE for many arrivals and compares the mean that ACE steps along with the exact mean of the stored rows, in ulp
of the largest row magnitude. For comparison it follows a plain fp32 running mean of the same rows on a slice.
"""

from __future__ import annotations

import argparse
import sys

import checkout  # noqa: F401
import numpy as np
import torch

import fastagg
from fastagg.timing import Stopwatch

SLICE = 4096  # coordinates for which the plain running mean is computed, too


def main() -> int:
    """Print one Markdown row per format."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=11_200_000)
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--arrivals", type=int, default=5000)
    parser.add_argument("--formats", nargs="+", default=["fp32", "int8"])
    given = parser.parse_args()
    print(f"d = {given.size:,}, n = {given.clients}, {given.arrivals:,} arrivals; gradients 1 + N(0, 0.1)\n")
    print("| format | error of the mean, ulp | plain fp32 mean, ulp | ms an arrival | cache, GB |")
    print("|---|---|---|---|---|")
    for format in given.formats:
        print(row(given.size, given.clients, given.arrivals, format), flush=True)
    return 0


def row(size: int, clients: int, arrivals: int, format: str) -> str:
    """Measure one format and return its row of the table."""
    server = fastagg.ACE(torch.zeros(size), lr=1e-6, num_clients=clients, cache=format, warmup="partial")
    generator = torch.Generator().manual_seed(0)
    # Clients that agree are the hardest case, because the sum is n times a row.
    pool = [torch.randn(size, generator=generator).mul_(0.1).add_(1.0) for _ in range(7)]
    state = server._running.extension.state
    plain, held = torch.zeros(SLICE), [torch.zeros(SLICE) for _ in range(clients)]
    watch = Stopwatch(["receive"])
    for turn in range(arrivals):
        client = turn * 7919 % clients
        server.dispatch(client)
        with watch.timing("receive"):
            server.receive(client, pool[turn % 7])
        stored = state.cache.data[client, : SLICE * 4].view(torch.float32) if format == "fp32" else None
        fresh = stored if stored is not None else _decoded(state.cache, client)
        plain += (fresh - held[client]) / clients
        held[client] = fresh.clone()
    rows, largest = torch.zeros(size, dtype=torch.float64), 0.0
    for client in {turn * 7919 % clients for turn in range(arrivals)}:
        stored = state.cache.row(client)
        rows += stored
        largest = max(largest, float(stored.abs().max()))
    exact = rows / clients
    mean = state.sum.double() / clients
    ulp = float(np.spacing(np.float32(largest)))
    error = float((mean - exact).abs().max()) / ulp
    lost = float((plain.double() - exact[:SLICE]).abs().max()) / ulp
    took, kept = 1e3 * watch.seconds["receive"] / arrivals, state.cache.nbytes() / 1e9
    return f"| {format} | {error:.2f} | {lost:.1f} | {took:.1f} | {kept:.2f} |"


def _decoded(cache: fastagg.ClientCache, client: int) -> torch.Tensor:
    """Return the first elements of a row."""
    blocks = SLICE // 256
    row_bytes = cache.row_bytes * SLICE // (-(-cache.size // 256) * 256)
    return fastagg.reference.decode(cache.data[client, :row_bytes], cache.scales[client, :blocks], cache.format, SLICE)


if __name__ == "__main__":
    sys.exit(main())
