"""What a server of any size costs, by fastagg.plan: the tables of docs/performance/scaling.md: python bench/scaling.py

The time of an arrival is a constant plus a part per parameter, fitted to a processor's rows in ``results/``.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from typing import Any

import checkout  # noqa: F401
import results

import fastagg
from fastagg.planning import in_bytes

PROCESSOR, THREADS = "AMD EPYC (Zen 4)", 2
SIZES, CLIENTS = (1e5, 1e7, 1e9, 1e11), (1e2, 1e4, 1e6)
BEYOND_CACHES = 5e6  # parameters
IN_FLIGHT = 1000  # clients whose rows are in memory, where rows are on a disk
RULES: dict[str, tuple[str, tuple[float, ...], str, dict[str, Any]]] = {  # the case, columns, the preset, its settings
    "FADAS": ("arrival FADAS, M = 1", (1e8,), "FADAS", {"buffer_size": 1}),
    "ACE, int8": ("arrival ACE int8", CLIENTS, "ACE", {"cache": "int8"}),
    "ACE, int8 on a disk": ("arrival ACE int8", CLIENTS, "ACE", {"cache": fastagg.Tiered("int8")}),
}


def fit(measured: Iterable[tuple[float, float]]) -> tuple[float, float]:
    """Return the constant and the part per parameter that pairs of a size and seconds have. The part comes from sizes
    that no cache holds, the constant is what remains at the smallest one. Sizes between take less, because a cache
    helps them."""
    pairs = sorted(measured)
    large = [seconds / size for size, seconds in pairs if size >= BEYOND_CACHES]
    if len(large) == len(pairs) or not large:
        raise SystemExit("scaling: this needs rows of small and large arrivals: pytest bench/ --case arrival")
    part, (size, seconds) = statistics.mean(large), pairs[0]
    return max(0.0, seconds - part * size), part


def _cell(one: fastagg.Plan) -> str:
    machines = f" ({one.ranks:,})" if one.ranks > 1 else "" if one.ranks else " (refused)"
    rate = f"{one.rate:.2g}" if one.rate < 10 else f"{float(f'{one.rate:.2g}'):,.0f}"
    return f"{in_bytes(one.needs['memory'].needed)}{machines}; {rate}; {one.first}"


def main() -> None:
    """Print the fit and a table for every rule, as Markdown."""
    for name, (case, columns, rule, settings) in RULES.items():
        rows = [row for row in results.load() if (row.processor, row.candidate, row.case, row.threads)
                == (PROCESSOR, "fastagg", case, THREADS)]  # fmt: skip
        fixed, part = fitted = fit((row.size, row.median) for row in rows)
        off = ", ".join(f"{row.size:.0e}: {row.median / (fixed + part * row.size):.2f}" for row in rows)
        print(f"**{name}**: {fixed * 1e6:.1f} µs + {part * 1e9:.2f} ns a parameter (measured over fitted: {off})\n")
        print("| parameters | " + " | ".join(f"{n:,.0f} clients" for n in columns) + " |")
        print("|---:|" + "---|" * len(columns))
        for size in SIZES:
            found = (fastagg.plan(rule, clients=clients, parameters=size, in_flight=min(clients, IN_FLIGHT),
                                  seconds=fitted, **settings) for clients in columns)  # fmt: skip
            print(f"| {size:,.0f} | {' | '.join(map(_cell, found))} |")


if __name__ == "__main__":
    main()
