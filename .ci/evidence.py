"""Reports the assembler's result for the CUDA kernels, and the possible bandwidth: evidence.py OBJECT... [--write]

It reads the disassembly. No kernel may use local memory, and those that stream vectors must use 128-bit accesses, on
every architecture. For every such kernel it reports registers and local memory. For the kernel's hot loop it reports
the 128-bit accesses, instructions per element, double-precision instructions per element, and the bytes that a thread
has requested before it first waits. With a card's data sheet these give the bandwidth that the kernel can reach, and
what limits it. This is an upper estimate, not a measurement. --write puts the limits into docs/cuda.md.

The hot loop's path is the one with the most 128-bit accesses; of several, the one with the most arithmetic. So where a
kernel branches on the optimizer, it is the costliest optimizer's.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

DOCS = Path(__file__).resolve().parents[1] / "docs" / "cuda.md"
BEGIN, END = "<!-- evidence -->", "<!-- end of evidence -->"
SINGLE, FLUSH = "(fastagg::DirectionKind)0", "(fastagg::DirectionKind)1"


class Card(NamedTuple):
    """Values from the vendor's data sheets. `latency` of device memory, in ns, is rounded from published
    measurements."""

    architecture: str
    processors: int
    ghz: float
    gbps: float
    double_lanes: int  # per multiprocessor and clock
    threads: int  # resident on a multiprocessor
    latency: float


CARDS = {
    "A100": Card("sm_80", 108, 1.41, 2039, 32, 2048, 570),
    "H100": Card("sm_90", 132, 1.83, 3350, 64, 2048, 650),
    "H200": Card("sm_90", 132, 1.83, 4800, 64, 2048, 650),
    "L4": Card("sm_89", 58, 2.04, 300, 2, 1536, 600),
    "RTX 4090": Card("sm_89", 128, 2.52, 1008, 2, 1536, 600),
}


class Kernel(NamedTuple):
    """A kernel in the table: the beginning of its name; the bytes per element that must move (bench/cases); the
    elements of a thread in one turn of its loop; the threads of a block."""

    name: str
    bytes: float
    elements: int = 8
    threads: int = 256


def _cached(format: str, coded: bool) -> str:
    return f"cached_kernel<fastagg::{format}, {str(coded).lower()}, fastagg::cuda::Flat>"


SHOWN = {
    "SGD": Kernel(f"step_kernel<fastagg::Sgd, {SINGLE}, fastagg::cuda::Flat>", 12),
    "AMSGrad": Kernel(f"step_kernel<fastagg::Amsgrad, {SINGLE}, fastagg::cuda::Flat>", 36),
    "FADAS' step": Kernel(f"step_kernel<fastagg::Amsgrad, {FLUSH}, fastagg::cuda::Flat>", 40),
    "AMSGrad in 8 bits": Kernel(f"coded_kernel<{SINGLE}, fastagg::cuda::Flat>", 18),
    "buffer": Kernel("accumulate_kernel<fastagg::cuda::Flat>", 12),
    "ACE fp32, AMSGrad": Kernel(_cached("Float32", False), 52),
    "ACE int8, AMSGrad": Kernel(_cached("Int8", False), 46),
    "ACE int4, AMSGrad": Kernel(_cached("Int4", False), 45),
    "ACE int8, AMSGrad in 8 bits": Kernel(_cached("Int8", True), 28),
    "norm": Kernel("norms_kernel<false, false, fastagg::cuda::Flat", 4, 32, 64),
    "distances": Kernel("norms_kernel<true, false, fastagg::cuda::Flat", 12, 16, 64),
    "distances, inner product": Kernel("norms_kernel<true, true, fastagg::cuda::Flat", 12, 16, 64),
}

# kernel -> which of its accesses must be of 128 bits in its aligned variants
STREAMING = {"norms_kernel": ("LDG",)} | dict.fromkeys(
    ("step_kernel", "coded_kernel", "accumulate_kernel", "cached_kernel"), ("LDG", "STG")
)

Instruction = tuple[int, str]  # address, text
ACCESS = re.compile(r"\b(LDG|STG)\.E[A-Z0-9.]*")
WIDTH = {"128": 16, "64": 8, "U8": 1, "S8": 1, "U16": 2, "S16": 2}
ARITHMETIC = re.compile(r"\b(FADD|FMUL|FFMA|MUFU|DADD|DMUL|DFMA)\b")
REGISTER = re.compile(r"\bR(\d+)\b")


def run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def functions(path: str) -> dict[tuple[str, str], list[Instruction]]:
    """Return (architecture, mangled name) -> its instructions."""
    found: dict[tuple[str, str], list[Instruction]] = {}
    architecture, current = "", []
    for line in run("cuobjdump", "-sass", path).splitlines():
        if match := re.search(r"code for (sm_\d+)", line):
            architecture = match[1]
        elif match := re.search(r"Function : (\S+)", line):
            current = found.setdefault((architecture, match[1]), [])
        elif match := re.match(r"\s+/\*([0-9a-f]{4,})\*/\s+(.*?);", line):
            current.append((int(match[1], 16), match[2].strip()))
    return found


def resources(path: str) -> dict[tuple[str, str], tuple[int, int]]:
    """Return (architecture, mangled name) -> registers, bytes of stack and local memory."""
    found, architecture, name = {}, "", ""
    for line in run("cuobjdump", "-res-usage", path).splitlines():
        if match := re.search(r"arch = (sm_\d+)", line):
            architecture = match[1]
        elif match := re.search(r"Function (\S+):", line):
            name = match[1]
        elif match := re.search(r"REG:(\d+) STACK:(\d+).*LOCAL:(\d+)", line):
            found[architecture, name] = int(match[1]), int(match[2]) + int(match[3])
    return found


def target(text: str) -> int | None:
    match = re.search(r"\bBRA\b.*?0x([0-9a-f]+)", text)
    return int(match[1], 16) if match else None


def ends(text: str) -> bool:
    """Return whether execution never continues behind this instruction."""
    return bool(re.match(r"(BRA(\.\w+)* 0x|EXIT|BRX|RET)", text))


def width(text: str) -> int:
    match = ACCESS.search(text)
    if match is None:
        return 0
    return next((size for mark, size in WIDTH.items() if f".{mark}" in match[0]), 4)


def hot_path(code: list[Instruction]) -> list[str]:
    """Return the loop's turn with the most 128-bit accesses; of several, that with the most arithmetic; of several, the
    one with the fewest instructions."""
    loops = []
    for at, text in code:
        to = target(text)
        if to is not None and to < at:
            body = [(a, t) for a, t in code if to <= a <= at]
            wide = sum(width(t) == 16 for _, t in body)
            if wide:
                loops.append((-wide if wide else 0, len(body), body))
    if not loops:
        return []
    most = min(loops)[0]
    body = min((loop for loop in loops if loop[0] <= 0.9 * most), key=lambda loop: loop[1])[2]
    places = {at: i for i, (at, _) in enumerate(body)}
    after_ends = [i for i in range(1, len(body)) if ends(body[i - 1][1])]
    # accesses, arithmetic, -instructions, where it came from
    best: list[tuple[int, int, int, int] | None] = [None] * len(body)
    best[0] = (0, 0, 0, -1)
    for i, (at, text) in enumerate(body):
        held = best[i]
        if held is None:
            continue
        score = (held[0] + (width(text) == 16), held[1] + bool(ARITHMETIC.search(text)), held[2] - 1)
        to = target(text)
        following = [] if ends(text) else [i + 1]
        if to is not None and to > at and to in places:
            following.append(places[to])
        if "BRX" in text:
            following += [j for j in after_ends if j > i]
        for j in following:
            if j < len(body) and (best[j] is None or score > best[j][:3]):  # type: ignore[index]
                best[j] = (*score, i)
    path, i = [], len(body) - 1
    while i >= 0 and (here := best[i]) is not None:
        path.append(body[i][1])
        i = here[3]
    return path[::-1]


def faults(kernel: str, code: list[Instruction]) -> list[str]:
    """Return what this kernel has and must not have, and what it lacks."""
    text = "\n".join(text for _, text in code)
    lacking = (kind for kind in STREAMING.get(kernel.split("<")[0], ()) if not re.search(rf"\b{kind}\.\S*128", text))
    return re.findall(r"\b(?:LDL|STL)\b", text)[:1] + [f"no {kind}.128" for kind in lacking]


def in_flight(path: list[str]) -> int:
    """Return the bytes that a turn requests before the first of them is used."""
    asked, waiting = 0, set()
    for text in path:
        registers = [int(number) for number in REGISTER.findall(text)]
        loads = "LDG" in text
        sources = registers[1:] if loads or "STG" not in text else registers
        if waiting & set(sources):
            break
        if loads and registers:
            asked += width(text)
            waiting |= set(range(registers[0], registers[0] + max(1, width(text) // 4)))
    return asked


class Seen(NamedTuple):
    """The figures of one kernel on one architecture; per element if that makes sense."""

    registers: int
    local: int
    wide: int
    bytes: float
    instructions: float
    doubles: float
    flight: int


def allowed(card: Card, seen: Seen, threads: int) -> tuple[float, str]:
    """Return GB/s, and what limits them."""
    registers = -(-seen.registers // 8) * 8
    resident = min(card.threads, 65536 // (registers * threads) * threads)
    lanes = card.processors * card.ghz
    rates = {
        "memory": card.gbps,
        "instructions": lanes * 128 / seen.instructions * seen.bytes,
        "loads in flight": card.processors * resident * seen.flight / card.latency,
    }
    if seen.doubles:
        rates["double precision"] = lanes * card.double_lanes / seen.doubles * seen.bytes
    limit = min(rates, key=lambda name: rates[name])
    return rates[limit], limit


def _figures(seen: Seen) -> tuple[str, ...]:
    return (
        f"{seen.registers}", f"{seen.wide}", f"{seen.bytes:.0f}", f"{seen.instructions:.1f}",
        f"{seen.doubles:.1f}", f"{seen.flight}",
    )  # fmt: skip


def table(found: dict[str, dict[str, Seen]]) -> str:
    """Return the table of kernels on the cards' architectures."""
    shown = sorted({card.architecture for card in CARDS.values()} & {a for by in found.values() for a in by})
    lines = [f"On {', '.join(shown)}; one figure where all are the same.", "",
             "| kernel | registers | 128-bit accesses a turn | bytes per element | "
             "instructions per element | of them double precision | bytes in flight per thread |",
             "|---|---|---|---|---|---|---|"]  # fmt: skip
    for label, by in found.items():
        columns = zip(*(_figures(by[architecture]) for architecture in shown), strict=True)
        cells = [column[0] if len(set(column)) == 1 else " / ".join(column) for column in columns]
        lines.append(f"| {label} | {' | '.join(cells)} |")
    return "\n".join(lines)


