"""Shared by the benchmarks of integrations: the model, interleaved rounds, peak memory in a separate process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import machine
import timing
import torch
from results import Row

SHAPES = [(700, 800)] * 20  # 11.2 M parameters
CLIENTS = 10


def model(seed: int, scale: float = 1.0) -> dict[str, torch.Tensor]:
    """Return one model's arrays."""
    generator = torch.Generator().manual_seed(seed)
    return {f"layer{i}.weight": torch.randn(s, generator=generator) * scale for i, s in enumerate(SHAPES)}


def compare(
    framework: str,
    candidates: Mapping[str, Callable[[], object]],
    rounds: int,
    peaks: Mapping[str, float],
    *,
    before: Mapping[str, Callable[[], object]] | None = None,
    size: int | None = None,
) -> list[Row]:
    """Return two rows per candidate: updates per second, and peak memory in addition to model and replies.

    Args:
        candidates: functions that handle ``CLIENTS`` updates per call. Each was already called once.
        peaks: the peak of each candidate, in models.
        before: functions that are called before a call and are not timed.
        size: the model's number of parameters; by default this module's.
    """
    found = timing.interleave(candidates, rounds=rounds, before=before, patience=60)
    d = size or sum(a * b for a, b in SHAPES)
    rows = []
    for name in candidates:
        p20, p50, p80 = (CLIENTS / seconds for seconds in reversed(found.seconds(name)))
        rate = Row(f"server, {framework}", name, d, torch.get_num_threads(), p50, p20, p80, "1/s")
        grown = 4 * d * peaks[name]
        rows += [rate, replace(rate, median=grown, p20=grown, p80=grown, unit="B")]
    return stamped(rows)


def stamped(rows: list[Row]) -> list[Row]:
    """Add processor, versions, commit and date to rows."""
    stamp = machine.stamp(torch.device("cpu"))
    return [replace(row, **stamp) for row in rows]


def peaks(file: str, names: list[str]) -> dict[str, float]:
    """Return each candidate's peak resident memory, alone in a process, minus that before its first call."""
    # Uses this checkout, installed or not. The process starts in bench/.
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
        file.write("5")  # resets the peak
    for _ in range(3):
        run()
        time.sleep(0.01)
    size = sum(a * b for a, b in SHAPES) * 4
    print(json.dumps((_status("VmHWM") - before) / size))


def _status(field: str) -> float:
    with open("/proc/self/status") as file:
        return next(float(line.split()[1]) * 1024 for line in file if line.startswith(field))
