"""The machine and software of a measurement, and the name of a processor: vendor, name, and microarchitecture if
/proc/cpuinfo identifies it."""

from __future__ import annotations

import platform
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import results
import torch

import fastagg

# (vendor, family, model): the microarchitecture and a core's L2 cache. The cache must match, because a virtual machine
# may report another processor's number (for example a Xeon with Rocket Lake's number and four times its cache).
KNOWN = {
    ("AuthenticAMD", 23, 49): ("Zen 2", "512K"),
    ("AuthenticAMD", 25, 1): ("Zen 3", "512K"),
    ("AuthenticAMD", 25, 17): ("Zen 4", "1024K"),
    ("AuthenticAMD", 25, 160): ("Zen 4c", "1024K"),
    ("AuthenticAMD", 26, 2): ("Zen 5", "1024K"),
    ("AuthenticAMD", 26, 17): ("Zen 5c", "1024K"),
    ("GenuineIntel", 6, 106): ("Ice Lake", "1280K"),
    ("GenuineIntel", 6, 143): ("Sapphire Rapids", "2048K"),
    ("GenuineIntel", 6, 167): ("Rocket Lake", "512K"),
    ("GenuineIntel", 6, 173): ("Granite Rapids", "2048K"),
    ("GenuineIntel", 6, 207): ("Emerald Rapids", "2048K"),
}


def stamp(device: torch.device) -> dict[str, str]:
    """Return processor, versions, commit and date, as stored in every row."""
    processor = label(about()) if device.type == "cpu" else torch.cuda.get_device_properties(device).name
    cuda = "" if device.type == "cpu" else f", CUDA {torch.version.cuda}"
    # A checkout need not be installed, so its own version may be unknown. The commit says it better.
    versions = (
        f"{fastagg.build_info()['isa']}, torch {torch.__version__}{cuda}, Python {platform.python_version()}, "
        f"NumPy {np.__version__}"
    )
    date = datetime.now(UTC).isoformat(timespec="seconds")
    return {"processor": processor, "versions": versions, "commit": results.commit(), "date": date}


def about() -> dict[str, Any]:
    """Return the processor and its caches."""
    return {"device": device(), "processor": processor(), "caches": _caches()}


def label(about: Mapping[str, Any]) -> str:
    """Return the processor's name in the report."""
    said = about.get("processor") or {}
    key = (said.get("vendor"), said.get("family"), said.get("model"))
    name = re.sub(r"\((R|TM|model \d+)\)|\bCPU\b|@.*$", "", about["device"])
    name = re.sub(r"(?<=\w) Processor$", "", " ".join(name.split()))
    if key in KNOWN and about["caches"].get("L2", KNOWN[key][1]) == KNOWN[key][1]:
        return f"{name} ({KNOWN[key][0]})"
    return f"{name} (model {key[2]})" if key[2] is not None else name


def device() -> str:
    """Return the processor's name."""
    cpuinfo = _read("/proc/cpuinfo")
    found = re.search(r"^model name\s*:\s*(.+)$", cpuinfo, re.MULTILINE)
    if found is None:
        return platform.processor() or platform.machine()
    # Virtual machines hide the marketing name. Family and model identify the processor.
    number = re.search(r"^model\s*:\s*(\d+)$", cpuinfo, re.MULTILINE)
    return f"{found[1].strip()} (model {number[1]})" if number else found[1].strip()


def processor() -> dict[str, Any]:
    """Return vendor, family and model from /proc/cpuinfo. :func:`label` finds the microarchitecture from them."""
    cpuinfo = _read("/proc/cpuinfo")
    found = {
        key: re.search(rf"^{name}\s*:\s*(\S+)$", cpuinfo, re.MULTILINE)
        for key, name in (("vendor", "vendor_id"), ("family", "cpu family"), ("model", "model"))
    }
    said = {key: match[1] for key, match in found.items() if match}
    return {key: int(value) if value.isdigit() else value for key, value in said.items()}


def available_bytes(device: torch.device | None = None) -> int:
    """Return how much memory can be allocated without swapping, on the host or on a device."""
    if device is not None and device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
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


def _read(path: str | Path) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""
