"""Makes docs/performance.md, its picture and docs/performance/tables.md from results/: python bench/report.py

python bench/report.py --measure              # measures all that the page shows; takes five minutes on a quiet machine
python bench/report.py --add RUN.json         # the JSON of another run (pytest bench/ --benchmark-json=RUN.json)
python bench/report.py --check                # writes nothing, and fails if the pages differ from the results
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import results
from checkout import ROOT
from measure import is_peer
from problem import OURS
from results import BENCH, Row

TEXT = BENCH / "page.md"  # the text of the page, with {} where figures are inserted
PICTURE = "performance/arrivals.png"
BETWEEN = (10_000, 1_000_000)  # sizes that only the picture shows
LARGE, NEAR = 10_000_000, 1.25  # the table's size, and the factor by which a size may differ from it
ARRIVALS = ("FedBuff, M = 10", "ASGD", "FADAS, M = 1", "FedAsync", "ACE fp32", "ACE int8")
KERNELS = ("accumulate", "fedbuff flush", "amsgrad", "ace int8", "distances", "inspect")
ROWS = (*(f"arrival {name}" for name in ARRIVALS), *KERNELS)
# The commands of --measure. They take ten minutes in total.
RUNS = (
    [
        "--sizes",
        "1e3,1e4,1e5,3e5,1e6,2e6,3e6,4e6,6e6,1e7",
        "--within",
        "3",
        *(f"--case={name}" for name in ROWS[: len(ARRIVALS)]),
    ],
    ["--sizes", "1e7", "--within", "5", *(f"--case={name}" for name in KERNELS)],
)
ONCE = "fastagg, read once"  # fastagg, if somebody may write to an update while it is read
KEPT = ", a version kept"  # ends the names of peers that write a new version, as a server must
REASONS = {  # case -> why a peer is faster, if neither a kept version nor memory is the reason
    "arrival ACE int8": "encoding int8; its rows take a quarter",
}


def main(arguments: list[str] | None = None) -> int:
    """Run the command line. Return 1 if a page is out of date, 2 for bad results."""
    parser = argparse.ArgumentParser(prog="bench/report.py", description=__doc__.split("\n", 1)[0])  # type: ignore[union-attr]
    parser.add_argument("--results", type=Path, default=BENCH / "results", help="folder of JSON files")
    parser.add_argument("--out", type=Path, default=ROOT / "docs", help="folder of performance.md and performance/")
    parser.add_argument(
        "--add", type=Path, nargs="+", default=[], metavar="RUN.json", help="runs to add to the results"
    )
    parser.add_argument("--measure", action="store_true", help="measure what the page has, and add it")
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 if a page is stale")
    given = parser.parse_args(arguments)
    try:
        with tempfile.TemporaryDirectory() as folder:
            for path in [*given.add, *(_measured(Path(folder)) if given.measure else [])]:
                results.add(path, given.results)
        rows = results.load(given.results)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    pages = {"performance.md": page(rows), "performance/tables.md": full(rows)}
    if given.check:
        stale = [name for name, text in pages.items() if not _same(given.out / name, text)]
        if stale or not (given.out / PICTURE).is_file():
            print(
                f"{', '.join(stale) or PICTURE}: not what the results say: run python bench/report.py", file=sys.stderr
            )
            return 1
        return 0
    (given.out / "performance").mkdir(parents=True, exist_ok=True)
    for name, text in pages.items():
        (given.out / name).write_text(text)
    draw(rows, given.out / PICTURE)
    return 0


def _measured(folder: Path) -> Iterator[Path]:
    for number, options in enumerate(RUNS):
        path = folder / f"{number}.json"
        command = [sys.executable, "-m", "pytest", str(BENCH), "-q", *options, f"--benchmark-json={path}"]
        if subprocess.run(command, cwd=ROOT, check=False).returncode:
            raise ValueError("the measurement failed: its messages stand above")
        yield path


def _same(path: Path, text: str) -> bool:
    """Return whether the page has this text. Marks of rows older than their code are ignored."""
    return path.is_file() and path.read_text().replace("†", "") == text.replace("†", "")


def page(rows: Sequence[Row]) -> str:
    """Return docs/performance.md."""
    names = sorted({row.processor for row in rows if row.case in ROWS})
    parts = {
        "sentence": _sentence(rows, names[0]) if names else "",
        "servers": _servers(rows), "table": _table(rows, names),
        "sources": "\n".join(f"- {_source(rows, name)}" for name in sorted({row.processor for row in rows})),
    }  # fmt: skip
    text = TEXT.read_text()
    for key, value in parts.items():
        text = text.replace(f"{{{key}}}", value)
    return text


def _sentence(rows: Sequence[Row], name: str) -> str:
    """Return a sentence that compares whole updates of a large model on one processor with torch."""
    here = [row for row in rows if row.processor == name]
    best = [row for rule in ARRIVALS if (row := best_peer(_near(here, f"arrival {rule}"))) is not None]
    ratios = sorted(row.ratio[1] for row in best if row.ratio)
    if not ratios:
        return ""
    least, size, rule = min((ratio, size, rule) for rule in ARRIVALS for size, ratio in _pictured(rows, name, rule))
    text = (
        f"At ten million parameters a whole update is {ratios[0]:.2f} to {ratios[-1]:.2f} times as fast as the best "
        f"torch loop of its arithmetic, on {name}. The picture's least is {least:.2f}: {rule}, with {_size(size)} "
        "parameters."
    )
    once = [(row.ratio[1], row.size, row.case) for row in here if row.candidate == ONCE and row.ratio]
    if not once:
        return text
    times, size, case = max(once)
    return (
        f"{text} Nobody writes to an update while it is read: torch's loop reads it twice, and fastagg is told so "
        f"(`still=True`). Otherwise fastagg takes up to {times:.1f} times as long ({name_of(case)}, {_size(size)})."
    )


def _pictured(rows: Iterable[Row], name: str, rule: str) -> list[tuple[int, float]]:
    """Return a rule's points (size, best peer's time over fastagg's) in the picture of a processor."""
    case = [row for row in rows if (row.processor, row.case) == (name, f"arrival {rule}")]
    points = []
    for size in sorted({row.size for row in case}):
        here = [row for row in case if row.size == size]
        most = max(row.threads for row in here)
        if (best := best_peer(row for row in here if row.threads == most)) and best.ratio:
            points.append((size, best.ratio[1]))
    return points


