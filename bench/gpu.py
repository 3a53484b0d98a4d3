"""The CUDA kernels against the card's own copy, eager torch, torch.compile and torch's fused Adam: python bench/gpu.py

Candidates take turns in every round, and a round's ratios are taken within it. Times are the device's own (events), of
launches that wait on the device already, so that the host's time is not in them; it is reported apart. What the L2
cache holds is overwritten before each.
Bytes are counted as README.md's table counts them. Writes gpu.json and gpu.md.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import machine
import torch
from torch import Tensor

import fastagg
from fastagg import ops
from fastagg.storage.cache import ClientCache

Run = Callable[[], object]
DEVICE = torch.device("cuda", 0)
LR, BETAS, EPS = 1e-3, (0.9, 0.99), 1e-8
SLOTS = 4


class Case(NamedTuple):
    """One operation: bytes per parameter, what fastagg does, and its peers; all leave their state changed."""

    bytes: float
    ours: Run
    peers: dict[str, Run]


def vector(d: int) -> Tensor:
    return torch.randn(d, device=DEVICE)


def amsgrad(d: int) -> Case:
    x, g, m, v, w = (vector(d) for _ in range(5))
    v.abs_()
    w.abs_()
    scratch = torch.empty_like(x)

    def eager() -> None:
        m.mul_(BETAS[0]).add_(g, alpha=1 - BETAS[0])
        v.mul_(BETAS[1]).addcmul_(g, g, value=1 - BETAS[1])
        torch.maximum(w, v, out=w)
        torch.sqrt(w, out=scratch).add_(EPS)
        x.addcdiv_(m, scratch, value=LR)

    @torch.compile
    def compiled(x: Tensor, g: Tensor, m: Tensor, v: Tensor, w: Tensor) -> None:
        m.mul_(BETAS[0]).add_(g, alpha=1 - BETAS[0])
        v.mul_(BETAS[1]).addcmul_(g, g, value=1 - BETAS[1])
        w.copy_(torch.maximum(w, v))
        x.add_(LR * m / (w.sqrt() + EPS))

    parameter = torch.nn.Parameter(vector(d))
    parameter.grad = vector(d)
    fused = torch.optim.Adam([parameter], lr=LR, betas=BETAS, eps=EPS, amsgrad=True, fused=True)
    return Case(
        36,
        lambda: ops.amsgrad_(x, g, m, v, w, lr=LR, betas=BETAS, eps=EPS),
        {"eager": eager, "compile": lambda: compiled(x, g, m, v, w), "torch fused Adam": fused.step},
    )


def flush(d: int) -> Case:
    x, g, m, v, w, acc = (vector(d) for _ in range(6))
    v.abs_()
    w.abs_()
    scratch, direction = torch.empty_like(x), torch.empty_like(x)

    def eager() -> None:
        torch.add(acc, g, out=direction).mul_(0.2)
        m.mul_(BETAS[0]).add_(direction, alpha=1 - BETAS[0])
        v.mul_(BETAS[1]).addcmul_(direction, direction, value=1 - BETAS[1])
        torch.maximum(w, v, out=w)
        torch.sqrt(w, out=scratch).add_(EPS)
        x.addcdiv_(m, scratch, value=LR)

    @torch.compile
    def compiled(x: Tensor, g: Tensor, m: Tensor, v: Tensor, w: Tensor, acc: Tensor) -> None:
        direction = (acc + g) * 0.2
        m.mul_(BETAS[0]).add_(direction, alpha=1 - BETAS[0])
        v.mul_(BETAS[1]).addcmul_(direction, direction, value=1 - BETAS[1])
        w.copy_(torch.maximum(w, v))
        x.add_(LR * m / (w.sqrt() + EPS))

    def ours() -> None:
        ops.step_(x, g, optimizer="amsgrad", lr=LR, m=m, v=v, vhat=w, betas=BETAS, eps=EPS, acc=acc, scale=0.2)

    return Case(40, ours, {"eager": eager, "compile": lambda: compiled(x, g, m, v, w, acc)})


def buffer(d: int) -> Case:
    acc, g = vector(d), vector(d)
    return Case(12, lambda: ops.accumulate_(acc, g, 0.5), {"eager": lambda: acc.add_(g, alpha=0.5)})


def inspect(d: int) -> Case:
    g = vector(d)
    return Case(4, lambda: ops.judge(g), {"eager": lambda: (g.isfinite().all(), torch.linalg.vector_norm(g))})


def distances(d: int) -> Case:
    g, x, base = (vector(d) for _ in range(3))
    eager = lambda: (torch.linalg.vector_norm(g), torch.linalg.vector_norm(x - base))  # noqa: E731
    return Case(12, lambda: ops.judge(g, x=x, base=base), {"eager": eager, "compile": torch.compile(eager)})


def ace(format: str, optimizer: str = "sgd") -> Callable[[int], Case]:
    row = {"fp32": 4, "bf16": 2, "int8": 1 + 4 / 256, "int4": 0.5 + 4 / 256}[format]
    moments = len(ops.OPTIMIZERS[optimizer])

    def make(d: int) -> Case:
        x, g = vector(d), vector(d) * 1e-2
        cache, total = ClientCache(d, SLOTS, format, DEVICE), torch.zeros(d, device=DEVICE)
        for slot in range(SLOTS):
            ops.cached_step_(None, vector(d) * 1e-2, cache=cache, write=slot, leaving=0.0, sum=total)
        own = {name: vector(d).abs_() for name in ops.OPTIMIZERS[optimizer]}
        turn = [0]

        def ours() -> None:
            slot = turn[0] = (turn[0] + 1) % SLOTS
            ops.cached_step_(
                x, g, cache=cache, write=slot, read=slot, client=slot, arrival=turn[0], sum=total, sum_scale=1 / SLOTS,
                optimizer=optimizer, lr=LR, **own,
            )  # fmt: skip

        # Peers keep a plain fp32 sum, and round to nearest where they would have to draw random numbers.
        rows = torch.zeros(SLOTS, d, dtype={"fp32": torch.float32, "bf16": torch.bfloat16}.get(format, torch.int8),
                           device=DEVICE)  # fmt: skip
        scales = torch.full((SLOTS, -(-d // 256)), 1e-4, device=DEVICE)
        high, y = torch.zeros_like(x), torch.zeros_like(x)

        def step(rows: Tensor, scales: Tensor, high: Tensor, y: Tensor, g: Tensor) -> None:
            if format in ("fp32", "bf16"):
                stored = g.to(rows.dtype)
                high.add_(stored.float() - rows.float())
                rows.copy_(stored)
            else:
                blocks = g[: d // 256 * 256].view(-1, 256)
                scale = blocks.abs().amax(1, keepdim=True) / 127
                q = (blocks / scale).round().clamp(-127, 127)
                old = rows[: d // 256 * 256].view(-1, 256)
                high[: d // 256 * 256].view(-1, 256).add_(q * scale - old.float() * scales[: d // 256].unsqueeze(1))
                old.copy_(q.to(torch.int8))
                scales[: d // 256].copy_(scale.squeeze(1))
            y.add_(high, alpha=LR / SLOTS)

        fast = torch.compile(step)
        peers: dict[str, Run] = {}
        if optimizer == "sgd" and format != "int4":
            peers = {
                "eager": lambda: step(rows[turn[0]], scales[turn[0]], high, y, g),
                "compile": lambda: fast(rows[turn[0]], scales[turn[0]], high, y, g),
            }
        return Case(4 + 2 * row + 10 + 8 + 8 * moments, ours, peers)

    return make


CASES: dict[str, Callable[[int], Case]] = {
    "AMSGrad": amsgrad,
    "FADAS flush": flush,
    "buffer": buffer,
    "ACE fp32": ace("fp32"),
    "ACE bf16": ace("bf16"),
    "ACE int8": ace("int8"),
    "ACE int4": ace("int4"),
    "ACE int8, AMSGrad": ace("int8", "amsgrad"),
    "inspect": inspect,
    "distances": distances,
}


BUSY = 3_000_000  # clocks, some 2 ms: longer than any candidate's launches take the host


def measure(candidates: dict[str, Run], rounds: int) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Seconds per call of each, by the device's clock and by the host's; every round runs all, in a new order.

    A peer that runs out of memory is left out of what it has not done, and of the result.
    """
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    host: dict[str, list[float]] = {name: [] for name in candidates}
    pushed_out = torch.empty(
        2 * torch.cuda.get_device_properties(DEVICE).L2_cache_size, dtype=torch.uint8, device=DEVICE
    )
    for turn in range(3 + rounds):  # the first three warm up
        order = list(seconds)
        random.shuffle(order)
        for name in order:
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            pushed_out.zero_()
            torch.cuda._sleep(BUSY)
            began = time.perf_counter()
            try:
                start.record()
                candidates[name]()
                end.record()
            except torch.OutOfMemoryError:
                if name == "fastagg":
                    raise
                print(f"{name}: out of memory", flush=True)
                del seconds[name], host[name]
                torch.cuda.empty_cache()
                continue
            took = time.perf_counter() - began
            torch.cuda.synchronize()
            if turn >= 3:
                seconds[name].append(start.elapsed_time(end) / 1e3)
                host[name].append(took)
    return seconds, host


