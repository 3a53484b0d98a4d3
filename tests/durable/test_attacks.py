"""What operators, networks and systems do to a server with a folder, and what must not come of it."""

from __future__ import annotations

import gc
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from support.lossy import LossyDisk
from support.presets import model, update
from test_open import again, opened

import fastagg
from fastagg import Busy, CheckpointError, FastaggError, NotDurable
from fastagg.durable import log
from fastagg.durable.disk import Disk
from fastagg.durable.doctor import examine
from fastagg.durable.opening import open_on

SIZE = 64
Make = Callable[[], fastagg.Server]


def asgd() -> fastagg.Server:
    return fastagg.ASGD(torch.zeros(SIZE), lr=1.0)


def answer(server: fastagg.Server, client: int = 0, size: int = SIZE) -> fastagg.Receipt:
    server.dispatch(client)
    return server.receive(client, -torch.ones(size))


def script(code: str, *given: object, seconds: float = 60.0) -> str:
    """Run a program that must end by itself, and return what it printed."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", code, *map(str, given)],
        capture_output=True, text=True, timeout=seconds, check=False,
        env={**os.environ, "PYTHONPATH": str(Path(fastagg.__file__).parents[1])},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


# -- one upload, many hands --------------------------------------------------------------------------------------------


def test_five_threads_write_to_one_upload(tmp_path: Path) -> None:
    chunks, size = 2000, 50_000
    whole = torch.ones(size).numpy().tobytes()
    part = len(whole) // chunks

    def make() -> fastagg.Server:
        return fastagg.ASGD(torch.zeros(size), lr=1.0)

    server = opened(tmp_path / "a", make)
    server.dispatch(1)
    refused: list[str] = []
    written: list[int] = []
    start = threading.Barrier(5)
    with pytest.raises(FastaggError), server.receiving(1) as upload:

        def write() -> None:
            start.wait()
            for _ in range(chunks):
                try:
                    written.append(upload.write(whole[:part]))
                except FastaggError as error:
                    refused.append(type(error).__name__)

        threads = [threading.Thread(target=write) for _ in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(written) == len(set(written)) == chunks, "each write has its own place"
        upload.write(whole[:1])  # beyond its end
    assert len(refused) == 4 * chunks and set(refused) <= {"Busy", "ShapeMismatch"}
    found = again(server, tmp_path / "b", make)
    assert found.version == server.version
    server.close()


# -- signals -----------------------------------------------------------------------------------------------------------

HANDLED = """
import os, signal, sys, threading, time, torch, fastagg
what, folder = sys.argv[1:]
make = lambda: fastagg.ASGD(torch.zeros(1_000_000), lr=1.0)
server = fastagg.open(folder, make)
ends = []
def handle(*_):
    try:
        getattr(server, what)()
        ends.append("done")
    except fastagg.FastaggError as error:
        ends.append(type(error).__name__)
signal.signal(signal.SIGTERM, handle)
def kill():
    for _ in range(20):
        time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGTERM)
killer = threading.Thread(target=kill)
killer.start()
count = 0
try:
    while killer.is_alive():
        server.dispatch(0)
        server.receive(0, torch.ones(1_000_000))
        count += 1
        server.checkpoint()
except fastagg.FastaggError as error:
    print(type(error).__name__)
killer.join()
time.sleep(0.1)
server.close()
print(len(ends), *sorted(set(ends)))
with fastagg.open(folder, make) as server:
    assert count <= server.version <= count + 1, (count, server.version)
