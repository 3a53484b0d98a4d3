"""Converts rows to Markdown: a run's own table, and what the report's pages share."""

from __future__ import annotations

from collections.abc import Sequence

from measure import Found, is_peer
from problem import Case
from results import Row

UNITS = (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6), ("ns", 1e-9))


def time(seconds: float) -> str:
    """Return a time with three digits."""
    name, scale = next((unit for unit in UNITS if seconds >= unit[1]), UNITS[-1])
    return f"{seconds / scale:.3g} {name}"


def value(row: Row) -> str:
    """Return the median in its unit."""
    if row.unit == "s":
        return time(row.median)
    if row.unit == "B":
        return f"{row.median / 1e6:.3g} MB"
    return f"{row.median:.3g} {'bytes/parameter' if row.unit == 'B/parameter' else 'a second'}"


def ratio(row: Row) -> str:
    """Return the candidate's time over fastagg's. It is bold if a peer's is less."""
    if row.ratio is None:
        return ""
    text = f"{row.ratio[1]:.2f}"
    return f"**{text}**" if loses(row) else text


def loses(row: Row) -> bool:
    """Return whether this peer is faster than fastagg, as far as two digits show."""
    return is_peer(row.candidate) and row.ratio is not None and round(row.ratio[1], 2) < 1


def best_peer(rows: Sequence[Row]) -> Row | None:
    """Return the fastest of the peers."""
    peers = [row for row in rows if is_peer(row.candidate) and row.ratio is not None]
    return min(peers, key=lambda row: row.ratio[1] if row.ratio else 0.0, default=None)


def threads(count: int) -> str:
    """Return the number of threads in words."""
    return {0: "the card", 1: "1 thread"}.get(count, f"{count} threads")


def size(d: int) -> str:
    """Return a number of parameters in short form."""
    for unit, scale in (("M", 1e6), ("k", 1e3)):
        if d >= scale:
            return f"{d / scale:.3g} {unit}"
    return str(d)


def measured(case: Case, d: int, count: int, found: Found) -> str:
    """Return the candidates of one case at one size, and how quiet the machine was."""
    lines = [
        f"### {case.name}, d = {d:,}, {threads(count)}",
        "",
        f"Other processes took at most {found.others:.0%} of the cores' time in a round; {found.discarded} disturbed "
        "rounds were discarded.",
        "",
        "| candidate | time (p20 to p80) | of streaming | its time / fastagg's (p20 to p80) |",
        "|---|---|---|---|",
    ]
    for row in found.rows:
        spread = f" ({time(row.p20)} to {time(row.p80)})" if row.unit == "s" else ""
        between = f" ({row.ratio[0]:.2f} to {row.ratio[2]:.2f})" if row.ratio else ""
        share = "" if row.share is None else f"{row.share:.0%}"
        name = row.candidate if row.case == case.name else f"{row.case}: {row.candidate}"
        lines.append(f"| {name} | {value(row)}{spread} | {share} | {ratio(row)}{between} |")
    lines += [f"| {name} | skipped: {reason} | | |" for name, reason in found.skipped.items()]
    return "\n".join(lines) + "\n"
