"""Fills a small volume around a server's folder, to the block, and looks whether the server goes on.

python -P filling.py VOLUME WAY BLOCKS...: for each number of free blocks, a new folder. Prints a line for each.
Root calls this, and the servers are not root's, for whom ext4 keeps some blocks.
"""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

import fastagg
from fastagg.durable import doctor, log
from fastagg.durable.disk import Disk
from fastagg.durable.opening import open_on

SIZE, SEGMENT, NOBODY = 1000, 1 << 18, 65534
AFTER, PATIENCE = 6, 60.0  # answers after a refusal, within so many seconds
log.SMALL = 1000  # larger uploads go to files


def make() -> fastagg.Server:
    return fastagg.ASGD(torch.zeros(SIZE), lr=1.0)


def opened(path: Path) -> fastagg.Server:
    return open_on(Disk(path, create=True), make, "arrival", segment=SEGMENT)


def send(server: fastagg.Server, client: int, way: str) -> None:
    """Each answer is a step of one."""
    task, update = server.dispatch(client), -torch.ones(SIZE)
    if way == "log":
        server.receive(client, update, task=task.id)
        return
    with server.receiving(client, task=task.id) as upload:
        upload.write(update.numpy().tobytes())


def fill(volume: Path, blocks: int) -> None:
    """Let somebody else have all of a volume but so many of the blocks that a user may have, or as few as it gives."""
    with (volume / "filler").open("ab") as file:
        for part in 8 * [1, 1, 2, 4, 16, 64]:  # a file's map takes blocks, too; XFS wants more than it gives
            there, size = os.statvfs(volume), os.fstat(file.fileno()).st_size
            more = there.f_bavail - blocks
            with contextlib.suppress(OSError):
                if more >= part:
                    os.posix_fallocate(file.fileno(), size, more // part * there.f_frsize)
                elif more < 0:
                    os.ftruncate(file.fileno(), max(0, size + more * there.f_frsize))
            os.fsync(file.fileno())


def life(path: Path, way: str, acknowledged: int, full: Callable[[], None]) -> int:
    """Open the folder, let the volume become ``full``, and go on. Return what was acknowledged."""
    server = opened(path)
    version, refused, after, until = server.version, "", 0, math.inf
    assert version >= acknowledged and bool((server.flat == float(version)).all()), f"{version} of {acknowledged}"
    for client in range(0 if version else 3):
        send(server, client, way)
    full()
    acknowledged = server.version
    while after < AFTER:
        if time.monotonic() > until:
            raise TimeoutError(f"full for {PATIENCE} s: {refused}")
        try:
            send(server, acknowledged % 50, way)
        except fastagg.NotDurable as error:
            until = until if refused else time.monotonic() + PATIENCE
            refused = str(error)
            time.sleep(0.02)
            continue
        except fastagg.AlreadyCounted:
            pass
        acknowledged += 1
        after += bool(refused)
        assert acknowledged < version + 5000, "it is never full"
    return acknowledged


def killed(path: Path, way: str, acknowledged: int, blocks: int) -> int:
    """Let a user's process have the server. It is killed at its end. Return what it acknowledged."""
    (told, tell), (hear, say) = os.pipe(), os.pipe()

    def full() -> None:
        os.write(say, b"full?")
        os.read(told, 1)

    if os.fork() == 0:
        os.chdir(path.parent)  # which a user might not come to
        os.setuid(NOBODY)
        try:
            text = f"{life(Path(path.name), way, acknowledged, full)}"
        except BaseException as error:
            text = f"{type(error).__name__}: {error}"
        os.write(say, text.encode())
        os.kill(os.getpid(), signal.SIGKILL)
    os.close(say)
    text = os.read(hear, 1000).decode()
    if text == "full?":
        fill(path.parent, blocks)
        os.write(tell, b".")
        text = os.read(hear, 1000).decode()
    os.wait()
    for file in (told, tell, hear):
        os.close(file)
    if not text.isdigit():
        raise SystemExit(f"{blocks} blocks: {text}")
    return int(text)


def run(volume: Path, way: str, blocks: int) -> None:
    """One folder: the same server goes on, and the next ones, and nothing acknowledged is lost."""
    (volume / "filler").write_bytes(b"")
    path, acknowledged = volume / "state", 0
    path.mkdir()
    for number in range(blocks % 40):  # the folder's own blocks are full at different moments
        (path / f"somebody's-{number:040d}").touch()
    os.chown(path, NOBODY, NOBODY)
    for _ in range(3):
        acknowledged = killed(path, way, acknowledged, blocks)
        said = doctor.examine(path)
        assert said["healthy"], said["problems"]
    print(blocks, acknowledged, flush=True)
    shutil.rmtree(path)


def main(volume: str, way: str, *blocks: str) -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder, opened(Path(folder)) as server:  # imports what a user may not read
        send(server, 1, "uploads")
        server.checkpoint()
    for each in blocks:
        run(Path(volume), way, int(each))


if __name__ == "__main__":
    main(*sys.argv[1:])