"""


@pytest.mark.parametrize("what", ["checkpoint", "close"])
def test_a_handler_may_do_what_the_interrupted_call_does(what: str, tmp_path: Path) -> None:
    told = script(HANDLED, what, tmp_path / "a").split("\n")
    ends = told[-2].split()
    assert 1 <= int(ends[0]) <= 20 and "done" in ends
    assert set(ends[1:]) <= {"done", "Reentered"}
    assert len(told) == 2 if what == "checkpoint" else told[0] in ("NotDurable", "CheckpointError")


# -- many lives --------------------------------------------------------------------------------------------------------


def size_of(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def test_many_short_lives_take_bounded_room_and_replay(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """No life is long enough to write a checkpoint of its own; all of them together are."""
    sizes, replayed, lives, every = [], [], 300, 100_000
    for life in range(lives):
        server = open_on(Disk(tmp_path / "a", create=True), asgd, "arrival", segment=1 << 16, checkpoint_every=every)
        assert server.version == life
        answer(server)
        time.sleep(0.002)  # the keeper's turn
        server.close()
        if life % 20 == 19:
            sizes.append(size_of(tmp_path / "a"))
            replayed.append(examine(tmp_path / "a")["recovery"]["bytes"])
    newest = examine(tmp_path / "a")["checkpoints"][-1]["version"]
    assert newest > lives // 2, "a checkpoint was made"
    assert max(replayed) < 2 * every and max(sizes[5:]) <= 2 * max(sizes[:5]) + (1 << 19)


def test_a_task_is_answered_a_hundred_lives_later(tmp_path: Path) -> None:
    for durable_rule in (asgd, lambda: fastagg.FedAsync(torch.zeros(SIZE))):
        folder = tmp_path / durable_rule().direction.__class__.__name__ / str(durable_rule is asgd)
        with fastagg.open(folder, durable_rule) as server:
            task = server.dispatch("late")
        for life in range(100):
            with fastagg.open(folder, durable_rule) as server:
                answer(server)
                if life == 50:
                    server.checkpoint()
        with fastagg.open(folder, durable_rule) as server:
            receipt = server.receive("late", -torch.ones(SIZE), task.version, incarnation=task.incarnation)
            assert receipt.delay == 100 and receipt.durable and server.version == 101


def test_closing_when_a_checkpoint_is_due(tmp_path: Path) -> None:
    made = 0
    for turn in range(25):
        folder = tmp_path / str(turn)
        server = open_on(Disk(folder, create=True), asgd, "arrival", segment=1 << 16, checkpoint_every=20_000)
        for _ in range(turn):
            answer(server)
        server.close()  # anywhere in the writing of a checkpoint
        found = examine(folder, replay=True)
        assert found["healthy"], found["problems"]
        made += len(found["checkpoints"]) > 1
        with opened(folder, asgd) as server:
            assert server.version == turn and torch.equal(server.flat, torch.full((SIZE,), float(turn)))
        assert not list(folder.glob("*.partial"))
    assert made


def test_a_server_that_nobody_closes_gives_its_folder_back(tmp_path: Path) -> None:
    for life in range(20):
        server = fastagg.open(tmp_path / "a", asgd)
        assert server.version == life
        answer(server)
        with pytest.raises(Busy):
            fastagg.open(tmp_path / "a", asgd)
        del server
        gc.collect()


# -- disks that refuse -------------------------------------------------------------------------------------------------


def test_a_sync_that_fails_in_the_head_of_a_new_segment_ends_acknowledgements() -> None:
    class Heads(LossyDisk):
        """The first sync of a segment with another number than 1 fails, and later ones pretend to succeed."""

        failed = 0

        def sync(self, file: int) -> None:
            name = next((name for name, node in self.names_of.items() if node == self.open_files[file]), "")
            if name.startswith("journal-") and not name.endswith("1") and not self.failed:
                self.failed += 1
                raise OSError(5, "Input/output error")
            super().sync(file)

    disk = Heads()
    server = open_on(disk, asgd, "arrival", segment=8192)
    acknowledged = 0
    with pytest.raises(NotDurable, match="open the folder again"):
        for _ in range(1000):
            assert answer(server).durable
            acknowledged += 1
    assert disk.failed == 1 and acknowledged > 0
    for call in (lambda: answer(server), server.flush, server.checkpoint):
        with pytest.raises(FastaggError):
            call()
    with pytest.raises(NotDurable):
        server.close()
    assert open_on(disk, asgd, "arrival", segment=8192).version in (acknowledged, acknowledged + 1)


# -- files that somebody puts there ------------------------------------------------------------------------------------


def many_segments(folder: Path) -> list[Path]:
    with open_on(Disk(folder, create=True), asgd, "none", segment=1 << 18) as server:
        while len(list(folder.glob("journal-*"))) < 3:
            answer(server)
            server.flush()
        answer(server)
    return sorted(folder.glob("journal-*"))


def test_a_segment_of_another_server_is_refused(tmp_path: Path) -> None:
    mine, other = many_segments(tmp_path / "a"), many_segments(tmp_path / "b")
    shutil.copy(other[1], mine[1])
    for replay in (False, True):
        told = examine(tmp_path / "a", replay=replay)
        assert not told["healthy"] and told["recovery"]["would"] == "be refused"
        assert any("another folder's log" in problem and mine[1].name in problem for problem in told["problems"])
    with pytest.raises(CheckpointError, match="another folder's log"):
        fastagg.open(tmp_path / "a", asgd)


REFUSES = """
import sys, time, torch, fastagg
from pathlib import Path
from fastagg.durable.doctor import examine
begun = time.monotonic()
for call in (lambda: fastagg.open(sys.argv[1], lambda: fastagg.ASGD(torch.zeros(64), lr=1.0)).close(),
             lambda: examine(Path(sys.argv[1])), lambda: examine(Path(sys.argv[1]), replay=True)):
    try:
        found = call()
        print("refused" if found and not found["healthy"] else "taken")
    except fastagg.CheckpointError:
        print("refused")
