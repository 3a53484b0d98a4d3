"""Makes docs/performance.md, its pictures and its full tables from the rows in results/: python bench/report.py

`--check` writes nothing. It fails if the pages do not match the results. The page has ratios only, in columns that a
phone can show; the tables have every candidate. Both mark a loss in its cell.
"""

from __future__ import annotations

import argparse
import math
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))  # a checkout that was not installed: its own package

import figures
import results
import tables
from cases import CASES
from measure import is_peer
from problem import OURS, SIZES, Case
from results import Row

TEXT = Path(__file__).with_name("page.md")  # the text of the page, with {} where figures are inserted
DOCS = results.ROOT / "docs"
NEAR = 1.25  # a column also takes sizes up to this factor away
At = tuple[str, int, int]  # case, size, threads


def main(arguments: list[str] | None = None) -> int:
    """Write the pages and the pictures; with --check compare the pages. Return 1 if one is stale, 2 for bad results."""
    parser = argparse.ArgumentParser(prog="bench/report.py", description=__doc__)
    parser.add_argument("--results", type=Path, default=results.RESULTS, help="folder of JSONL files")
    parser.add_argument("--out", type=Path, default=DOCS, help="folder of performance.md and performance/")
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 if a page is stale")
    given = parser.parse_args(arguments)
    try:
        rows = results.load_all(given.results)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    pages = {"performance.md": page(rows), "performance/tables.md": full(rows)}
    if given.check:
        stale = [n for n, text in pages.items() if not (given.out / n).is_file() or (given.out / n).read_text() != text]
        stale += [n for n, _ in figures.captions(rows) if not (given.out / "performance" / n).is_file()]
        if stale:
            print(f"{', '.join(stale)}: not what the results say: run python bench/report.py", file=sys.stderr)
        return int(bool(stale))
    for name, text in pages.items():
        (given.out / name).parent.mkdir(parents=True, exist_ok=True)
        (given.out / name).write_text(text)
    figures.draw(rows, given.out / "performance")
    return 0


def page(rows: Sequence[Row]) -> str:
    """Return the page of one screen."""
    names = sorted({row.processor for row in rows})
    parts = [TEXT.read_text()]
    found = {
        "updates": _screen(rows, names, "arrival"),
        "kernels": _screen(rows, names, "kernel"),
        "losses": _losses(rows, names),
        "pictures": "\n\n".join(f"![{words}](performance/{name})\n\n{words}" for name, words in figures.captions(rows)),
        "simulator": _runs(rows, names),
        "machines": "\n".join(f"- {name}: {_software(rows, name)}" for name in names),
    }
    text = parts[0]
    for key, value in found.items():
        text = text.replace(f"{{{key}}}", value)
    return text


def _screen(rows: Sequence[Row], names: Sequence[str], group: str) -> str:
    """Return a table of ratios for each processor: a line for each case that has a peer, a column for each size."""
    parts = []
    for name in names:
        sizes = [tables.size(size).replace(" ", "") for size in SIZES]  # narrow, for a phone
        lines = [f"**{name}**", "", f"| | {' | '.join(sizes)} |", "|---|" + "---:|" * len(SIZES)]
        for case in (one for one in CASES.values() if one.group == group):
            cells = [_cell(_near(rows, name, case, size)) for size in SIZES]
            if any(cells):
                lines.append(f"| {name_of(case)} | {' | '.join(cells)} |")
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def _near(rows: Iterable[Row], processor: str, case: Case, size: int) -> list[Row]:
    """Return a case's rows at the measured size nearest to ``size``, with the most threads."""
    near = [
        row for row in rows
        if (row.processor, row.case, row.unit) == (processor, case.name, "s") and size / NEAR <= row.size <= size * NEAR
    ]  # fmt: skip
    if not near:
        return []
    places = [(row.size, row.threads) for row in near]

    # all cores first, then with the most peers, then nearest to the column's size
    def order(place: tuple[int, int]) -> tuple[int, int, float]:
        return -place[1], -places.count(place), abs(math.log(place[0] / size))

    at = min(set(places), key=order)
    return [row for row in near if (row.size, row.threads) == at]


def _cell(rows: Sequence[Row]) -> str:
    """Return a cell: the best peer's time over fastagg's."""
    best = tables.best_peer(rows)
    return tables.ratio(best) if best else ""


def name_of(case: Case) -> str:
    """Return a case's name for readers. An arrival is an update there."""
    return _plain(case.name.removeprefix("arrival ").replace("flush", "full buffer"))


def _plain(words: str) -> str:
    """Return a name of the benchmarks in a reader's words."""
    return words.replace("rows", "cache").replace("arrival", "update")


def _losses(rows: Sequence[Row], names: Sequence[str]) -> str:
    said = []
    for name in names:
        groups = _by_case([row for row in rows if row.processor == name and row.unit == "s" and row.case in CASES])
        best = [peer for group in groups.values() if (peer := tables.best_peer(group)) is not None]
        lost = [peer for peer in best if tables.loses(peer)]
        said.append(f"{len(lost)} of {len(best)} on {name}")
    return ", ".join(said)


def _by_case(rows: Iterable[Row]) -> dict[At, list[Row]]:
    found: dict[At, list[Row]] = {}
    for row in rows:
        found.setdefault((row.case, row.size, row.threads), []).append(row)
    return found


