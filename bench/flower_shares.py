"""Measures which share of a round the server takes in Flower. Flower's processes run on this machine. Clients send
ResNet-18's 45 MB and do not train.

python bench/flower_shares.py [CLIENTS [ROUNDS]]

It prints the median seconds of a round with Flower's FedAvg and with fastagg's. It also prints the shares of the
aggregation, of the slowest client, of the ServerApp's calls to the SuperLink, and of the rest. Flower's strategy
makes these calls every 3 s, fastagg's every 0.1 s.
"""

from __future__ import annotations

import json
import re
import statistics
import sys
from typing import Any

from cases import flower as cases


def main(clients: int = 2, rounds: int = 4) -> None:
    cases._needed()
    print(f"45 MB, {clients} clients")
    print("| | seconds a round | aggregation | slowest client | the ServerApp's calls | the rest |")
    print("|---|---:|---:|---:|---:|---:|")
    for whose in ("Flower", "fastagg"):

        def act(federation: Any, whose: str = whose) -> float:
            for part in range(clients):
                federation.node(part, clients)
            federation.run("run", rule="FedAvg", whose=whose, rounds=rounds + 1, nodes=clients)
            log = federation.wait("run", "BENCH done", 300 + 120 * rounds)
            rows = [json.loads(line) for line in re.findall(r"BENCH (\{.*\})", log)][1:]
            names = ("round", "aggregation", "client", "calls")
            whole, *parts = (statistics.median(row[name] for row in rows) for name in names)
            shares = " | ".join(f"{part / whole:.0%}" for part in (*parts, whole - sum(parts)))
            print(f"| {whose} FedAvg | {whole:.2f} | {shares} |", flush=True)
            return float(whole)

        cases._processes(act, cases.BENCH / "flower_app")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:3]))
