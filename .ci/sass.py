"""Reads the disassembly of the CUDA kernels: python .ci/sass.py OBJECT...

No kernel may use local memory. Kernels that stream vectors (their aligned variants) must use 128-bit loads and stores,
on every architecture. It prints one line per kernel with the findings.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter

# kernel -> whether it stores vectors too
STREAMING = {"step_kernel": True, "accumulate_kernel": True, "cached_kernel": True, "norms_kernel": False}


def disassembly(path: str) -> str:
    return subprocess.run(["cuobjdump", "-sass", path], check=True, capture_output=True, text=True).stdout


def names(mangled: list[str]) -> dict[str, str]:
    plain = subprocess.run(["c++filt", *mangled], check=True, capture_output=True, text=True).stdout.splitlines()
    found = (re.search(r"(\w+_kernel)(<.*>)?\(", line) for line in plain)
    return {
        raw: "".join(part or "" for part in match.groups()) for raw, match in zip(mangled, found, strict=True) if match
    }


def main(paths: list[str]) -> int:
    counts: dict[tuple[str, str], Counter[str]] = {}
    for path in paths:
        architecture = function = ""
        for line in disassembly(path).splitlines():
            if match := re.search(r"code for (sm_\d+)", line):
                architecture = match[1]
            elif match := re.search(r"Function : (\S+)", line):
                function = match[1]
                counts[architecture, function] = Counter()
            elif match := re.search(r"\b(LDG|STG|LDL|STL|LD|ST)\.[A-Z0-9.]+|\b(LDL|STL)\b", line):
                kind = match[1] or match[2]
                counts[architecture, function][kind + (".128" if ".128" in match[0] else "")] += 1
    kernels = names(sorted({function for _, function in counts}))
    bad = 0
    for (architecture, function), seen in sorted(
        counts.items(), key=lambda item: (kernels.get(item[0][1], ""), item[0][0])
    ):
        kernel = kernels.get(function)
        if kernel is None:
            continue
        faults = [f"{seen[kind]} {kind}" for kind in ("LDL", "STL") if seen[kind]]
        stem = kernel.split("<")[0]
        if stem in STREAMING:
            wanted = ["LDG.128", "STG.128"] if STREAMING[stem] else ["LDG.128"]
            faults += [f"no {kind}" for kind in wanted if not seen[kind]]
        print(f"{architecture} {kernel}: " + ", ".join(f"{count} {kind}" for kind, count in sorted(seen.items())))
        if faults:
            bad += 1
            print(f"  FAULT: {', '.join(faults)}")
    print(f"{len(counts)} kernels read, {bad} with faults")
    return 1 if bad or not counts else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