def _software(rows: Sequence[Row], name: str) -> str:
    own = [row for row in rows if row.processor == name]
    last = sorted({(row.date[:10], row.versions) for row in own})[-1][1]
    versions = re.sub(r"^fastagg [^,]*\((\w+)\), ", r"\1, ", last)  # the commits say which fastagg
    commits = sorted({row.commit for row in own}, key=lambda c: max(row.date for row in own if row.commit == c))
    return (
        f"{versions}; commits {', '.join(commits)}; {min(r.date for r in own)[:10]} to {max(r.date for r in own)[:10]}"
    )


def _runs(rows: Sequence[Row], names: Sequence[str]) -> str:
    """Return a table for each processor of whole runs of the simulator: the time of a client update, and the ratio."""
    parts = []
    for name in names:
        kept = [row for row in rows if row.case.startswith("simulator, ") and row.processor == name]
        lines = [f"**{name}**", "", "| | fastagg | plain loop | ratio |", "|---|---:|---:|---:|"]
        for case in dict.fromkeys(row.case for row in kept):
            own = next((row for row in kept if (row.case, row.candidate) == (case, OURS)), None)
            peer = next((row for row in kept if row.case == case and row.ratio), None)
            if own is not None and peer is not None:
                words = case.removeprefix("simulator, ").replace("Comparison, ", "`compare` of 12 runs, ")
                lines.append(
                    f"| {words} | {tables.time(own.median)} | {tables.time(peer.median)} | {tables.ratio(peer)} |"
                )
        parts += ["\n".join(lines)] if len(lines) > 4 else []
    return "\n\n".join(parts) or "Not measured yet."


def _servers(rows: Sequence[Row], names: Sequence[str]) -> str:
    """Return the table of whole servers and whole runs: a line for each measurement, also of other servers."""
    kept = [row for row in rows if row.case.startswith(("server, ", "simulator, ", "simulators, "))]
    lines = ["| | | " + " | ".join(names) + " |", "|---|---|" + "---|" * len(names)] if kept else []
    for case, candidate in dict.fromkeys((row.case, row.candidate) for row in kept):
        cells = []
        for name in names:
            own = {r.unit: r for r in kept if (r.processor, r.case, r.candidate) == (name, case, candidate)}
            cells.append(", ".join(f"{tables.value(row)}{_over(row)}" for row in own.values()) or "—")
        lines.append(f"| {case} | {candidate} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _over(row: Row) -> str:
    return f", {tables.ratio(row)}" if row.ratio else ""


def full(rows: Sequence[Row]) -> str:
    """Return the page with every case, size and number of threads, and every candidate."""
    names = sorted({row.processor for row in rows})
    parts = [
        "# All figures",
        "Generated by `python bench/report.py` from `bench/results/`, which has the spreads too. A cell has the median "
        "time and its share of streaming; then the time of each other candidate divided by it, medians of ratios taken "
        "within a round: above 1 fastagg is faster. **Bold**: the other one is. The native call alone is a floor and "
        "no peer. An update is `dispatch` and `receive`; a full buffer is the step that empties it. "
        "[Back](../performance.md)",
    ]
    titles = {"arrival": "Whole updates", "kernel": "Kernels", "path": "Other paths"}
    for group, title in titles.items():
        lines = [
            f"| | bytes | parameters | threads | {' | '.join(names)} |",
            "|---|---:|---:|---|" + "---|" * len(names),
        ]
        for case in (one for one in CASES.values() if one.group == group):
            own = _by_case(row for row in rows if row.case == case.name and row.unit == "s")
            for (_, size, threads), found in sorted(own.items()):
                cells = [_candidates([row for row in found if row.processor == name]) for name in names]
                words = "card" if threads == 0 else threads
                lines.append(f"| {name_of(case)} | {case.bytes:.4g} | {size:,} | {words} | {' | '.join(cells)} |")
        parts += [f"## {title}", "\n".join(lines) if len(lines) > 2 else "Not measured yet."]
    parts += ["## What memory gave", "In the last run at that size, in GB/s of counted bytes.", _streams(rows, names)]
    kept = {row.key[5]: row for row in rows if row.unit == "B/parameter"}
    if kept:
        words = ", ".join(f"{row.median:.3g} ({_plain(name)})" for name, row in kept.items())
        parts += ["## What a server keeps", f"Bytes per parameter for each client: {words}."]
    if servers := _servers(rows, names):
        parts += ["## Whole servers and whole runs", servers]
    return "\n\n".join(parts) + "\n"


def _candidates(rows: Sequence[Row]) -> str:
    own = next((row for row in rows if row.ratio is None), None)
    if own is None:
        return "—"
    share = "" if own.share is None else f", {own.share:.0%}"
    others = sorted((row for row in rows if row.ratio), key=lambda row: (not is_peer(row.candidate), row.ratio[1]))  # type: ignore[index]
    named = [f"{tables.ratio(row)} {_plain(row.candidate)}" for row in others]
    return "; ".join([f"{tables.time(own.median)}{share}", *named])


BYTES = {"copy": 8, "triad": 12, "read": 4}


def _streams(rows: Sequence[Row], names: Sequence[str]) -> str:
    lines = [f"| parameters | threads | {' | '.join(names)} |", "|---:|---|" + "---|" * len(names)]
    found = _by_case(row for row in rows if row.case == "streams" and row.candidate in BYTES)
    for (_, size, threads), own in sorted(found.items()):
        cells = []
        for name in names:
            speeds = [
                f"{row.candidate} {BYTES[row.candidate] * size / row.median / 1e9:.0f}"
                for row in own if row.processor == name
            ]  # fmt: skip
            cells.append(", ".join(speeds) or "—")
        lines.append(f"| {size:,} | {threads or 'card'} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