def operation(name: str, d: int, rounds: int) -> dict[str, Any]:
    case = CASES[name](d)
    source = torch.empty(1 << 28, dtype=torch.float32, device=DEVICE)
    sink = torch.empty_like(source)
    candidates: dict[str, Run] = {"fastagg": case.ours, "copy": lambda: sink.copy_(source), **case.peers}
    seconds, host = measure(candidates, rounds)
    median = {candidate: statistics.median(times) for candidate, times in seconds.items()}
    copy = 8 * source.numel() / median["copy"]
    ratios = {
        peer: statistics.median(b / a for a, b in zip(seconds["fastagg"], seconds[peer], strict=True))
        for peer in case.peers
        if peer in seconds
    }
    rate = case.bytes * d / median["fastagg"]
    return {
        "operation": name, "d": d, "bytes": case.bytes, "seconds": median["fastagg"], "gbps": rate / 1e9,
        "of_copy": rate / copy, "copy_gbps": copy / 1e9, "slower": ratios, "samples": seconds["fastagg"],
        "host": statistics.median(host["fastagg"]),
    }  # fmt: skip


def overhead() -> list[dict[str, Any]]:
    """What `receive` takes on the host when nobody waits for the device."""
    found = []
    for name, make in {
        "FADAS": lambda p: fastagg.FADAS(p, buffer_size=5, validate="deferred"),
        "ACE int8": lambda p: fastagg.ACE(p, lr=0.1, num_clients=8, cache="int8", validate="deferred"),
    }.items():
        server = make(torch.zeros(100_000, device=DEVICE))
        update = torch.randn(100_000, device=DEVICE)
        times = []
        for i in range(400):
            server.dispatch(i % 8)
            start = time.perf_counter()
            server.receive(i % 8, update)
            times.append(time.perf_counter() - start)
            if i % 20 == 0:
                torch.cuda.synchronize()
        found.append({"operation": f"receive on the host, {name}", "seconds": statistics.median(times[50:])})
    return found


