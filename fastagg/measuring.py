"""Finds better settings (:mod:`fastagg.tuning`) for this processor by measuring."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from fastagg import ops, tuning
from fastagg._build import native
from fastagg.storage import memory
from fastagg.storage.cache import ClientCache


class Choice(NamedTuple):
    """The measurements for one setting.

    Attributes:
        setting: its name.
        seconds: median seconds of the step, by value.
        usual: the table's value.
        chosen: the fastest value, if it is faster than the table's by more than the noise; otherwise the table's.
        step: the step that was measured.
    """

    setting: str
    seconds: dict[int, float]
    usual: int
    chosen: int
    step: str


_SIZE = 3 << 20  # 12 MiB per vector: a step's vectors together do not fit in most caches
_ROUNDS = 9
_WORTH = 0.95  # a value must take less than this part of the table's time to replace it


def measure() -> list[Choice]:
    """Measure the settings that matter, one after the other, in less than a second.

    During the measurement the settings are those of the table. Afterwards they are what they were before.
    """
    x, out, update, acc = (memory.empty(_SIZE).fill_(1e-3) for _ in range(4))
    part = _SIZE // 4

    def flush(target: Any = None) -> None:
        ops.step_(x, update, acc=acc, scale=0.5, optimizer="sgd", lr=1e-3, out=target)

    def exchange() -> None:
        ops.cached_step_(
            x[:part], update[:part], cache=cache, write=0, read=0, sum=acc[:part], optimizer="sgd", lr=1e-3
        )

    cache = ClientCache(part, 1, "fp32")
    cache.data.view(torch.float32).zero_()
    steps: dict[str, tuple[str, Callable[[], object]]] = {
        "a step in place": ("prefetch", flush),
        "a step into a new version": ("stream_from", lambda: flush(out)),
        "an update of an fp32 cache": ("width", exchange),
        "a norm": ("places", lambda: ops.inspect(update)),
    }
    widest = 512 if native.isa() == "avx512" else 256
    values = {"prefetch": [0, 256, 512], "stream_from": [0, 1 << 20], "width": [256, widest], "places": [1, 4]}
    before, usual = tuning.current(), dict(native.default_tuning())
    found, settings = [], dict(usual)
    try:
        for step, (setting, run) in steps.items():
            candidates = sorted({usual[setting], *values[setting]})
            seconds = _times(setting, candidates, settings, run)
            best = min(candidates, key=lambda value: seconds[value])
            chosen = best if seconds[best] < _WORTH * seconds[usual[setting]] else usual[setting]
            settings[setting] = chosen
            found.append(Choice(setting, seconds, usual[setting], chosen, step))
    finally:
        native.set_tuning(before)
    return found


def _times(setting: str, values: list[int], base: dict[str, int], run: Callable[[], object]) -> dict[int, float]:
    """Return the median seconds of ``run`` with each value. The values take turns."""
    samples: dict[int, list[float]] = {value: [] for value in values}
    for turn in range(_ROUNDS + 1):
        for value in values if turn % 2 else values[::-1]:
            native.set_tuning({**base, setting: value})
            start = time.perf_counter()
            run()
            if turn:  # the first turn is a warm-up
                samples[value].append(time.perf_counter() - start)
    return {value: statistics.median(taken) for value, taken in samples.items()}
