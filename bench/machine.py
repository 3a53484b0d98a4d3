"""What a result was measured on and with: processor, memory, software, commit."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch

import fastagg

_ROOT = Path(__file__).resolve().parents[1]


def describe() -> dict[str, Any]:
    """Plain data for the report and the JSON."""
    info = fastagg.build_info()
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "device": device(),
        "processor": processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "caches": _caches(),
        "memory_bytes": _meminfo("MemTotal"),
        "huge_pages": _chosen("/sys/kernel/mm/transparent_hugepage/enabled"),
        "load": list(os.getloadavg()) if hasattr(os, "getloadavg") else None,
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "fastagg": fastagg.__version__,
        "isa": info["isa"],
        "threads": info["threads"],
        "torch_threads": torch.get_num_threads(),
    }


def device() -> str:
    """The processor's name."""
    cpuinfo = _read("/proc/cpuinfo")
    found = re.search(r"^model name\s*:\s*(.+)$", cpuinfo, re.MULTILINE)
    if found is None:
        return platform.processor() or platform.machine()
    # Virtual machines hide the marketing name; family and model tell which one it is.
    number = re.search(r"^model\s*:\s*(\d+)$", cpuinfo, re.MULTILINE)
    return f"{found[1].strip()} (model {number[1]})" if number else found[1].strip()


def processor() -> dict[str, Any]:
    """Vendor, family and model as /proc/cpuinfo has them, from which processors.py tells the microarchitecture."""
    cpuinfo = _read("/proc/cpuinfo")
    found = {
        key: re.search(rf"^{name}\s*:\s*(\S+)$", cpuinfo, re.MULTILINE)
        for key, name in (("vendor", "vendor_id"), ("family", "cpu family"), ("model", "model"))
    }
    said = {key: match[1] for key, match in found.items() if match}
    return {key: int(value) if value.isdigit() else value for key, value in said.items()}


def commit() -> str:
    """The checkout's commit, with ``-dirty`` if it was changed since; ``unknown`` outside a checkout."""
    command = ["git", "--no-optional-locks", "describe", "--always", "--dirty", "--exclude", "*"]
    try:
        done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return done.stdout.strip()


def available_bytes() -> int:
    """Memory that can be taken without swapping."""
    return _meminfo("MemAvailable") or 8 << 30


def _caches() -> dict[str, str]:
    found = {}
    for index in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        if _read(index / "type").strip() != "Instruction":
            found[f"L{_read(index / 'level').strip()}"] = _read(index / "size").strip()
    return found


def _meminfo(key: str) -> int | None:
    found = re.search(rf"^{key}:\s*(\d+) kB$", _read("/proc/meminfo"), re.MULTILINE)
    return int(found[1]) * 1024 if found else None


def _chosen(path: str) -> str | None:
    found = re.search(r"\[(\w+)\]", _read(path))
    return found[1] if found else None


def _read(path: str | Path) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""
