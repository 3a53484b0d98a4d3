"""Writes lives.tar.xz and lives.json. It ran once, with fastagg 0.1.0 as it was when its log had format 3:

PYTHONPATH=<repository>/tests python make.py <folder for the two files>
"""

from __future__ import annotations

import json
import shutil
import sys
import tarfile
import tempfile
from pathlib import Path

from lives import FIRST, LAST, LEFT, MAKE, SECOND, SIZE, THIRD, Make, found, play
from support.presets import numbers

import fastagg
from fastagg.durable import log
from fastagg.durable.disk import Disk
from fastagg.durable.opening import open_on


def main(to: Path) -> None:
    """Per rule: a folder that two processes used, of which the second was killed; a file; and what both held."""
    said = {}
    log.SMALL = 0  # an upload of few parameters is a file, too

    def opened(at: Path, make: Make) -> fastagg.Server:
        return open_on(Disk(at, create=True), make, "arrival", segment=16384, keep_history=True)

    with tempfile.TemporaryDirectory() as scratch:
        here = Path(scratch)
        for name, make in LEFT.items():
            with opened(here / "old" / name, make) as server:
                play(name, server, FIRST)
                server.save(here / "old" / f"{name}.fastagg")
        with fastagg.open(
            here / "old" / "ranks",
            lambda: fastagg.sharded(lambda piece: fastagg.FADAS(piece, lr=0.01), numbers(0, SIZE, 22)),
        ) as server:
            play("ranks", server, range(3))
            server.save(here / "old" / "ranks.saved")
        for name, make in MAKE.items():
            server = opened(here / "live", make)
            play(name, server, FIRST)
            server.checkpoint()
            play(name, server, SECOND)
            server.close()
            server = opened(here / "live", make)
            play(name, server, THIRD)
            server.flush()
            shutil.copytree(here / "live", here / "old" / name)  # as after kill -9
            server.save(here / "old" / f"{name}.fastagg")
            state = found(name, server)
            play(name, server, LAST)
            said[name] = {"state": state, "later": found(name, server), "lives": server.state_dict()["lives"]}
            server.close()
            shutil.rmtree(here / "live")
        for reserve in (here / "old").rglob("reserve-*"):  # they hold no state
            reserve.unlink()
        with tarfile.open(to / "lives.tar.xz", "w:xz", preset=9) as packed:
            packed.add(here / "old", "old")
    (to / "lives.json").write_text(json.dumps(said, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
