"""Estimates the cost of a server of any size from measurements: python bench/scaling.py [--help]

The time of an arrival is a constant plus a part per parameter, fitted to this processor's rows in ``results/``. Memory,
network and disk follow from the rule. A machine's resources and prices are arguments and assumptions. For every size
the table has the arrivals per second of one machine, the resource that is exhausted first, and what helps then.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import results
from results import Row

SIZES, CLIENTS = (1e5, 1e7, 1e9, 1e11), (1e2, 1e4, 1e6, 1e8)
BYTES = 4.0  # bytes per parameter that is sent, in each direction
BEYOND_CACHES = 5e6  # parameters
IN_FLIGHT = 1000  # clients whose rows are in memory, where rows are on a disk
MOVED = 2.25  # rows that an arrival reads and writes there: its own twice, and a quarter for the scrub


@dataclass(frozen=True)
class Rule:
    """The measured case of a rule, and the bytes of state that the rule needs.

    Attributes:
        case: the case of the rows.
        state: bytes per parameter: model, the next version, moments, buffer or sum.
        row: bytes per parameter and client.
        client: bytes per client: ledger, weights.
        leaves: whether the rule takes sums of several clients.
        on_disk: whether rows are on a disk. Memory then holds those of clients in flight.
    """

    case: str
    state: float
    row: float = 0.0
    client: float = 16.0
    leaves: bool = False
    on_disk: bool = False


RULES = {
    "FedBuff": Rule("arrival FedBuff, M = 10", 12.0, leaves=True),
    "FADAS": Rule("arrival FADAS, M = 1", 24.0, leaves=True),
    "ACE, int8": Rule("arrival ACE int8", 12.0, row=1.016, client=24.0),
    "ACE, int4": Rule("arrival ACE int8", 12.0, row=0.516, client=24.0),  # its time is at most int8's
    "ACE, int8 on a disk": Rule("arrival ACE int8", 12.0, row=1.016, client=36.0, on_disk=True),
}


@dataclass(frozen=True)
class Machine:
    """A machine: bytes of memory and of the disk for rows, bytes per second, euros."""

    memory: float
    store: float
    network: float
    disk: float
    hour: float
    egress: float  # per byte


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
        raise SystemExit("scaling: this needs rows of small and large arrivals: python bench/run.py arrival")
    part, (size, seconds) = statistics.mean(large), pairs[0]
    return Time(max(0.0, seconds - part * size), part)


@dataclass(frozen=True)
class Cost:
    """The cost of one size on one machine, or on as many machines as its memory needs.

    Attributes:
        memory: bytes.
        machines: how many machines hold it.
        rates: the arrivals per second that each resource allows.
        limit: the resource that is exhausted first.
        helps: what to do then.
        euros: the cost of a million arrivals.
    """

    memory: float
    machines: int
    rates: dict[str, float]
    limit: str
    helps: str
    euros: float

    @property
    def rate(self) -> float:
        """Arrivals per second."""
        return min(self.rates.values())


def cost(rule: Rule, time: Time, size: float, clients: float, machine: Machine) -> Cost:
    """Return the cost of ``size`` parameters and ``clients`` clients."""
    rows = rule.row * size * (min(clients, IN_FLIGHT) if rule.on_disk else clients)
    memory = rule.state * size + rows + rule.client * clients
    stored = rule.row * size * clients if rule.on_disk else 0.0
    machines = max(1, math.ceil(memory / machine.memory), math.ceil(stored / machine.store))
    rates = {
        "memory bandwidth": 1.0 / (time.constant + time.per_parameter * size / machines),
        "network": machines * machine.network / (BYTES * size),
        "disk": machines * machine.disk / ((BYTES + MOVED * rule.row * rule.on_disk) * size),
    }
    limit = min(rates, key=lambda name: rates[name])
    if machines > 1:
        limit = "disk space" if stored / machine.store > memory / machine.memory else "memory"
    more = "leaves" if rule.leaves else "shards"
    helps = {
        "memory": "shards" if rows <= memory / 2 else "rows on a disk, int4 rows, then shards",
        "disk space": "int4 rows, or a rule without rows",
        "memory bandwidth": "receive_many" if time.constant > time.per_parameter * size else "shards",
        "network": f"fp16 updates, {more}",
        "disk": f'durability="step", {more}',
    }[limit]
    hours = 1e6 / min(rates.values()) / 3600
    euros = machines * hours * machine.hour + 1e6 * BYTES * size * machine.egress
    return Cost(memory, machines, rates, limit, helps, euros)


def times(rows: Sequence[Row], processor: str) -> dict[str, list[tuple[float, float]]]:
    """Return measured sizes and seconds of every case, with the most threads."""
    ours = [row for row in rows if row.processor == processor and row.candidate == "fastagg" and row.unit == "s"]
    most = max((row.threads for row in ours), default=0)
    found: dict[str, list[tuple[float, float]]] = {}
    for row in ours:
        if row.threads == most:
            found.setdefault(row.case, []).append((row.size, row.median))
    return found


def _cell(one: Cost) -> str:
    machines = f" ({one.machines:,})" if one.machines > 1 else ""
    return f"{in_bytes(one.memory)}{machines}; {_digits(one.rate)}; {one.limit}"


def _digits(number: float) -> str:
    return f"{number:.2g}" if number < 10 else f"{float(f'{number:.2g}'):,.0f}"


def in_bytes(count: float) -> str:
    """Return a number of bytes with three digits and a unit."""
    for unit in ("B", "kB", "MB", "GB", "TB", "PB"):
        if count < 999.5 or unit == "PB":
            return f"{count:.3g} {unit}" if count < 999.5 else f"{count:,.0f} {unit}"
        count /= 1000
    raise AssertionError


def main() -> None:
    """Print the fit and a table for every rule, as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processor", default="AMD EPYC (Zen 4)", help="whose rows are fitted")
    parser.add_argument("--memory", type=float, default=512e9, help="bytes of a machine (512e9)")
    parser.add_argument("--store", type=float, default=30e12, help="bytes of a machine's disk for rows (30e12)")
    parser.add_argument("--network", type=float, default=1.25e9, help="bytes a second, each way (1.25e9)")
    parser.add_argument("--disk", type=float, default=1e9, help="bytes a second of the journal (1e9)")
    parser.add_argument("--hour", type=float, default=4.0, help="euros an hour (4)")
    parser.add_argument("--egress", type=float, default=0.05e-9, help="euros a byte that is sent out (0.05e-9)")
    given = parser.parse_args()
    machine = Machine(given.memory, given.store, given.network, given.disk, given.hour, given.egress)
    measured = times(results.load_all(), given.processor)
    fitted = {name: fit(measured.get(rule.case, [])) for name, rule in RULES.items()}
    print(f"Fitted to {given.processor}:\n")
    print("| rule | seconds of an arrival | measured over fitted, by size |\n|---|---|---|")
    for name, rule in RULES.items():
        time = fitted[name]
        off = ", ".join(f"{size:.0e}: {took / time(size):.2f}" for size, took in sorted(measured[rule.case]))
        print(f"| {name} | {time.constant * 1e6:.1f} µs + {time.per_parameter * 1e9:.2f} ns a parameter | {off} |")
    for name, rule in RULES.items():
        print(f"\n**{name}**: memory (and machines that hold it); arrivals a second; the resource that ends first\n")
        columns = CLIENTS if rule.row else CLIENTS[-1:]
        print("| parameters | euros of a million | " + " | ".join(f"{n:,.0f} clients" for n in columns) + " |")
        print("|---:|---:|" + "---|" * len(columns))
        helps: dict[str, str] = {}
        for size in SIZES:
            found = [cost(rule, fitted[name], size, clients, machine) for clients in columns]
            helps |= {one.limit: one.helps for one in found}
            cells = " | ".join(map(_cell, found))
            print(f"| {size:,.0f} | {_digits(found[0].euros)} | {cells} |")
        print("\nWhat helps: " + "; ".join(f"{limit}: {help_}" for limit, help_ in helps.items()))


if __name__ == "__main__":
    main()
