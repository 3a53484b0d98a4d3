"""Flower's own processes on loopback: a SuperLink, SuperNodes, and a ServerApp with Flower's or fastagg's strategies.

python bench/flower_processes.py rounds [--rounds 3]      # ten nodes that move ResNet-18 and do not train
python bench/flower_processes.py straggler [--rounds 3]   # four nodes that train; one is slow
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import sys
import tempfile
import time
from pathlib import Path

import checkout

HERE = Path(__file__).resolve().parent
sys.path.append(str(checkout.ROOT / "tests"))

from support.federation import Federation  # noqa: E402

CLIENTS = 10
RULES = ("Flower FedAvg", "fastagg FedAvg", "Flower FedAdam", "fastagg FedAdam")
COLUMNS = ("round", "aggregation", "after the last reply", "held", "peak")


def federation(folder: str, app: Path | None = None) -> Federation:
    """Start Flower's processes. They can import fastagg and the benchmarks' shared modules."""
    os.environ["PYTHONPATH"] = f"{HERE.parent}:{HERE}"
    return Federation(Path(folder), **({} if app is None else {"app": app}))


def rounds_of(strategy: str, rounds: int) -> list[dict[str, float]]:
    """Return what the ServerApp printed for each round except the first, which also waits for processes to start."""
    with tempfile.TemporaryDirectory() as folder:
        flower = federation(folder, HERE / "flower_app")
        try:
            for part in range(CLIENTS):
                flower.node(part, CLIENTS)
            flower.run("run", strategy=strategy, rounds=rounds + 1, nodes=CLIENTS)
            log = flower.wait("run", "BENCH done", 300 + 120 * rounds)
        finally:
            flower.close()
    rows = [json.loads(line) for line in re.findall(r"BENCH (\{.*\})", log)]
    return rows[1:] if len(rows) > 1 else rows


def report(rounds: int) -> str:
    """Measure ResNet-18's arrays with ten clients that do not train. Return a Markdown table."""
    lines = [
        f"{CLIENTS} SuperNodes that move 11,173,962 parameters and do not train; medians of {rounds} rounds. "
        "Memory is in models.",
        "",
        "| strategy | s per round | s of aggregation per update | its share of the round | s after the last reply "
        "| held between rounds | more at the peak |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in RULES:
        rows = rounds_of(name, rounds)
        middle = {column: statistics.median(row[column] for row in rows) for column in COLUMNS}
        share = middle["aggregation"] / middle["round"]
        lines.append(
            f"| {name} | {middle['round']:.1f} | {middle['aggregation'] / CLIENTS:.4f} | {share:.1%} "
            f"| {middle['after the last reply']:.3f} | {middle['held']:.1f} | {middle['peak']:.1f} |"
        )
    lines += ["", "Asynchronous, the same nodes, updates a second:", ""]
    for name in ("FedBuff", "FADAS"):
        lines.append(f"- {name}: {rounds_of(name, rounds)[0]['updates per second']:.2f}")
    return "\n".join(lines)


def straggling(runs: int, seconds: float = 120.0, slow: float = 30.0) -> str:
    """Train the digits on four SuperNodes; one sleeps ``slow`` seconds before it trains. Return a Markdown table."""
    uploads = {"FedAvg": 4, "FedAMS": 4, "FedBuff": 2, "FADAS": 2}  # per version
    seen: dict[str, list[list[tuple[int, float, float]]]] = {rule: [] for rule in uploads}
    for _ in range(runs):
        for rule, found in seen.items():
            found.append(_accuracies(rule, seconds, slow))
    counts = {rule: [rows[-1][0] * uploads[rule] for rows in found] for rule, found in seen.items()}
    fewest = min(min(found) for found in counts.values())
    lines = [
        f"Digits, four SuperNodes, one {slow:g} s slower than the others; {seconds:g} s each, {runs} runs: median "
        "(least to most).",
        "",
        f"| rule | uploads in {seconds:g} s | accuracy after {fewest} uploads | after {seconds / 2:g} s "
        f"| after {seconds:g} s |",
        "|---|---|---|---|---|",
    ]
    for rule, found in seen.items():
        equal = [[a for version, _, a in rows if version * uploads[rule] <= fewest][-1] for rows in found]
        half = [[a for _, when, a in rows if when <= seconds / 2][-1] for rows in found]
        cells = [_spread(counts[rule], "{:.0f}"), *map(_spread, (equal, half, [rows[-1][2] for rows in found]))]
        lines.append(f"| {rule} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _spread(values: list[float] | list[int], form: str = "{:.3f}") -> str:
    middle, least, most = (form.format(f(values)) for f in (statistics.median, min, max))
    return f"{middle} ({least} to {most})"


def _accuracies(rule: str, seconds: float, slow: float) -> list[tuple[int, float, float]]:
    """Return version, seconds since the first model was sent, and accuracy, from the example's own app."""
    with tempfile.TemporaryDirectory() as folder:
        flower = federation(folder)
        try:
            with open(flower.app / "digits" / "server_app.py", "a") as file:
                file.write(_CLOCK)
            for part in range(4):
                flower.node(part, 4, slow=slow if part == 3 else 0.0)
            flower.run("run", rule=rule, versions=10_000)
            flower.wait("run", "BENCH ", 120)
            time.sleep(seconds)
            log = flower.log("run")
        finally:
            flower.close()
    rows = [(float(when), float(found)) for when, found in re.findall(r"BENCH (\S+) (\S+)", log)]
    return [(version, when - rows[0][0], found) for version, (when, found) in enumerate(rows)]


_CLOCK = """
import time

_accuracy = accuracy


def accuracy(*given):  # of the model that every version is
    found = _accuracy(*given)
    print(f"BENCH {time.time():.2f} {found:.4f}", flush=True)
    return found
"""


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["rounds", "straggler"])
    parser.add_argument("--rounds", type=int, default=3, help="or runs of the straggler")
    given = parser.parse_args()
    print({"rounds": report, "straggler": straggling}[given.what](given.rounds))
