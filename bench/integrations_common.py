"""What the benchmarks of integrations share: the model, interleaved rounds, peak memory in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from timing import Quantiles, interleave

SHAPES = [(700, 800)] * 20  # 11.2 M parameters
CLIENTS = 10


def model(seed: int, scale: float = 1.0) -> dict[str, torch.Tensor]:
    """One model's arrays."""
    generator = torch.Generator().manual_seed(seed)
    return {f"layer{i}.weight": torch.randn(s, generator=generator) * scale for i, s in enumerate(SHAPES)}


def compare(
    candidates: Mapping[str, Callable[[], object]], updates: int, rounds: int, peaks: Mapping[str, float]
) -> str:
    """A Markdown table; each candidate handles ``updates`` updates per call, the first is the yardstick."""
    for run in candidates.values():
        run()
    timings = interleave(candidates, rounds=rounds)
    first = next(iter(candidates))
    lines = [
        "| | ms per update (p20, p80) | time of the first / this | peak memory beyond model and reply, in models |"
    ]
    lines.append("|---|---|---|---|")
    for name in candidates:
        q, ratio = timings.seconds(name), timings.ratio(first, name)
        spread = f"{_ms(q, 'p50', updates)} ({_ms(q, 'p20', updates)}, {_ms(q, 'p80', updates)})"
        lines.append(f"| {name} | {spread} | {ratio.p50:.2f} ({ratio.p20:.2f}, {ratio.p80:.2f}) | {peaks[name]:.2f} |")
    return "\n".join(lines)


def _ms(quantiles: Quantiles, which: str, updates: int) -> str:
    return f"{getattr(quantiles, which) / updates * 1e3:.1f}"


def peaks(file: str, names: list[str]) -> dict[str, float]:
    """Peak resident memory of each candidate, alone in a process, beyond what it had before its first call."""
    # This checkout, installed or not: the process begins in bench/.
    paths = [str(Path(__file__).resolve().parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    found = {}
    for name in names:
        done = subprocess.run(
            [sys.executable, file, name], check=True, stdout=subprocess.PIPE, text=True, env=environment
        )
        found[name] = json.loads(done.stdout.splitlines()[-1])
    return found


def peak_of(run: Callable[[], object]) -> None:
    """Print the growth of this process's resident memory during three calls, in models."""
    before = _status("VmRSS")
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # forget the peak so far
    for _ in range(3):
        run()
        time.sleep(0.01)
    size = sum(a * b for a, b in SHAPES) * 4
    print(json.dumps((_status("VmHWM") - before) / size))


def _status(field: str) -> float:
    with open("/proc/self/status") as file:
        return next(float(line.split()[1]) * 1024 for line in file if line.startswith(field))
