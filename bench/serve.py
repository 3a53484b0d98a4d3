"""Measures what `fastagg serve` needs, for docs/operations.md: time of a push and of a pull, memory, processor, disk.

python bench/serve.py 10_000_000 --workers 4 --parts 4 --pushes 40
"""

from __future__ import annotations

import argparse
import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import torch
from safetensors.torch import save_file

from fastagg.clients import HttpClient

TENSORS = 16  # tensors in the model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parameters", type=int)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--parts", type=int, default=1)
    parser.add_argument("--pushes", type=int, default=40)
    parser.add_argument("--rule", default="FedBuff")
    given = parser.parse_args()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        model, state = Path(folder) / "model.safetensors", Path(folder) / "state"
        save_file({f"{i}": torch.zeros(given.parameters // TENSORS) for i in range(TENSORS)}, model)
        command = [sys.executable, "-m", "fastagg", "serve", model, "--folder", state, "--rule", given.rule,
                   "--workers", given.workers, "--parts", given.parts, "--port", port,
                   "--set", "buffer_size=1"]  # fmt: skip
        with subprocess.Popen(list(map(str, command)), stderr=subprocess.DEVNULL) as server:
            try:
                measure(given, f"http://127.0.0.1:{port}", server.pid, state)
            finally:
                server.terminate()


def measure(given: argparse.Namespace, url: str, pid: int, state: Path) -> None:
    pulls: list[float] = []
    pushes: list[float] = []

    def work(name: str) -> None:
        client = HttpClient(url, name, patience=120)
        update = torch.full((client.layout["size"],), 1e-6)
        for _ in range(max(given.pushes // given.workers, 1)):
            begun = time.perf_counter()
            client.task()
            pulled = time.perf_counter()
            client.send(update)
            pulls.append(pulled - begun)
            pushes.append(time.perf_counter() - pulled)

    HttpClient(url, "first", patience=120).task()
    before, begun = processor(pid), time.perf_counter()
    threads = [threading.Thread(target=work, args=(f"{number}",)) for number in range(given.workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took, used = time.perf_counter() - begun, processor(pid) - before
    status = Path(f"/proc/{pid}/status").read_text()
    (peak,) = re.findall(r"VmHWM:\s+(\d+) kB", status)
    on_disk = sum(file.stat().st_blocks * 512 for file in state.rglob("*") if file.is_file())
    print(
        f"{given.parameters:,} parameters, {given.workers} workers, {given.parts} parts, {given.rule}: "
        f"{len(pushes) / took:.1f} pushes/s, pull {1e3 * median(pulls):.0f} ms, push {1e3 * median(pushes):.0f} ms, "
        f"{used / len(pushes) * 1e3:.0f} ms of processor a round, peak {int(peak) / 1e3:.0f} MB, "
        f"folder {on_disk / 1e6:.0f} MB"
    )


def processor(pid: int) -> float:
    """Return the processor seconds that a process has used."""
    times = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(times[11]) + int(times[12])) / os.sysconf("SC_CLK_TCK")


def median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


if __name__ == "__main__":
    main()
