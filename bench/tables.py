"""Rows to Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from records import Row


def markdown(rows: Sequence[Row], machine: dict[str, Any]) -> str:
    """One table per operation and size, the machine above them."""
    parts = [heading(machine)]
    groups: dict[tuple[str, int, int, int], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.operation, row.size, row.threads, row.clients), []).append(row)
    for (operation, size, threads, clients), group in groups.items():
        parts.append(table(operation, size, group, clients, of(threads)))
    return "\n\n".join(parts) + "\n"


def of(threads: int) -> str:
    """In words."""
    return "1 thread" if threads == 1 else f"{threads} threads"


def heading(machine: dict[str, Any]) -> str:
    """One sentence: on what and with what."""
    memory = (machine["memory_bytes"] or 0) / 2**30
    caches = ", ".join(f"{level} {size}" for level, size in machine["caches"].items())
    return (
        f"{machine['device']}, {machine['cores']} cores ({caches}), {memory:.0f} GiB; {machine['system']}, huge pages "
        f"`{machine['huge_pages']}`; Python {machine['python']}, torch {machine['torch']} "
        f"({machine['torch_threads']} threads), NumPy {machine['numpy']}; fastagg {machine['commit']} "
        f"({machine['isa']}, {machine['threads']} threads); {machine['date']}."
    )


def table(operation: str, size: int, rows: Iterable[Row], clients: int = 0, about: str = "") -> str:
    """The candidates of one operation at one size, and how quiet the machine was."""
    rows = list(rows)
    of_clients = f", {clients} clients" if clients else ""
    others = max((row.others or 0.0 for row in rows), default=0.0)
    discarded = max((row.discarded for row in rows), default=0)
    second = "of reading" if _reads(rows) else "of in place"
    lines = [
        f"### {operation}, d = {size:,}{of_clients}",
        "",
        f"{about}.{_streams(rows)} Other processes took at most {others:.0%} of the cores' time in a round; "
        f"{discarded} disturbed rounds were discarded.",
        "",
        f"| candidate | time (p20 to p80) | B/param | GB/s | of copy/triad | {second} | its time / fastagg's | |",
        "|---|---|---|---|---|---|---|---|",
    ]
    return "\n".join(lines + [_line(row) for row in rows])


def _reads(rows: Sequence[Row]) -> bool:
    return any(row.of_reading is not None for row in rows)


def _streams(rows: Sequence[Row]) -> str:
    """What memory gave in that run: on a shared machine others may be using it, and no counter here says so."""
    kinds: dict[str, list[float]] = {"copy/triad": [], "in place": [], "reading": []}
    for row in rows:
        for kind, share in (
            ("copy/triad", row.of_roofline), ("in place", row.of_in_place), ("reading", row.of_reading)
        ):  # fmt: skip
            if row.gbps and share:
                kinds[kind].append(row.gbps / share)
    found = [f"{kind} {speeds[0]:.0f} GB/s" for kind, speeds in kinds.items() if speeds]
    return f" Streaming: {', '.join(found)}." if found else ""


def _line(row: Row) -> str:
    if row.seconds is None or row.slower is None:
        return f"| {row.candidate} | | {row.bytes} | | | | | skipped: {row.skipped} |"
    p20, p50, p80 = (time(value) for value in row.seconds)
    s20, s50, s80 = row.slower
    speeds = ["" if v is None else f"{v:.0%}" for v in (row.of_roofline, row.of_reading or row.of_in_place)]
    gbps = "" if row.gbps is None else f"{row.gbps:.1f}"
    return (
        f"| {row.candidate} | {p50} ({p20} to {p80}) | {row.bytes or ''} | {gbps} | {speeds[0]} | {speeds[1]} | "
        f"{s50:.2f} ({s20:.2f} to {s80:.2f}) | {row.note} |"
    )


def time(seconds: float) -> str:
    """With three digits."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"
