"""Measures the memory of Flower's rounds by the number of clients, with fastagg's and with Flower's strategies.

python bench/memory_curves.py --measure 10000000    # prints the table, each figure from a process of its own
python bench/memory_curves.py                       # draws the table of docs/performance/frameworks.md
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import peak
from cases import CASES
from checkout import ROOT
from matplotlib.figure import Figure

from fastagg import drawing

FOLDER = ROOT / "docs" / "performance"
CASE = re.compile(r"Flower's rounds, (\w+), (\d+) clients")
Curves = dict[str, list[tuple[int, float]]]  # strategy -> (clients, models of memory)


def curves(page: str) -> Curves:
    """Return the table's rows."""
    table = re.search(r"(?m)^\| strategy (\|.*)\n\|-.*\n((?:\|.*\n)+)", page)
    if table is None:
        raise ValueError("the page has no table by strategy and clients")
    clients = [int(count) for count in re.findall(r"(\d+) clients", table[1])]
    rows = ([cell.strip() for cell in line[1:-1].split("|")] for line in table[2].splitlines())
    return {
        name: [(count, float(most)) for count, most in zip(clients, models, strict=True) if most]
        for name, *models in rows
    }


def measure(parameters: int) -> None:
    """Print the table: the peak of memory besides the first model, in models."""
    cases = [(found[1], int(found[2]), CASES[name]) for name in CASES if (found := CASE.fullmatch(name))]
    clients = sorted({count for _, count, _ in cases})
    print("| strategy |", " | ".join(f"{count} clients" for count in clients), "|")
    print("|---|" + "---:|" * len(clients))
    sides = dict.fromkeys((one.name, rule) for rule, _, case in cases for one in case.candidates())
    for whose, rule in sorted(sides, key=lambda side: side[0] == "fastagg"):
        row = [peak.alone(f"Flower's rounds, {rule}, {count} clients", whose, parameters) for count in clients]
        print(f"| {whose} {rule} | {' | '.join(f'{models:.1f}' for models in row if models is not None)} |", flush=True)


def draw(found: Curves, path: Path) -> None:
    """Draw the memory, in models, by the number of clients. Lines of Flower's strategies are dashed."""
    figure = Figure(figsize=(5.6, 3.6), layout="constrained")
    axes = figure.subplots()
    for number, (name, points) in enumerate(found.items()):
        look = drawing.look(number) | ({"linestyle": "--"} if name.startswith("Flower") else {"linestyle": "-"})
        axes.plot(*zip(*points, strict=True), label=name, **look)
    drawing.logarithmic(axes, "x")
    drawing.logarithmic(axes, "y")
    ticks = sorted({count for points in found.values() for count, _ in points})
    axes.set_xticks(ticks, [str(count) for count in ticks])
    axes.set_yticks([2, 5, 10, 20, 50, 100], ["2", "5", "10", "20", "50", "100"])
    axes.minorticks_off()
    axes.set_xlabel("clients in a round")
    axes.set_ylabel("models of memory at the peak")
    axes.legend(fontsize=drawing.TEXT - 2, frameon=False)
    drawing.tidy(axes)
    drawing.save(figure, path)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--measure", type=int, metavar="PARAMETERS", help="print the table instead")
    given = parser.parse_args()
    if given.measure:
        measure(given.measure)
    else:
        draw(curves((FOLDER / "frameworks.md").read_text()), FOLDER / "flower-memory.png")
