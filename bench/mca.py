"""Predicts cycles per element of a loop on processors that are not available: python bench/mca.py amsgrad

It compiles peers/plain.cpp, or another file (--source, --flags), to assembly. In each named function it takes the
innermost loop that moves furthest per iteration, and asks llvm-mca. llvm-mca does not model caches and memory. If a
loop is predicted to take longer than moving its bytes, arithmetic is the limit.
"""

from __future__ import annotations

import argparse
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from itertools import dropwhile, takewhile
from pathlib import Path

BENCH = Path(__file__).resolve().parent
# With the instruction sets to compile for, because older compilers do not know the newer names.
CPUS = {
    "znver3": "x86-64-v3", "znver4": "x86-64-v4", "icelake-server": "x86-64-v4", "sapphirerapids": "x86-64-v4",
}  # fmt: skip
FLAGS = "-O3 -mprefer-vector-width=256 -ffp-contract=off -fno-math-errno -fno-trapping-math -fopenmp-simd"
TURNS = 1000


def main(arguments: list[str] | None = None) -> int:
    """Print a Markdown table. Return 1 if a loop was not found, 2 if llvm-mca is missing."""
    parser = argparse.ArgumentParser(prog="bench/mca.py", description=__doc__)
    parser.add_argument("functions", nargs="*", help="by default all that the source declares with LOOP")
    parser.add_argument("--source", type=Path, default=BENCH / "peers" / "plain.cpp")
    parser.add_argument("--flags", default=FLAGS, help="the compiler's, as one word; -march is added")
    parser.add_argument("--ghz", type=float, default=3.0, help="the clock that cycles become nanoseconds at")
    given = parser.parse_args(arguments)
    if (tool := find()) is None:
        print("llvm-mca is not here; on Debian or Ubuntu: apt install llvm-19", file=sys.stderr)
        return 2
    cpus = {cpu: march for cpu, march in CPUS.items() if knows(tool, cpu)}
    for cpu in CPUS.keys() - cpus.keys():
        print(f"{tool} does not know {cpu}: left out", file=sys.stderr)
    print(f"Cycles per element, and ns at {given.ghz:g} GHz, by {version(tool)}:\n")
    print(f"| loop | {' | '.join(cpus)} |\n|---|{'---|' * len(cpus)}")
    flags = shlex.split(given.flags)
    assembly = {march: compiled(given.source, [*flags, f"-march={march}"]) for march in set(cpus.values())}
    missing = False
    for function in given.functions or re.findall(r"^LOOP (\w+)\(", given.source.read_text(), re.MULTILINE):
        cells = []
        for cpu, march in cpus.items():
            lines, step = widest(body(assembly[march], function))
            missing |= not lines
            each = cycles(tool, cpu, lines) / step * 4 if lines else 0.0
            cells.append(f"{each:.3f}, {each / given.ghz:.3f} ns" if lines else "no loop")
        print(f"| {function} | {' | '.join(cells)} |")
    return int(missing)


def find() -> str | None:
    """Return llvm-mca 19 if available, otherwise the newest version."""
    wanted = ["llvm-mca-19", *(f"llvm-mca-{number}" for number in range(30, 13, -1)), "llvm-mca"]
    return next((name for name in wanted if shutil.which(name)), None)


def version(tool: str) -> str:
    said = subprocess.run([tool, "--version"], capture_output=True, text=True, check=True).stdout
    number = re.search(r"LLVM version (\S+)", said)
    return f"llvm-mca {number[1]}" if number else tool


def knows(tool: str, cpu: str) -> bool:
    done = subprocess.run([tool, f"-mcpu={cpu}"], input="nop\n", capture_output=True, text=True, check=False)
    return done.returncode == 0 and "not a recognized processor" not in done.stderr


def compiled(source: Path, flags: Sequence[str]) -> list[str]:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "loops.s"
        subprocess.run(["c++", "-std=c++17", *flags, "-S", "-o", str(out), str(source)], check=True)
        return out.read_text().splitlines()


def body(assembly: Sequence[str], function: str) -> list[str]:
    """Return the lines of a function, with or without a mangled name."""
    label = re.compile(rf"(?:{function}|_Z\w*{len(function)}{function}\w*):")
    lines = dropwhile(lambda line: not label.match(line), assembly)
    return list(takewhile(lambda line: not line.lstrip().startswith(".cfi_endproc"), lines))


def widest(lines: Sequence[str]) -> tuple[list[str], int]:
    """Return the innermost loop that moves furthest per iteration, and the bytes of fp32 that it moves."""
    best: tuple[list[str], int] = ([], 0)
    for at, line in enumerate(lines):
        jump = re.match(r"\s+j\w+\s+(\.L\w+)", line)
        start = next((k for k in range(at) if jump and lines[k].startswith(f"{jump[1]}:")), None)
        if start is None:
            continue
        loop = [text for text in lines[start + 1 : at + 1] if not text.lstrip().startswith((".p2align", ".loc", "#"))]
        text = "\n".join(loop)
        steps = re.findall(r"\s(?:add|sub)q\s+\$-?(\d+), (%r\w+)", text)
        # An index may count elements instead of bytes; the addresses show which.
        moved = max((int(step) * (4 if f"{register},4)" in text else 1) for step, register in steps), default=0)
        if moved > best[1] and ":" not in text:
            best = (loop, moved)
    return best


def cycles(tool: str, cpu: str, loop: Sequence[str]) -> float:
    """Return the cycles per iteration, averaged over many."""
    command = [tool, "-mtriple=x86_64-linux-gnu", f"-mcpu={cpu}", f"-iterations={TURNS}"]
    done = subprocess.run(command, input="\n".join([*loop, ""]), capture_output=True, text=True, check=True)
    found = re.search(r"Total Cycles:\s+(\d+)", done.stdout)
    assert found is not None, done.stdout
    return int(found[1]) / TURNS


if __name__ == "__main__":
    sys.exit(main())
