"""What the digest of a log costs beside an arrival: ``python bench/audit.py FOLDER``.

For each size: the time of a whole ``receive`` of FedBuff with a log, without the wait for the disk; and the time of the
digest of its record, one leaf and on average one inner node of the tree. The log's thread computes the digest, so the
caller does not wait for it.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import statistics
from pathlib import Path

import torch

import fastagg
from fastagg.durable.disk import Disk
from fastagg.durable.folder import contents, read_checkpoint, read_log
from fastagg.timing import HostClock, Stopwatch

ARRIVALS = 30


def seconds_of_an_arrival(folder: Path, size: int) -> float:
    update, taken = torch.randn(size), []
    with fastagg.open(folder, lambda: fastagg.FedBuff(torch.zeros(size), buffer_size=5), durability="none") as server:
        for turn in range(ARRIVALS):
            server.dispatch(turn % 7)
            watch = Stopwatch()
            server.receive(turn % 7, update)
            taken.append(watch.total)
            server.flush()
    return statistics.median(taken)


def seconds_of_a_leaf(folder: Path) -> float:
    """The hash of an answer's record, as it is read from the log; and what an inner node takes by the same hash."""
    disk = Disk(folder)
    try:
        held = contents(disk)
        log = read_log(disk, held, read_checkpoint(disk, held.checkpoints[0]))
        best = float("inf")
        while (record := log.next()) is not None:
            if record.operation.kind != "answer":
                continue
            best = min(best, HostClock().sample("", lambda record=record: record.leaf, 100))
    finally:
        disk.leave()
    return best


def seconds_of_a_node() -> float:
    pair = bytes(65)
    return HostClock().sample("", lambda: hashlib.sha256(pair).digest(), 10_000)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="a new folder on the disk to measure")
    parser.add_argument("--sizes", type=float, nargs="+", default=[1e3, 1e4, 1e5, 1e6, 1e7])
    arguments = parser.parse_args()
    print("parameters  receive [us]  digest [us]  share")
    for size in map(int, arguments.sizes):
        folder = arguments.folder / str(size)
        arrival = seconds_of_an_arrival(folder, size)
        digest = seconds_of_a_leaf(folder) + seconds_of_a_node()
        print(f"{size:10,}  {arrival * 1e6:12.1f}  {digest * 1e6:11.2f}  {digest / arrival:.2%}")
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