def _size(value: float) -> str:
    return f"{value / 1e6:g} M" if value >= 1e6 else f"{value / 1e3:g} k"


def _servers(rows: Sequence[Row]) -> str:
    """Return the table of whole servers: updates a second, and memory at the peak, in models."""
    lines: dict[str, list[str]] = {}  # processor -> rows of the table
    both = [row for row in rows if row.threads == 2]
    for case in dict.fromkeys(row.case for row in both if row.case.startswith("server, ")):
        found = [row for row in both if (row.case, row.candidate) == (case, OURS)]
        ours = min(found, key=lambda row: row.old)  # a row of the current code, if there is one
        for peer in (row for row in both if (row.case, row.processor) == (case, ours.processor)):
            if not is_peer(peer.candidate):
                continue
            speeds = f"{1 / ours.median:.0f}", f"{1 / peer.median:.0f}"
            models = [f"{row.info['memory']:.1f}" for row in (ours, peer) if "memory" in row.info]
            cells = [_pair(*speeds, peer.lost), _pair(*models, float(models[1]) < float(models[0])) if models else ""]
            line = f"| {case.removeprefix('server, ')}{_old(ours)} | {' | '.join(cells)} |"
            lines.setdefault(ours.processor, []).append(line)
    head = ["| fastagg / theirs | updates a second | memory |", "|---|---:|---:|"]
    return "\n\n".join("\n".join([f"On {name}:", "", *head, *lines[name]]) for name in sorted(lines))


def _pair(ours: str, theirs: str, is_lost: bool) -> str:
    return f"{ours} / {f'**{theirs}**' if is_lost else theirs}"


def _table(rows: Sequence[Row], names: Sequence[str]) -> str:
    """Return a line for each rule: the best peer's time over fastagg's at 10 M, and the reason if a peer is faster."""
    lines = [f"| | {' | '.join(names)} | if slower, why |", f"|---|{'---:|' * len(names)}---|"]
    for case in ROWS:
        cells, reasons = [], []
        for name in names:
            near = _near([row for row in rows if row.processor == name], case)
            best = best_peer(near)
            cells.append(f"{ratio(best)}{_old(best)}" if best else "")
            if best is not None and best.lost and (why := reason(best, near)) not in reasons:
                reasons.append(why)
        lines.append(f"| {name_of(case)} | {' | '.join(cells)} | {'; '.join(reasons)} |")
    return "\n".join(lines)


def reason(best: Row, near: Iterable[Row]) -> str:
    """Return in a few words why a peer is faster."""
    kept = next((row for row in near if row.candidate == best.candidate + KEPT and row.ratio), None)
    if kept is not None and kept.ratio and kept.ratio[1] >= 1:
        return f"keeps the version; torch in place. A torch that keeps it: {kept.ratio[1]:.2f}"
    if best.ratio and best.ratio[1] >= 0.9:
        return "memory limits both"
    return REASONS.get(best.case, "unexplained")


def _near(rows: Iterable[Row], case: str) -> list[Row]:
    """Return a case's rows near the table's size, with the most threads."""
    near = [row for row in rows if row.case == case and LARGE / NEAR <= row.size <= LARGE * NEAR]
    at = max(((row.threads, -abs(row.size - LARGE)) for row in near), default=None)
    return [row for row in near if (row.threads, -abs(row.size - LARGE)) == at]


def best_peer(rows: Iterable[Row]) -> Row | None:
    """Return the fastest of the peers."""
    peers = [row for row in rows if is_peer(row.candidate) and row.ratio]
    return min(peers, key=lambda row: row.ratio[1] if row.ratio else 0.0, default=None)


