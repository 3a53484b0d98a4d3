"""Rows of candidates that are timed in turns without streams beside them: whole servers, losses, simulations."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from records import Row
from timing import interleave

import fastagg

Run = Callable[[], object]


def rows(
    operation: str,
    runs: Mapping[str, Run],
    size: int,
    bytes_: float,
    rounds: int,
    *,
    period: int = 1,
    notes: Mapping[str, str] | None = None,
    before: Mapping[str, Run] | None = None,
    leader: str = "fastagg",
    clients: int = 0,
    per_client: Mapping[str, float] | None = None,
    skipped: Mapping[str, str] | None = None,
) -> list[Row]:
    """One row a candidate, warm and compared already.

    Args:
        bytes_: per parameter and call; 0 where the work is not counted in bytes.
        period: calls that one run makes; figures are per call.
        leader: what the others' times are divided by.
        skipped: candidates that cannot run, with the reason.
    """
    timings = interleave(runs, rounds=rounds, before=before)
    found = []
    for name in runs:
        seconds = timings.seconds(name)
        p20, p50, p80 = (value / period for value in seconds)
        found.append(
            Row(
                operation, name, size, round(bytes_, 1), (notes or {}).get(name, ""),
                seconds=(p20, p50, p80),
                samples=tuple(value / period for value in timings.samples(name)),
                gbps=bytes_ * size / p50 / 1e9 if bytes_ else None,
                slower=tuple(timings.ratio(name, leader)),
                others=timings.others, discarded=timings.discarded, threads=fastagg.get_num_threads(),
                clients=clients, per_client=(per_client or {}).get(name),
            )
        )  # fmt: skip
    threads = fastagg.get_num_threads()
    for name, reason in (skipped or {}).items():
        found.append(
            Row(operation, name, size, round(bytes_, 1), skipped=reason, clients=clients, threads=threads)
        )  # fmt: skip
    return found
