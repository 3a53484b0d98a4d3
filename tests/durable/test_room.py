"""Folders of servers that take uploads for weeks: names, bytes, full disks, refusals of the system, and Ctrl-C."""

import errno
import fcntl
import os
import random
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from support import inside
from support.lossy import LossyDisk

import fastagg
from fastagg.durable import doctor, log
from fastagg.durable.folder import checkpoint_name
from fastagg.storage import files

SIZE = 60


def make() -> fastagg.Server:
    return fastagg.ASGD(torch.zeros(SIZE), lr=1.0)


def send(server: fastagg.Server, client: int, size: int = SIZE, dtype: torch.dtype = torch.float32) -> fastagg.Receipt:
    """Each update is a step of one."""
    task = server.dispatch(client)
    with server.receiving(client, dtype=dtype, task=task.id) as upload:
        upload.write((-torch.ones(size, dtype=dtype)).numpy().tobytes())
    return upload.receipt


def uploads(disk: LossyDisk) -> set[str]:
    return {name for name in disk.names() if name.startswith("upload-")}


# -- names, and what may go ----------------------------------------------------------------------------------------


def test_small_uploads_lie_in_the_log(tmp_path: Path) -> None:
    with fastagg.open(tmp_path, make) as server:
        for client in range(50):
            assert send(server, client).durable
    assert not list(tmp_path.glob("upload-*"))
    with fastagg.open(tmp_path, make) as server:
        assert server.version == 50 and bool((server.flat == 50.0).all())


# -- a full disk -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_a_folder_is_as_large_as_the_page_says(seed: int, tmp_path: Path) -> None:
    """docs/operations.md, "A folder is at most": by what the file system counts, over random histories."""
    rng = random.Random(seed)
    size, most = rng.choice([100, 50_000, 200_000]), rng.choice([2, 8, 30]) << 20
    more = partial(fastagg.ASGD, torch.zeros(size), lr=1.0)
    for every in (most, most // 8):  # it shrinks when less is allowed
        keep = rng.choice([1, 2, 3])
        with fastagg.open(tmp_path, more, "none", keep=keep, checkpoint_every=every) as server:
            update, kept, sent = -torch.ones(size), inside.log(server).keeper, 0
            way = "log"
            while sent < 6 * most // (4 * size + 200) and sent < 4000:
                way = way if rng.random() < 0.95 else rng.choice(["log", "uploads", "mixed"])
                if way == "uploads" or (way == "mixed" and sent % 2):
                    send(server, sent % 50, size)
                else:
                    server.receive(sent % 50, update, task=server.dispatch(sent % 50).id)
                sent += 1
                server.flush()
                until = time.monotonic() + 60
                while kept.journal.written >= kept._due and time.monotonic() < until:
                    time.sleep(0.001)
            server.checkpoint()
            state = sum(file.stat().st_size for file in (tmp_path / checkpoint_name(kept.kept[-1])).iterdir())
        segment = max(every // 16, 256 << 10, 4 * size + 5 * 4096)
        bound = (keep + 1) * (state + 8 * size + (1 << 20) + every) + 4 * segment + 4 * size
        used = sum(file.stat().st_blocks * 512 for file in tmp_path.rglob("*"))
        assert used <= bound, f"{used} bytes, the page says {bound}"


# -- errors of the system ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("call", "before"), [("open", 0), ("allocate", 0), ("write", 0), ("write", 40)])
def test_a_chunk_that_was_refused_may_be_sent_again(
    call: str, before: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "SMALL", 0)
    with fastagg.open(tmp_path, make) as server:
        server.dispatch(1)
        with server.receiving(1) as upload:
            upload.write((-torch.ones(SIZE)).numpy().tobytes()[:before])
            with monkeypatch.context() as patch:
                patch.setattr(inside.log(server)._disk, call, lambda *_, **__: 1 / 0)
                with pytest.raises(ZeroDivisionError):
                    upload.write(bytes(8))
            upload.write((-torch.ones(SIZE)).numpy().tobytes()[before:])
    with fastagg.open(tmp_path, make) as server:
        assert server.version == 1, "its checksum is that of the file"


# -- Ctrl-C ----------------------------------------------------------------------------------------------------------


def interrupted(path: Path, count: int) -> tuple[bool, BaseException | None]:
    """Open a folder, and interrupt at an instruction of it. Return whether it came there, and the interrupt, held."""
    left = count

    def step(frame: FrameType, event: str, _: object) -> Any:
        nonlocal left
        if Path(frame.f_code.co_filename).parent.name != "durable":
            return None
        frame.f_trace_opcodes = frame.f_code.co_name in ("lock", "open", "open_on", "start")
        if frame.f_code.co_name in ("unlock", "leave"):  # the first one is being answered
            return None
        left -= event in ("opcode", "line")
        if left == -1:
            raise KeyboardInterrupt
        return step

    sys.settrace(step)
    try:
        server = fastagg.open(path, make)
        sys.settrace(None)
        server.close()
    except KeyboardInterrupt as error:
        return True, error
    finally:
        sys.settrace(None)
    return left < 0, None


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")
@pytest.mark.parametrize("fresh", [True, False])
def test_an_interrupt_on_any_instruction_of_an_opening_leaves_the_folder_free(fresh: bool, tmp_path: Path) -> None:
    came, count, held = True, int(fresh), None
    while came:
        path = tmp_path / f"{count}"
        if not fresh:
            fastagg.open(path, make).close()
        # CPython may keep an exception as "being handled" where a trace has raised: it goes with its thread.
        with ThreadPoolExecutor(1) as alone:
            came, error = alone.submit(interrupted, path, count).result()
        held = error  # as a console does, with its frames: the folder is free all the same
        fastagg.open(path, make).close()
        count += 13
    assert held is None and count > 300


def test_the_doctor_says_what_a_folder_is(tmp_path: Path) -> None:
    for name, says in (("config.toml", "of a simulation"), ("other", "another folder")):
        folder = tmp_path / name
        folder.mkdir()
        (folder / name).write_bytes(b"")
        with pytest.raises(fastagg.CheckpointError, match=says):
            doctor.examine(folder)


FULL = 51  # fcntl.F_FULLFSYNC on macOS


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    for name in ("fdatasync", "posix_fallocate"):
        monkeypatch.delattr(os, name, raising=False)
    found = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    os.write(found, b"held")
    return found


@pytest.mark.parametrize("refused", [False, True])
def test_a_sync_reaches_the_disk_itself(file: int, refused: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """F_FULLFSYNC where the system has it. fsync where it does not, or where the file system refuses."""
    calls: list[object] = []

    def asked(of: int, command: int) -> None:
        calls.append((of, command))
        if refused:
            raise OSError(errno.ENOTSUP, "not here")

    monkeypatch.setattr(os, "fsync", calls.append)
    monkeypatch.delattr(fcntl, "F_FULLFSYNC", raising=False)
    files.sync(file)
    monkeypatch.setattr(fcntl, "F_FULLFSYNC", FULL, raising=False)
    monkeypatch.setattr(fcntl, "fcntl", asked)
    files.sync(file)
    assert calls == [file, (file, FULL)] + [file] * refused


def test_room_is_reserved_behind_what_is_there(file: int) -> None:
    size = (1 << 20) + 7
    files.allocate(file, size)
    assert os.pread(file, size + 1, 0) == b"held" + bytes(size - 4)
    assert os.fstat(file).st_blocks * 512 >= size  # no hole
    files.allocate(file, 3)
    assert os.fstat(file).st_size == size