def limits(found: dict[str, dict[str, Seen]]) -> str:
    """Say on which cards another limit than the memory's bandwidth counts."""
    cards = {name: card for name, card in CARDS.items() if any(card.architecture in by for by in found.values())}
    named = ", ".join(f"{name} ({card.gbps:.0f} GB/s)" for name, card in cards.items())
    others = [
        f"{label} on {name} by {limit}, at {rate:.0f} GB/s"
        for label, by in found.items()
        for name, card in cards.items()
        if card.architecture in by
        for rate, limit in [allowed(card, by[card.architecture], SHOWN[label].threads)]
        if limit != "memory"
    ]
    return f"On {named} memory limits each kernel ({'; '.join(found)}), but for: {'; '.join(others) or 'none'}."


def main(arguments: list[str]) -> int:
    """The command line."""
    paths = [argument for argument in arguments if argument != "--write"]
    found: dict[str, dict[str, Seen]] = {label: {} for label in SHOWN}
    bad, count = [], 0
    for path in paths:
        held = functions(path)
        if not held:
            continue
        used = resources(path)
        mangled = sorted({name for _, name in held})
        plain = run("c++filt", *mangled).replace("fastagg::cuda::(anonymous namespace)::", "").splitlines()
        named = dict(zip(mangled, plain, strict=True))
        for (architecture, name), code in held.items():
            short = re.sub(r"^void (fastagg::cuda::)?", "", named[name])
            bad += [f"{short} on {architecture}: {fault}" for fault in faults(short, code)]
            count += 1
            for label, kernel in SHOWN.items():
                if not short.startswith(kernel.name):
                    continue
                path_of = hot_path(code)
                registers, local = used.get((architecture, name), (0, 0))
                doubles = sum(bool(re.search(r"\b(DADD|DMUL|DFMA|DSETP|F2F\.F64\.F32)\b", text)) for text in path_of)
                found[label][architecture] = Seen(
                    registers, local, sum(width(text) == 16 for text in path_of), kernel.bytes,
                    len(path_of) / kernel.elements, doubles / kernel.elements, in_flight(path_of),
                )  # fmt: skip
    missing = [label for label, by in found.items() if not by]
    bad += [
        f"{label} on {architecture}: {seen}"
        for label, by in found.items()
        for architecture, seen in by.items()
        if seen.local or not seen.wide or not seen.flight
    ]
    print(table(found), limits(found), sep="\n\n")
    print(f"{count} kernels disassembled, {len(bad)} with faults")
    for fault in [*(f"not found: {label}" for label in missing), *bad]:
        print(f"FAULT {fault}")
    if "--write" in arguments and not missing:
        text = DOCS.read_text()
        before, rest = text.split(BEGIN)
        DOCS.write_text(f"{before}{BEGIN}\n{limits(found)}\n{END}{rest.split(END)[1]}")
    return 1 if missing or bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
