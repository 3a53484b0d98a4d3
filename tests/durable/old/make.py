"""Writes lives.tar.xz and lives.json. It ran once, with fastagg as it was when its log had format 3:

PYTHONPATH=<repository>/tests python make.py <folder for the two files>
"""

from __future__ import annotations

import json
import shutil
import sys
import tarfile
import tempfile
from pathlib import Path

from lives import FIRST, LAST, MAKE, SECOND, THIRD, found, play

from fastagg.durable import log
from fastagg.durable.disk import Disk
from fastagg.durable.opening import open_on


def main(to: Path) -> None:
    """Per rule: a folder that two processes used, of which the second was killed; a file; and what both held."""
    said = {}
    log.SMALL = 0  # what comes in chunks is a file
    with tempfile.TemporaryDirectory() as scratch:
        here = Path(scratch)
        for name, make in MAKE.items():
            server = open_on(Disk(here / "live", create=True), make, "arrival", segment=16384)
            play(server, FIRST)
            server.checkpoint()
            play(server, SECOND)
            server.close()
            server = open_on(Disk(here / "live", create=True), make, "arrival", segment=16384)
            play(server, THIRD)
            server.flush()
            shutil.copytree(here / "live", here / "old" / name)  # as after kill -9
            server.save(here / "old" / f"{name}.fastagg")
            state = found(server)
            play(server, LAST)
            said[name] = {"state": state, "later": found(server), "lives": server.state_dict()["lives"]}
            server.close()
            shutil.rmtree(here / "live")
        for reserve in (here / "old").glob("*/reserve-*"):  # they hold no state
            reserve.unlink()
        with tarfile.open(to / "lives.tar.xz", "w:xz", preset=9) as packed:
            packed.add(here / "old", "old")
    (to / "lives.json").write_text(json.dumps(said, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
