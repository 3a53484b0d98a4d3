"""Runs as pytest-benchmark would write them."""

import json


def benchmark(candidate="fastagg", ratio=None, case="amsgrad", size=10_000_000, median=1e-2, threads=2, **info):
    """One of pytest-benchmark's benchmarks, as the plugin leaves it."""
    info = {"case": case, "candidate": candidate, "size": size, "threads": threads, "p20": 0.9 * median,
            "p80": 1.1 * median, **info}  # fmt: skip
    if ratio is not None:
        info["ratio"] = [0.99 * ratio, ratio, 1.01 * ratio]
    name = f"bench[{case}-{size}-{threads}-{candidate}]"
    return {
        "group": case, "name": name, "fullname": f"bench.py::{name}", "param": name, "params": {}, "extra_info": info,
        "stats": {"median": median, "data": [median] * 3},
    }  # fmt: skip


def run(*benchmarks, processor="A Processor", commit="abc1234", dirty=False):
    """The text of a run's JSON."""
    about = {"processor": processor, "versions": "fastagg 1", "node": "a host's name"}
    return json.dumps({
        "machine_info": about, "commit_info": {"id": commit, "dirty": dirty}, "datetime": "2026-01-01T00:00:00",
        "benchmarks": benchmarks, "version": "5",
    })  # fmt: skip
