"""The report's tables: a line for every step and size, a column for every processor and number of threads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import tables
from lead import is_peer
from records import Row

PLAIN = "plain C++ loop"
CODED = "fastagg, fp32 moments"  # what 8-bit moments are held against: nobody else's server has them
WHOLE = ("arrivals", "receive", "distillation")  # paths through a server or a loss, not one pass over vectors
Case = tuple[str, int, int]  # operation, d, clients
Column = tuple[str, int]  # processor, threads
Cases = Mapping[tuple[Column, Case], Sequence[Row]]

LEGEND = (
    "A cell has the median time and, where it is one pass, its share of streaming (of reading, where nothing is "
    "written); then what the best peer takes over fastagg's time, and which one it is; then what the plain C++ loop "
    "takes over it. **Bold**: less than fastagg. A dash: not measured."
)


def steps(cases: Cases) -> str:
    """Single passes."""
    return _table({key: rows for key, rows in cases.items() if not _whole(key[1][0]) and key[1][0] != "roofline"})


def paths(cases: Cases) -> str:
    """Whole arrivals and losses."""
    return _table({key: rows for key, rows in cases.items() if _whole(key[1][0])})


def streams(cases: Cases) -> str:
    """What memory gave: 100% of the shares, of the last run at each size."""
    return _table({key: rows for key, rows in cases.items() if key[1][0] == "roofline"}, _streams)


def _whole(operation: str) -> bool:
    return operation.startswith(WHOLE)


def _table(cases: Cases, cell: object = None) -> str:
    if not cases:
        return ""
    columns = sorted({column for column, _ in cases})
    heads = [f"{processor}, {tables.of(threads)}" for processor, threads in columns]
    lines = [f"| | d | {' | '.join(heads)} |", "|---|---:|" + "---|" * len(columns)]
    write = cell if callable(cell) else _cell
    for case in sorted({case for _, case in cases}):
        operation, size, clients = case
        named = f"{operation}, {clients} clients" if clients else operation
        cells = [write(cases[column, case]) if (column, case) in cases else "—" for column in columns]
        lines.append(f"| {named} | {size:,} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(rows: Sequence[Row]) -> str:
    own = next((row for row in rows if row.candidate.startswith("fastagg")), None)
    if own is None or own.seconds is None:
        return f"skipped: {own.skipped}" if own else "—"
    share = own.of_reading or own.of_roofline
    first = tables.time(own.seconds[1]) + (f", {share:.0%}" if share else "")
    peers = [row for row in rows if is_peer(row) and row.candidate != PLAIN]
    peers = peers or [row for row in rows if row.candidate == CODED]
    loop = [row for row in rows if row.candidate == PLAIN]
    return "; ".join([first, *_ratio(peers), *_ratio(loop)])


def _ratio(rows: Iterable[Row]) -> list[str]:
    found = [(row.slower[1], row.candidate) for row in rows if row.slower]
    if not found:
        return []
    ratio, name = min(found)
    return [f"**{ratio:.2f}** {name}" if ratio < 1 else f"{ratio:.2f} {name}"]


def _streams(rows: Sequence[Row]) -> str:
    kinds = {"copy/triad": ("copy", "triad"), "in place": ("in place",), "reading": ("read",)}
    found = {
        kind: max((row.gbps for row in rows if row.gbps and row.candidate.split(":")[0] in names), default=None)
        for kind, names in kinds.items()
    }
    return ", ".join(f"{kind} {speed:.0f}" for kind, speed in found.items() if speed) + " GB/s"
