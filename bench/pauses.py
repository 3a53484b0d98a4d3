"""Measures the latency of ``receive`` under load. It makes a picture, and a line for every pause above 50 ms.

python bench/pauses.py SECONDS OUT [--threads N] [--size N] [--durability D] [--every BYTES]

Threads dispatch and answer as fast as they can, on a server with a folder. The script records when each answer began
and how long it took. It also records checkpoints, garbage collections, and waits for the disk or the lock. The reasons
of a pause are the events at the same time. Then ``--memory`` arrivals come with ``durability="none"``. The script
records the process's memory, what the server reports of it, and what the allocator keeps.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import re
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

import numpy as np
import torch

import fastagg
from fastagg._build import native

PAUSE = 0.05
Span = tuple[float, float, str]


def now() -> float:
    return time.perf_counter()


class Checkpoints(logging.Handler):
    """Records when checkpoints were written, from fastagg's log messages."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.spans: list[Span] = []

    def emit(self, record: logging.LogRecord) -> None:
        if found := re.search(r"bytes in ([\d.]+) s", record.getMessage()):
            self.spans.append((now() - float(found[1]), now(), "a checkpoint is written"))


def garbage(spans: list[Span]) -> None:
    begun = [0.0]

    def noted(phase: str, _: object) -> None:
        if phase == "start":
            begun[0] = now()
        else:
            spans.append((begun[0], now(), "garbage collection"))

    gc.callbacks.append(noted)


def stalls(spans: list[Span], stop: threading.Event) -> None:
    """Record when a sleeping thread woke late, because the machine was busy or another thread kept Python's lock."""
    while not stop.is_set():
        before = now()
        time.sleep(0.002)
        if now() - before > 0.02:
            spans.append((before, now(), "no thread of this process ran, or one kept Python's lock"))


def syncs(spans: list[Span], folder: Path, stop: threading.Event) -> None:
    """Record when a small sync of another file was slow, which shows pauses of the disk itself."""
    import os

    file = os.open(folder / "probe", os.O_RDWR | os.O_CREAT)
    while not stop.is_set():
        before = now()
        os.pwrite(file, b"x", 0)
        os.fdatasync(file)
        if now() - before > 0.02:
            spans.append((before, now(), "the disk takes long for a sync"))
        time.sleep(0.01)
    os.close(file)


def load(seconds: float, given: argparse.Namespace) -> tuple[np.ndarray, list[Span], float]:
    """Answer for ``seconds``. Return calls (begin, length, wait for the disk), other events, and when it began."""
    notes = Checkpoints()
    logger = logging.getLogger("fastagg")
    logger.addHandler(notes)
    logger.setLevel(logging.INFO)
    spans: list[Span] = []
    garbage(spans)
    stop = threading.Event()
    update = torch.full((given.size,), 1e-6)
    calls: list[list[tuple[float, float, float]]] = [[] for _ in range(given.threads)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        with fastagg.open(path / "state", lambda: fastagg.FADAS(torch.zeros(given.size), buffer_size=5),
                          given.durability, checkpoint_every=given.every) as server:  # fmt: skip
            begun = now()

            def answer(number: int) -> None:
                mine, waited = calls[number], native.log.Journal.waited
                while now() < begun + seconds:
                    server.dispatch(number)
                    at, before = now(), waited()
                    server.receive(number, update)
                    mine.append((at, now() - at, waited() - before))

            watching = [threading.Thread(target=stalls, args=(spans, stop)),
                        threading.Thread(target=syncs, args=(spans, path, stop))]  # fmt: skip
            answering = [threading.Thread(target=answer, args=(number,)) for number in range(given.threads)]
            for thread in (*watching, *answering):
                thread.start()
            for thread in answering:
                thread.join()
            stop.set()
            for thread in watching:
                thread.join()
    every = np.array(sorted(call for mine in calls for call in mine))
    return every, [*spans, *notes.spans], begun


def reasons(every: np.ndarray, spans: list[Span]) -> list[dict[str, object]]:
    """Return for each pause its events, in ms of overlap, and how many ms it waited for the disk."""
    found = []
    for at, took, waited in every[every[:, 1] > PAUSE]:
        over = Counter[str]()
        for begin, end, what in spans:
            over[what] += max(0.0, min(at + took, end) - max(at, begin))  # type: ignore[assignment]
        named = {what: round(1e3 * part, 1) for what, part in over.items() if part > 0.2 * took}
        found.append({"at": at, "ms": round(1e3 * took, 1), "waited for the log, ms": round(1e3 * waited, 1), **named})
    return found


def memory(count: int) -> list[dict[str, float]]:
    """Return the process's memory during ``count`` answers that do not wait for the disk."""
    update, rows = torch.full((64,), 1e-6), []
    with tempfile.TemporaryDirectory() as folder, fastagg.open(
        folder, lambda: fastagg.FADAS(torch.zeros(64), buffer_size=5), "none", checkpoint_every=1 << 26
    ) as server:  # fmt: skip
        for done in range(1, count + 1):
            server.dispatch(done % 1000)
            server.receive(done % 1000, update)
            if done % max(1, count // 20) == 0:
                said = server.memory()
                waits = int(said["journal"])
                server.flush()
                rss = int(Path("/proc/self/statm").read_text().split()[1]) * 4096
                rows.append({"arrivals": done, "resident": rss, "waits for the disk": waits, "server": said["total"]})
                print(json.dumps(rows[-1]), flush=True)
    return rows


def draw(every: np.ndarray, spans: list[Span], begun: float, out: Path) -> None:
    """Draw each answer above 1 ms, and mark checkpoints."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(10, 4), layout="constrained")
    some = every[every[:, 1] > 1e-3]
    axes.semilogy(some[:, 0] - begun, 1e3 * some[:, 1], ".", markersize=2)
    for begin, end, what in spans:
        if what.startswith("a checkpoint"):
            axes.axvspan(begin - begun, end - begun, alpha=0.3, color="tab:orange")
    axes.axhline(1e3 * PAUSE, color="gray", linewidth=0.5)
    axes.set_xlabel("seconds (orange: a checkpoint is written)")
    axes.set_ylabel("receive, ms")
    figure.savefig(out.with_suffix(".png"), dpi=120)


def main() -> None:
    """Measure, print, and write OUT.png and OUT.json."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("seconds", type=float)
    parser.add_argument("out", type=Path)
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--size", type=int, default=1000)
    parser.add_argument("--durability", default="arrival")
    parser.add_argument("--every", type=int, default=1 << 26)
    parser.add_argument("--memory", type=int, default=0)
    given = parser.parse_args()
    every, spans, begun = load(given.seconds, given)
    marks = {f"p{share}": round(1e3 * float(np.percentile(every[:, 1], share)), 3) for share in (50, 99, 99.9, 100)}
    pauses = reasons(every, spans)
    for pause in pauses:
        print(json.dumps(pause))
    print(f"{len(every)} answers, ms: {marks}; {len(pauses)} pauses above {1e3 * PAUSE:.0f} ms")
    draw(every, spans, begun, given.out)
    rows = memory(given.memory) if given.memory else []
    given.out.with_suffix(".json").write_text(json.dumps({"ms": marks, "pauses": pauses, "memory": rows}, indent=1))


if __name__ == "__main__":
    main()
