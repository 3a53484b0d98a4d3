"""A device's own clock: CUDA events around launches that are already queued. It does not include the host's time."""

from __future__ import annotations

import time

import torch
from timing import Clock, HostClock, Run

BUSY = 3_000_000  # clocks of the device, about 2 ms: longer than the host needs for any candidate's launches


def clock(device: torch.device) -> Clock:
    """Return the clock for candidates on ``device``."""
    return HostClock() if device.type == "cpu" else CudaClock(device)


class CudaClock:
    """Measures the device's seconds between two events, one call per sample. The host's seconds are in ``host``.

    Before each sample a buffer of twice the L2 cache's size is overwritten, so that no candidate finds its vectors in
    the cache. The device is kept busy until the host has launched the call. So only the call itself is measured.
    """

    settles = False

    def __init__(self, device: torch.device) -> None:
        size = 2 * torch.cuda.get_device_properties(device).L2_cache_size
        self.past = torch.empty(size, dtype=torch.uint8, device=device)
        self.host: dict[str, list[float]] = {}

    def sample(self, name: str, run: Run, calls: int) -> float:
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        self.past.zero_()
        torch.cuda._sleep(BUSY)
        began = time.perf_counter()
        start.record()
        for _ in range(calls):
            run()
        end.record()
        took = time.perf_counter() - began
        self.wait()
        self.host.setdefault(name, []).append(took / calls)
        return start.elapsed_time(end) / 1e3 / calls

    def wait(self) -> None:
        torch.cuda.synchronize()
