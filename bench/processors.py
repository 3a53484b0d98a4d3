"""How a processor is called in the report: vendor, name and microarchitecture, where /proc/cpuinfo lets one know."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

# (vendor, family, model): the microarchitecture, and a core's L2 cache, which must fit: a virtual machine may give the
# number of a processor that it is not (as a Xeon with Rocket Lake's number and four times Rocket Lake's cache).
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
# Files that do not say vendor and family: they come from these two processors only.
UNSAID = {
    "AMD EPYC (model 17)": ("AuthenticAMD", 25, 17),
    "Intel(R) Xeon(R) Processor (model 167)": ("GenuineIntel", 6, 167),
}


def label(machine: Mapping[str, Any]) -> str:
    """The processor of a results file."""
    device = machine["device"]
    said = machine.get("processor") or {}
    key = (said.get("vendor"), said.get("family"), said.get("model")) if said else UNSAID.get(device)
    name = re.sub(r"\((R|TM|model \d+)\)|\bCPU\b|@.*$", "", device)
    name = re.sub(r"(?<=\w) Processor$", "", " ".join(name.split()))
    if key in KNOWN and machine["caches"].get("L2", KNOWN[key][1]) == KNOWN[key][1]:
        return f"{name} ({KNOWN[key][0]})"
    return f"{name} (model {key[2]})" if key and key[2] is not None else name
