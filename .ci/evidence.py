"""Checks the machine code of the CUDA kernels for every architecture: evidence.py OBJECT...

No kernel may use local memory. Kernels that read or write whole vectors must use 128-bit accesses.
"""

from __future__ import annotations

import re
import subprocess
import sys

# kernel -> the accesses that must have 128 bits in the kernel's aligned variants
STREAMING = {"norms_kernel": ("LDG",)} | dict.fromkeys(
    ("step_kernel", "coded_kernel", "accumulate_kernel", "cached_kernel"), ("LDG", "STG")
)


def run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def functions(path: str) -> dict[tuple[str, str], list[str]]:
    """Return (architecture, mangled name) -> the instructions of the function."""
    found: dict[tuple[str, str], list[str]] = {}
    architecture, instructions = "", []
    for line in run("cuobjdump", "-sass", path).splitlines():
        if match := re.search(r"code for (sm_\d+)", line):
            architecture = match[1]
        elif match := re.search(r"Function : (\S+)", line):
            instructions = found.setdefault((architecture, match[1]), [])
        elif match := re.match(r"\s+/\*[0-9a-f]{4,}\*/\s+(.*?);", line):
            instructions.append(match[1].strip())
    return found


def faults(kernel: str, instructions: list[str]) -> list[str]:
    """Return a text for each forbidden or missing instruction of a kernel."""
    text = "\n".join(instructions)
    lacking = (kind for kind in STREAMING.get(kernel.split("<")[0], ()) if not re.search(rf"\b{kind}\.\S*128", text))
    return re.findall(r"\b(?:LDL|STL)\b", text)[:1] + [f"no {kind}.128" for kind in lacking]


def main(paths: list[str]) -> int:
    """Check object files. Return 1 if a kernel has a fault."""
    kernels = {key: code for path in paths for key, code in functions(path).items()}
    mangled = sorted({name for _, name in kernels})
    plain = run("c++filt", *mangled).replace("fastagg::cuda::(anonymous namespace)::", "").splitlines()
    names = {name: re.sub(r"^void (fastagg::cuda::)?", "", said) for name, said in zip(mangled, plain, strict=True)}
    missing = [kernel for kernel in STREAMING if not any(name.startswith(kernel) for name in names.values())]
    bad = [f"not found: {kernel}" for kernel in missing]
    for (architecture, name), code in kernels.items():
        bad += [f"{names[name]} on {architecture}: {fault}" for fault in faults(names[name], code)]
    print(f"{len(kernels)} kernels disassembled, {len(bad)} faults", *bad, sep="\n")
    return 1 if bad or not kernels else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
