"""Estimates the cost of a server of any size from measurements: python bench/scaling.py [--help]

The time of an arrival is a constant plus a part per parameter, fitted to this processor's rows in ``results/``. All
else comes from :func:`fastagg.plan`. For every size the table has the memory, the arrivals per second, and the resource
that is exhausted first.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import checkout  # noqa: F401
import results
from results import Row

import fastagg
from fastagg.planning import in_bytes

SIZES, CLIENTS = (1e5, 1e7, 1e9, 1e11), (1e2, 1e4, 1e6, 1e8)
BEYOND_CACHES = 5e6  # parameters
IN_FLIGHT = 1000  # clients whose rows are in memory, where rows are on a disk


# The measured case, the preset, and its settings.
RULES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "FedBuff": ("arrival FedBuff, M = 10", "FedBuff", {"buffer_size": 10}),
    "FADAS": ("arrival FADAS, M = 1", "FADAS", {"buffer_size": 1}),
    "ACE, int8": ("arrival ACE int8", "ACE", {"cache": "int8"}),
    "ACE, int4": ("arrival ACE int8", "ACE", {"cache": "int4"}),  # its time is at most int8's
    "ACE, int8 on a disk": ("arrival ACE int8", "ACE", {"cache": fastagg.Tiered("int8")}),
}


@dataclass(frozen=True)
class Time:
    """Seconds of an arrival: ``constant + per_parameter * d``."""

    constant: float
    per_parameter: float

    def __call__(self, size: float) -> float:
        return self.constant + self.per_parameter * size


def fit(measured: Iterable[tuple[float, float]]) -> Time:
    """Fit pairs of a size and seconds. The part per parameter comes from sizes that no cache holds. The constant is
    what remains at the smallest size. Sizes between take less time than fitted, because a cache helps them."""
    pairs = sorted(measured)
    large = [seconds / size for size, seconds in pairs if size >= BEYOND_CACHES]
    if len(large) == len(pairs) or not large:
        raise SystemExit("scaling: this needs rows of small and large arrivals: pytest bench/ --case arrival")
    part, (size, seconds) = statistics.mean(large), pairs[0]
    return Time(max(0.0, seconds - part * size), part)


def times(rows: Sequence[Row], processor: str) -> dict[str, list[tuple[float, float]]]:
    """Return measured sizes and seconds of every case, with the most threads."""
    ours = [row for row in rows if row.processor == processor and row.candidate == "fastagg"]
    most = max((row.threads for row in ours), default=0)
    found: dict[str, list[tuple[float, float]]] = {}
    for row in ours:
        if row.threads == most:
            found.setdefault(row.case, []).append((row.size, row.median))
    return found


def _cell(one: fastagg.Plan) -> str:
    machines = f" ({one.ranks:,})" if one.ranks > 1 else "" if one.ranks else " (refused)"
    return f"{in_bytes(one.needs['memory'].needed)}{machines}; {_digits(one.rate)}; {one.first}"


def _digits(number: float) -> str:
    return f"{number:.2g}" if number < 10 else f"{float(f'{number:.2g}'):,.0f}"


def main() -> None:
    """Print the fit and a table for every rule, as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processor", default="AMD EPYC (Zen 4)", help="whose rows are fitted")
    for name, default in (("memory", "512GB"), ("disk", "30TB"), ("network", "1.25GB"), ("writes", "1GB")):
        parser.add_argument(f"--{name}", default=default, help=f"as for fastagg.plan ({default})")
    given = vars(parser.parse_args())
    processor = given.pop("processor")
    measured = times(results.load(), processor)
    fitted = {name: fit(measured.get(case, [])) for name, (case, _, _) in RULES.items()}
    print(f"Fitted to {processor}:\n")
    print("| rule | seconds of an arrival | measured over fitted, by size |\n|---|---|---|")
    for name, (case, _, _) in RULES.items():
        time = fitted[name]
        off = ", ".join(f"{size:.0e}: {took / time(size):.2f}" for size, took in sorted(measured[case]))
        print(f"| {name} | {time.constant * 1e6:.1f} µs + {time.per_parameter * 1e9:.2f} ns a parameter | {off} |")
    for name, (_, rule, settings) in RULES.items():
        print(f"\n**{name}**: memory (and machines that hold it); arrivals a second; the resource that ends first\n")
        time, columns = fitted[name], CLIENTS if rule == "ACE" else CLIENTS[-1:]
        print("| parameters | " + " | ".join(f"{n:,.0f} clients" for n in columns) + " |")
        print("|---:|" + "---|" * len(columns))
        helps: dict[str, str] = {}
        for size in SIZES:
            found = [
                fastagg.plan(rule, clients=clients, parameters=size, in_flight=min(clients, IN_FLIGHT),
                             seconds=(time.constant, time.per_parameter), **given, **settings)
                for clients in columns
            ]  # fmt: skip
            helps |= {one.first: one.change for one in found if one.change}
            print(f"| {size:,.0f} | {' | '.join(map(_cell, found))} |")
        print("\nWhat helps: " + "; ".join(f"{first}: {change}" for first, change in helps.items()))


if __name__ == "__main__":
    main()