assert time.monotonic() - begun < 5
"""


@pytest.mark.parametrize("place", [1, 2, 9])
def test_a_pipe_with_a_segments_name_is_refused_and_not_waited_for(place: int, tmp_path: Path) -> None:
    segments = many_segments(tmp_path / "a")
    name = segments[0].with_name(f"journal-{place:012d}")
    name.unlink(missing_ok=True)
    os.mkfifo(name)
    assert script(REFUSES, tmp_path / "a").split() == ["refused"] * 3


# -- clients that come and go ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("leave", ["dropped", "failed"])
def test_many_attempts_to_send_one_answer_hold_one_file(
    leave: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "SMALL", 0)
    with opened(tmp_path / "a", asgd) as server:
        server.dispatch(1)
        before = len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").exists() else 0
        uploads, most = [], 0
        for _ in range(200):
            upload = server.receiving(1)
            if leave == "failed":
                with pytest.raises(ZeroDivisionError), upload as entered:
                    entered.write(bytes(100))
                    raise ZeroDivisionError
            else:
                upload.write(bytes(100))
            uploads.append(upload)  # the connection is gone, and somebody still holds the object
            most = max(most, len(list((tmp_path / "a").glob("upload-*"))))
        assert most <= 1
        if before:
            assert len(os.listdir("/proc/self/fd")) <= before + 3
        with server.receiving(1) as upload:
            upload.write((-torch.ones(SIZE)).numpy().tobytes())
        assert server.version == 1
        for old in uploads:
            with pytest.raises(FastaggError):
                old.write(bytes(4))


RULES = {
    "FedBuff": lambda size: fastagg.FedBuff(model(size), buffer_size=3),
    "ASGD": lambda size: fastagg.ASGD(model(size), lr=0.01),
    "ACE int8": lambda size: fastagg.ACE(model(size), lr=0.01, num_clients=3, cache="int8", warmup="partial"),
}


@pytest.mark.parametrize("rule", RULES)
def test_a_sender_that_changes_its_update_meanwhile_changes_the_log_as_well(rule: str, tmp_path: Path) -> None:
    """What the model has is what the log has, whatever each of them read."""
    size = 20_000

    def make() -> fastagg.Server:
        return RULES[rule](size)

    server = opened(tmp_path / "a", make)
    sent, over = update(0, size).float().contiguous(), threading.Event()
    changes = 0

    def change() -> None:
        nonlocal changes
        while not over.is_set():
            sent.mul_(-1.0)
            sent[changes % size] += 0.01
            changes += 1

    thread = threading.Thread(target=change)
    thread.start()
    try:
        for k in range(200):
            server.dispatch(k % 3)
            assert server.receive(k % 3, sent).durable
            if k == 120:
                server.checkpoint()
    finally:
        over.set()
        thread.join()
    assert changes > 200
    found = again(server, tmp_path / "b", make)
    assert found.version == server.version and torch.equal(found.flat, server.flat)
    found.close()
    server.close()