def uploads(d: int) -> dict[str, Any]:
    """An update in pageable host memory, against a copy of the same bytes that are pinned already."""
    from fastagg.storage import staging
    from fastagg.storage.pieces import Pieces

    host, there = torch.randn(d), torch.empty(d, device=DEVICE)
    pinned = host.pin_memory()
    pieces = Pieces([host])
    times: dict[str, list[float]] = {"staged": [], "pinned copy": [], "torch": []}
    for _ in range(12):
        for name, run in (
            ("staged", lambda: staging.upload(pieces, DEVICE)),
            ("pinned copy", lambda: there.copy_(pinned, non_blocking=True)),
            ("torch", lambda: host.to(DEVICE)),
        ):
            torch.cuda.synchronize()
            start = time.perf_counter()
            run()
            torch.cuda.synchronize()
            times[name].append(time.perf_counter() - start)
    median = {name: statistics.median(values[2:]) for name, values in times.items()}
    return {"operation": "upload", "d": d, "seconds": median, "of_pinned": median["pinned copy"] / median["staged"]}


def table(results: list[dict[str, Any]]) -> str:
    lines = [
        "| operation | d | time | on the host | GB/s | of copy | eager | compile | fused Adam |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in results:
        if "gbps" not in row:
            continue
        times = [
            f"{row['slower'][p]:.2f}x" if p in row["slower"] else "" for p in ("eager", "compile", "torch fused Adam")
        ]
        lines.append(
            f"| {row['operation']} | {row['d']:.3g} | {row['seconds'] * 1e3:.3f} ms | {row['host'] * 1e6:.0f} us | "
            f"{row['gbps']:.0f} | "
            f"{row['of_copy']:.0%} | {' | '.join(times)} |"
        )
    for row in results:
        if "gbps" not in row:
            lines.append(f"\n{json.dumps(row)}")
    return "\n".join(lines) + "\n"


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[11_200_000, 110_000_000, 1_500_000_000])
    parser.add_argument("--operations", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "gpu")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    results: list[dict[str, Any]] = []
    card = torch.cuda.get_device_properties(DEVICE)
    about = {**machine.describe(), "gpu": card.name, "gpu_memory": card.total_memory, "cuda": torch.version.cuda}

    def save() -> None:  # after each, so that running out of time loses nothing
        (given.out / "gpu.json").write_text(json.dumps({"machine": about, "results": results}, indent=1))
        (given.out / "gpu.md").write_text(table(results))

    for d in given.sizes:
        for name in given.operations:
            try:
                results.append(operation(name, d, given.rounds))
            except torch.OutOfMemoryError as error:
                results.append({"operation": name, "d": d, "skipped": str(error).splitlines()[0]})
            gc.collect()
            torch.cuda.empty_cache()
            save()
    results.extend(overhead())
    results.extend(uploads(d) for d in given.sizes if d < 1_000_000_000)
    save()
    print(table(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
