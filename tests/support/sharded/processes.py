"""Starts a test's processes. None of them lives longer than the test."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

HERE = Path(__file__).parent
SECONDS = 900  # of a stuck test: emulated kernels under sanitizers, on a busy machine


def play(script: str, folder: Path, ranks: int, waits_for: Iterable[int]) -> dict[int, str]:
    """Run a script as several ranks. Return what each printed. Ranks that are not waited for are killed."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    processes = []
    try:
        for rank in range(ranks):
            command = [sys.executable, str(HERE / script), str(rank), str(ranks), str(folder)]
            with (folder / f"{rank}.log").open("w") as log:
                processes.append(subprocess.Popen(command, stdout=log, stderr=log, env=environment))
        for rank in waits_for:
            processes[rank].wait(timeout=SECONDS)
    finally:
        for process in processes:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)  # a stuck process does not react to other signals
            process.wait()
    return {rank: (folder / f"{rank}.log").read_text() for rank in range(ranks)}
