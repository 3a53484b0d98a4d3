"""Measures how much a candidate's memory grows, in models: python bench/peak.py CASE CANDIDATE [PARAMETERS]

Each candidate runs in a process of its own. Otherwise memory that another candidate freed would hide the growth.
"""

from __future__ import annotations

import ctypes
import gc
import subprocess
import sys
from pathlib import Path


def alone(case: str, candidate: str, size: int | None = None) -> float | None:
    """Return the growth at the peak, by default at the case's first size. None: the system does not report it."""
    if not Path("/proc/self/clear_refs").exists():
        return None
    command = [sys.executable, __file__, case, candidate, *([] if size is None else [str(size)])]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return float(done.stdout.splitlines()[-1])


def main(case: str, candidate: str, parameters: str = "") -> None:
    """Print by how many models memory grows from before a call to its peak. The largest of three calls counts."""
    import checkout  # noqa: F401
    from cases import CASES
    from problem import Problem

    size = int(parameters or CASES[case].sizes[0])
    built = next(one for one in CASES[case].candidates() if one.name == candidate).build(Problem(size))
    most = 0
    for _ in range(3):
        if built.before is not None:
            built.before()
        before = at_rest()
        forget_peak()
        built.run()
        most = max(most, resident("VmHWM") - before)
    print(most / (4 * size))


def at_rest() -> int:
    """Give freed memory back to the system. Return the resident bytes."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return resident("VmRSS")


def resident(field: str) -> int:
    """Return this process's resident bytes: ``VmRSS`` is the current value, ``VmHWM`` the peak since forget_peak."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def forget_peak() -> None:
    """Reset the peak."""
    Path("/proc/self/clear_refs").write_text("5")


if __name__ == "__main__":
    main(*sys.argv[1:])
