"""Whole arrivals, from the task that goes out to the receipt: python bench/arrivals.py --threads 1 2 --out FILE

Five sections (--only): `eager`, dispatch and receive beside the rule's arithmetic in checked eager torch; `many`,
receive_many of 64; `kernels`, a whole arrival over its kernels alone; `clients`, a million clients over a hundred;
`tail`, the slowest arrivals over the usual one. Ratios are taken within a round, as bench/README.md says.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

# A checkout that was not installed: its own package, not another one's.
sys.path.append(str(Path(__file__).resolve().parents[1]))

import arrival_sections as sections
import machine
import timing
import torch
from arrival_sections import Row

import fastagg
from fastagg import tuning

SECTIONS = ("eager", "many", "kernels", "clients", "tail")
SIZES = [1_000, 10_000, 100_000, 1_000_000, 11_200_000]
LARGE = 1_000_000


def main(arguments: list[str] | None = None) -> int:
    """Print a table for each section and thread count; write all rows with --out."""
    given = _parser().parse_args(arguments)
    if given.impatient:
        timing.do_not_wait()
    command = f"python bench/arrivals.py {shlex.join(sys.argv[1:] if arguments is None else arguments)}".strip()
    about = {**machine.describe(), "processor_name": tuning.processor()}
    print(f"`{command}`\n")
    print(
        f"{about['processor_name']}; {tuning.source()}; fastagg {about['fastagg']} ({about['commit']}), "
        f"torch {about['torch']}, Python {about['python']}; {about['date']}\n"
    )
    rows: list[Row] = []
    for section in given.only:
        for threads in given.threads:
            fastagg.set_num_threads(threads)
            torch.set_num_threads(threads)
            print(f"### {section}, {threads} {'thread' if threads == 1 else 'threads'}\n")
            rows += printed(_rows(section, given))
            print()
    if given.out is not None:
        content = {"command": command, "machine": about, "rows": [asdict(row) for row in rows]}
        given.out.write_text(json.dumps(content, indent=1) + "\n")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="bench/arrivals.py", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=SECTIONS, help="sections, all by default")
    parser.add_argument("--sizes", type=_count, nargs="+", help="numbers of parameters (not of clients and tail)")
    parser.add_argument("--threads", type=_count, nargs="+", default=[1, 2], help="of fastagg and of torch")
    parser.add_argument("--rounds", type=_count, help="samples of each (default: 31 below a million parameters, 15)")
    parser.add_argument("--few", type=_count, default=100, help="clients: the small population")
    parser.add_argument("--clients", type=_count, default=1_000_000, help="clients: the large population")
    parser.add_argument("--warm", type=_count, default=5_000, help="clients: arrivals before the first that is timed")
    parser.add_argument("--sample", type=_count, default=500, help="clients: arrivals in a sample, which is a median")
    parser.add_argument("--tail-size", type=_count, default=1_000_000, help="tail: parameters")
    parser.add_argument("--tail-clients", type=_count, default=4_000, help="tail: clients, a byte a parameter for each")
    parser.add_argument("--tail-arrivals", type=_count, default=5_000, help="tail: arrivals that are timed")
    parser.add_argument("--impatient", action="store_true", help="do not wait for a quiet machine: only to try it out")
    parser.add_argument("--out", type=Path, help="a JSON file of all rows")
    return parser


def _rows(section: str, given: argparse.Namespace) -> Iterator[Row]:
    if section == "eager":
        return sections.beside_eager(given.sizes or SIZES, given.rounds)
    if section == "many":
        return sections.many(given.sizes or SIZES[:1], given.rounds)
    if section == "kernels":
        return sections.over_kernels(given.sizes or [size for size in SIZES if size >= LARGE], given.rounds)
    if section == "clients":
        return sections.populations(given.few, given.clients, given.warm, given.sample, given.rounds or 31)
    return sections.tail(given.tail_size, given.tail_clients, given.tail_arrivals)


def printed(rows: Iterator[Row]) -> Sequence[Row]:
    """Print rows as they come."""
    print("| | d | fastagg (p20 to p80) | beside | fastagg's time over it (p20 to p80) | wanted at most | |")
    print("|---|---|---|---|---|---|---|")
    kept = []
    for row in rows:
        kept.append(row)
        wanted = "" if row.at_most is None else f"{row.at_most:.2f}"
        disturbed = f"; {row.discarded} rounds thrown away" if row.discarded else ""
        print(
            f"| {row.what} | {row.size:,} | {_seconds(row)} | {row.beside} | {_ratio(row)} | {wanted} | "
            f"{row.note}{disturbed} |",
            flush=True,
        )
    return kept


def _seconds(row: Row) -> str:
    if not row.seconds:
        return "not measured"
    unit, factor = ("µs", 1e6) if row.seconds[1] < 1e-3 else ("ms", 1e3)
    low, middle, high = (f"{factor * value:.3g}" for value in row.seconds)
    return f"{middle} {unit} ({low} to {high})"


def _ratio(row: Row) -> str:
    if not row.ratio:
        return ""
    low, middle, high = row.ratio
    return f"{middle:.2f} ({low:.2f} to {high:.2f})"


def _count(text: str) -> int:
    value = float(text)
    if not value.is_integer() or value < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number, got {text}")
    return int(value)


if __name__ == "__main__":
    sys.exit(main())
