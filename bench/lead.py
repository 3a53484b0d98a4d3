"""Where fastagg loses, on every processor: the first words of docs/performance.md."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby

import tables
from records import Row

BARS = (11_200_000, 110_000_000)
STREAMING, AGAINST_FUSED, CODED = 0.85, 1.15, 1.6
FLOORS = ("the kernels alone", "the training alone")  # less work than ours by intent, so no peers
Rows = Mapping[str, Sequence[Row]]  # by processor


def lead(rows: Rows) -> str:
    """A paragraph, and a table of the peers that are faster somewhere."""
    counts = ", ".join(f"in {_count(found)} on {name}" for name, found in rows.items())
    opening = f"**Where fastagg loses.** A peer is faster {counts}; the table names them."
    if not any(_lost(row) for found in rows.values() for row in found):
        opening = f"**No peer is faster than fastagg in any row below** ({counts})."
    return "\n\n".join([" ".join([opening, *_bars(rows)]), *_table(rows)])


def is_peer(row: Row) -> bool:
    """Whether fastagg should be faster."""
    return row.slower is not None and not row.candidate.startswith("fastagg") and row.candidate not in FLOORS


def _lost(row: Row) -> bool:
    return is_peer(row) and row.slower is not None and row.slower[1] < 1


def _count(rows: Sequence[Row]) -> str:
    cases = {(row.operation, row.size, row.threads, row.clients): False for row in rows if is_peer(row)}
    for row in rows:
        if _lost(row):
            cases[row.operation, row.size, row.threads, row.clients] = True
    return f"{sum(cases.values())} of {len(cases)} cases"


def _table(rows: Rows) -> list[str]:
    lost = sorted({(row.operation, row.candidate) for found in rows.values() for row in found if _lost(row)})
    if not lost:
        return []
    lines = [f"| step | peer | {' | '.join(rows)} |", "|---|---|" + "---|" * len(rows)]
    for operation, candidate in lost:
        cells = [
            _cell([row for row in found if (row.operation, row.candidate) == (operation, candidate) and row.slower])
            for found in rows.values()
        ]
        lines.append(f"| {operation} | {candidate} | {' | '.join(cells)} |")
    return ["\n".join(lines)]


def _cell(rows: Sequence[Row]) -> str:
    """How much faster a peer is and at which sizes, for every number of threads and clients."""
    if not rows:
        return "not measured"
    lost = sorted((row for row in rows if _lost(row)), key=lambda row: (row.threads, row.clients, row.size))
    if not lost:
        return f"not faster: {_range([row.slower[1] for row in rows if row.slower])} of our time"
    places = []
    for (threads, clients), group in groupby(lost, key=lambda row: (row.threads, row.clients)):
        of = list(group)
        sizes = [f"{row.size:,}" for row in of]
        at = sizes[0] if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]}"
        within = ", within the spread" if all(row.slower and row.slower[2] >= 1 for row in of) else ""
        of_clients = f", {clients} clients" if clients else ""
        times = _range([1 / row.slower[1] for row in of if row.slower])
        places.append(f"{times} times as fast at d = {at}{of_clients} ({tables.of(threads)}{within})")
    return "; ".join(places)


def _range(values: Sequence[float]) -> str:
    low, high = f"{min(values):.2f}", f"{max(values):.2f}"
    return low if low == high else f"{low} to {high}"


def _bars(rows: Rows) -> list[str]:
    """The bars that are missed somewhere, at the two sizes that have bars, on all cores."""
    barred = {name: [row for row in found if row.size in BARS and row.threads != 1] for name, found in rows.items()}
    return [
        *_each(barred, f"Below {STREAMING:.0%} of streaming", _slow),
        *_each(
            barred, f"Fused AMSGrad of torch takes less than {AGAINST_FUSED} of our time",
            lambda found: _short(found, "amsgrad", "torch.optim fused", AGAINST_FUSED),
        ),
        *_each(
            barred, f"AMSGrad with fp32 moments takes less than {CODED} of the time with 8-bit ones",
            lambda found: _short(found, "amsgrad 8bit", "fastagg, fp32 moments", CODED),
        ),
    ]  # fmt: skip


def _each(rows: Rows, words: str, missed: Callable[[Sequence[Row]], list[str] | None]) -> list[str]:
    """One sentence with every processor in it, or none where no processor misses the bar."""
    found = {name: missed(of) for name, of in rows.items()}
    if not any(found.values()):
        return []
    said = [
        f"on {name} {'not measured' if cases is None else ', '.join(cases) or 'nowhere'}"
        for name, cases in found.items()
    ]
    return [f"{words}: {'; '.join(said)}."]


def _slow(rows: Sequence[Row]) -> list[str] | None:
    shares = [
        (row, share) for row in rows
        if row.candidate == "fastagg" and (share := row.of_reading or row.of_roofline)
    ]  # fmt: skip
    return None if not shares else [
        f"{row.operation} at d = {row.size:,} ({share:.0%}{' of reading' if row.of_reading else ''})"
        for row, share in shares if share < STREAMING
    ]  # fmt: skip


def _short(rows: Sequence[Row], operation: str, candidate: str, least: float) -> list[str] | None:
    """Where a candidate's time over ours is less than it should be."""
    found = [row for row in rows if (row.operation, row.candidate) == (operation, candidate) and row.slower]
    return None if not found else [
        f"{row.slower[1]:.2f} at d = {row.size:,}" for row in found if row.slower and row.slower[1] < least
    ]  # fmt: skip