def ratio(row: Row) -> str:
    """Return the candidate's time over fastagg's, in bold if the candidate is a peer and faster."""
    text = f"{row.ratio[1]:.2f}" if row.ratio else ""
    return f"**{text}**" if row.lost else text


def _old(row: Row) -> str:
    """Return a mark for a row that is older than the code it measures."""
    return "†" if row.old else ""


def _source(rows: Sequence[Row], name: str) -> str:
    """Return the date, versions and commits of a processor's rows."""
    found: dict[tuple[str, str], set[str]] = {}
    for row in rows:
        if row.processor == name:
            found.setdefault((row.info["date"], row.info["versions"]), set()).add(row.info["commit"])
    words = [f"{date}, {versions}, {' '.join(sorted(found[date, versions]))}" for date, versions in sorted(found)]
    return f"{name}: {'; '.join(words)}"


def name_of(case: str) -> str:
    """Return a case's name on the pages, where an arrival is called an update."""
    words = case.replace("flush", "full buffer").replace("rows", "cache")
    whole = words.startswith("arrival ")
    return f"{words.removeprefix('arrival ')}, whole update" if whole else words.replace(" arrival", "'s update")


def full(rows: Sequence[Row]) -> str:
    """Return docs/performance/tables.md: the cases in which a peer is faster."""
    lines = [
        "# Where others are faster\n",
        "Generated by `python bench/report.py` from `bench/results/`, which has every figure, candidate and spread. "
        "Every line has a **bold** cell: fastagg's median time; then that of the fastest other one divided by it. "
        "A percentage is the share of the memory's speed. †: the code has changed since. [Back](../performance.md)",
    ]
    for title, some in (
        ("Two threads", [row for row in rows if row.threads]),
        ("On a card", [row for row in rows if not row.threads]),
    ):
        lines += ["", f"## {title}", "", *_losses(some)] if some else []
    return "\n".join(lines) + "\n"


def _losses(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the table's lines: for each case and size the rows with the most threads."""
    names = sorted({row.processor for row in rows})
    yield f"| | parameters | {' | '.join(names)} |"
    yield f"|---|---:|{'---|' * len(names)}"
    places: dict[tuple[str, int], list[Row]] = {}
    for row in rows:
        places.setdefault((row.case, row.size), []).append(row)
    for (case, size), found in sorted(places.items()):
        most = max(row.threads for row in found)
        whole = most and case.startswith("arrival")
        if size in BETWEEN or (not whole and size < max(at for name, at in places if name == case) / NEAR):
            continue
        cells = [_cell([row for row in found if (row.processor, row.threads) == (name, most)]) for name in names]
        if "**" in "".join(cells):
            yield f"| {name_of(case)}{'' if most in (0, 2) else f', {most} threads'} | {size:,} | {' | '.join(cells)} |"


def _cell(rows: Sequence[Row]) -> str:
    own = next((row for row in rows if row.ratio is None), None)
    if own is None:
        return ""
    share = f", {own.info['share']:.0%}" if "share" in own.info else ""
    peers = sorted((row for row in rows if row.ratio and is_peer(row.candidate)), key=lambda row: row.ratio or ())
    best = [f"{ratio(row)} {row.candidate}" for row in peers[:1]]
    return "; ".join([f"{seconds(own.median)}{share}{_old(own)}", *best])


def seconds(value: float) -> str:
    """Return a time with three digits."""
    units = (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6), ("ns", 1e-9))
    name, scale = next((unit for unit in units if value >= unit[1]), units[-1])
    return f"{value / scale:.3g} {name}"


def draw(rows: Sequence[Row], path: Path) -> None:
    """Draw whole updates by the model's size: the best peer's time over fastagg's, a panel for each processor."""
    from matplotlib.figure import Figure

    from fastagg import drawing

    names = sorted({row.processor for row in rows if row.case in ROWS})
    figure = Figure(figsize=(4.2 * max(1, len(names)), 3.4), layout="constrained")
    grid = figure.subplots(1, max(1, len(names)), squeeze=False, sharey=True)[0]
    for axes, name in zip(grid, names, strict=False):
        for number, rule in enumerate(ARRIVALS):
            points = _pictured(rows, name, rule)
            axes.plot(*zip(*points, strict=True) if points else ([], []), label=rule, **drawing.look(number))
        axes.axhspan(0.25, 1, color="0.93", zorder=0)
        drawing.logarithmic(axes, "x")
        drawing.logarithmic(axes, "y")
        axes.set_ylim(0.25, 4)
        axes.set_yticks([0.25, 0.5, 1, 2, 4], ["0.25", "0.5", "1", "2", "4"])
        axes.set_xticks([10**power for power in range(3, 8)])
        axes.minorticks_off()
        axes.xaxis.set_major_formatter(lambda value, _: _size(value))
        axes.set_xlabel("parameters")
        axes.set_title(name, fontsize=drawing.TEXT)
        drawing.tidy(axes)
    grid[0].set_ylabel("the best torch loop's time / fastagg's")
    if names:
        grid[-1].legend(fontsize=drawing.TEXT - 2, frameon=False)
    drawing.save(figure, path)


if __name__ == "__main__":
    sys.exit(main())
