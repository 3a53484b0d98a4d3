"""Rows as a run would store them."""

from __future__ import annotations

import json


def row(candidate="fastagg", ratio=None, case="amsgrad", size=11_200_000, median=1e-2, **more):
    found = {
        "case": case, "candidate": candidate, "size": size, "threads": 2, "median": median, "p20": 0.9 * median,
        "p80": 1.1 * median, "unit": "s", "processor": "A Processor", "versions": "torch 2", "commit": "abc1234",
        "date": "2026-01-01T00:00:00+00:00", **more,
    }  # fmt: skip
    if candidate == "fastagg":
        found.setdefault("share", 1.0)
    if ratio is not None:
        found["ratio"] = [0.99 * ratio, ratio, 1.01 * ratio]
    return found


def text(*rows):
    return "".join(json.dumps(one) + "\n" for one in rows)
