"""Runs every candidate of every case as a test of pytest-benchmark: pytest bench/ --case accumulate"""

from __future__ import annotations

from typing import Any


def bench(interleaved: Any, case: str, size: int, threads: int, candidate: str) -> None:
    interleaved(case, size, threads, candidate)
