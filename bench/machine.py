"""Describes the machine and the software of a measurement. A processor is described by its vendor, its name, and its
microarchitecture if /proc/cpuinfo identifies it."""

from __future__ import annotations

import platform
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path

import checkout
import numpy as np
import torch

import fastagg

# (vendor, family, model): the microarchitecture and a core's L2 cache. The cache must match, because a virtual machine
# may report another processor's number (for example a Xeon with Rocket Lake's number and four times its cache).
KNOWN = {
    ("AuthenticAMD", "23", "49"): ("Zen 2", "512K"),
    ("AuthenticAMD", "25", "1"): ("Zen 3", "512K"),
    ("AuthenticAMD", "25", "17"): ("Zen 4", "1024K"),
    ("AuthenticAMD", "25", "160"): ("Zen 4c", "1024K"),
    ("AuthenticAMD", "26", "2"): ("Zen 5", "1024K"),
    ("AuthenticAMD", "26", "17"): ("Zen 5c", "1024K"),
    ("GenuineIntel", "6", "106"): ("Ice Lake", "1280K"),
    ("GenuineIntel", "6", "143"): ("Sapphire Rapids", "2048K"),
    ("GenuineIntel", "6", "167"): ("Rocket Lake", "512K"),
    ("GenuineIntel", "6", "173"): ("Granite Rapids", "2048K"),
    ("GenuineIntel", "6", "207"): ("Emerald Rapids", "2048K"),
}


def stamp(device: torch.device) -> dict[str, str]:
    """Return the processor or GPU and the versions of software, as results store them."""
    card, version = device.type == "cuda", fastagg.__version__
    if checkout.PATHS:  # the checkout's package is measured, even if another one is installed
        version = tomllib.loads((checkout.ROOT / "pyproject.toml").read_text())["project"]["version"]
    return {
        "processor": torch.cuda.get_device_properties(device).name if card else label(cpuinfo(), _level2()),
        "versions": f"fastagg {version} ({fastagg.build_info()['isa']}), torch {torch.__version__}"
        f"{f', CUDA {torch.version.cuda}' if card else ''}, Python {platform.python_version()}, NumPy {np.__version__}",
    }


def label(said: Mapping[str, str], level2: str | None) -> str:
    """Return a processor's name and microarchitecture or model, because a virtual machine may hide the name.

    Args:
        said: the first processor's fields in /proc/cpuinfo.
        level2: the size of a core's L2 cache.
    """
    found = said.get("model name") or platform.processor() or platform.machine()
    name = " ".join(re.sub(r"\((R|TM|model \d+)\)|\bCPU\b|@.*$", "", found).split())
    name = re.sub(r"(?<=\w) Processor$", "", name)
    key = tuple(said.get(field, "") for field in ("vendor_id", "cpu family", "model"))
    if key in KNOWN and level2 in (None, KNOWN[key][1]):
        return f"{name} ({KNOWN[key][0]})"
    return f"{name} (model {key[2]})" if key[2] else name


def cpuinfo() -> dict[str, str]:
    """Return the first processor's fields in /proc/cpuinfo."""
    lines = _read("/proc/cpuinfo").split("\n\n", 1)[0].splitlines()
    return {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}


def available_bytes(device: torch.device | None = None) -> int:
    """Return how much memory can be allocated without swapping, on the host or on a device."""
    if device is not None and device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    found = re.search(r"^MemAvailable:\s*(\d+) kB$", _read("/proc/meminfo"), re.MULTILINE)
    return int(found[1]) * 1024 if found else 8 << 30


def _level2() -> str | None:
    folders = Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")
    return next((_read(one / "size").strip() for one in folders if _read(one / "level").strip() == "2"), None)


def _read(path: str | Path) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""
