"""Updates that come in chunks: whole or not at all, in memory or in a folder, and after a recovery."""

import contextlib
import dis
import errno
import functools
import gc
import itertools
import os
import random
import sys
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest
import torch
from support.damaged import rewritten
from support.models import same

import fastagg
from fastagg import DTypeMismatch, EncodingError, NonFiniteUpdate, ShapeMismatch
from fastagg.durable import log
from fastagg.durable.disk import Disk
from fastagg.durable.keeper import Keeper

SIZE = 1000


@pytest.fixture(autouse=True)
def every_upload_is_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "SMALL", 0)


def make() -> fastagg.Server:
    return fastagg.FedBuff(torch.zeros(SIZE), buffer_size=2)


def data(update: torch.Tensor) -> bytes:
    return update.view(torch.uint8).numpy().tobytes()


def send(server: fastagg.Server, client: int, update: torch.Tensor, chunk: int = 77) -> fastagg.Receipt:
    server.dispatch(client)
    whole = data(update)
    with server.receiving(client, dtype=update.dtype) as upload:
        for at in range(0, len(whole), chunk):
            assert upload.write(whole[at : at + chunk]) == min(at + chunk, len(whole))
    return upload.receipt


@pytest.mark.parametrize("harm", ["damaged", "missing"])
def test_a_recovery_without_an_upload_that_it_needs_is_refused(harm: str, tmp_path: Path) -> None:
    with fastagg.open(tmp_path, make) as server:
        send(server, 0, torch.ones(SIZE).half())
    (path,) = tmp_path.glob("upload-*")
    whole = bytearray(path.read_bytes())
    whole[5] ^= 1
    path.write_bytes(whole) if harm == "damaged" else path.unlink()
    with pytest.raises(fastagg.CheckpointError, match=f"the upload is {harm}"):
        fastagg.open(tmp_path, make)


def test_encoded_chunks_that_are_no_such_update_change_nothing(tmp_path: Path) -> None:
    whole = fastagg.encode(torch.ones(SIZE + 1), "int8", seed=0).to_bytes()
    with fastagg.open(tmp_path, make) as server:
        server.dispatch(0)
        before = server.state_dict()
        for bad, error, said in (
            (whole, ShapeMismatch, f"an encoded one of {SIZE + 1}"), (whole[:-1], EncodingError, "its header tells of"),
            (bytes(200), EncodingError, "encoded update: "), (bytes(63), EncodingError, "expected 64 to"),
            (bytes(16 * SIZE + 1025), EncodingError, "expected 64 to"),
        ):  # fmt: skip
            with pytest.raises(error, match=said), server.receiving(0, encoded=len(bad)) as upload:
                upload.write(bad)
        assert same(server.state_dict(), before)


def test_a_record_of_an_upload_of_an_unknown_type_is_refused(tmp_path: Path) -> None:
    with fastagg.open(tmp_path, make) as server:
        send(server, 0, torch.ones(SIZE))
        send(server, 1, torch.ones(SIZE))

    def change(body: bytearray) -> None:
        body[body.index(bytes([3, *bytes(7), *(4 * SIZE).to_bytes(8, "little")])) + 20] = 77  # behind the checksum

    rewritten(next(tmp_path.glob("journal-*")), change)
    with pytest.raises(fastagg.CheckpointError, match=r"record 4 of the log cannot be executed: .*an unknown type"):
        fastagg.open(tmp_path, make)


@pytest.mark.parametrize("durable", [False, True])
def test_what_is_not_whole_or_not_right_changes_nothing_and_is_said_once(
    durable: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = fastagg.open(tmp_path / "a", make) if durable else fastagg.watch(make())
    counted: list[str] = []
    monkeypatch.setattr(server._watch, "refused", lambda error: counted.append(type(error).__name__))
    server.dispatch(1)
    ones = data(torch.ones(SIZE))
    with pytest.raises(ShapeMismatch, match="got more"), server.receiving(1) as upload:
        upload.write(ones + b"x")
    with pytest.raises(ShapeMismatch, match="got 3999"), server.receiving(1) as upload:
        upload.write(ones[:-1])
    with pytest.raises(ZeroDivisionError), server.receiving(1) as upload:
        upload.write(ones)
        raise ZeroDivisionError
    with pytest.raises(NonFiniteUpdate), server.receiving(1) as upload:
        upload.write(data(torch.full((SIZE,), float("nan"))))
    with pytest.raises(DTypeMismatch):
        server.receiving(1, dtype=torch.int32)
    with pytest.raises(fastagg.UnknownClient):
        server.receiving(2)
    with pytest.raises(fastagg.StaleIncarnation):
        server.receiving(1, incarnation=3)
    assert not list(tmp_path.glob("a/upload-*"))
    assert counted == [
        "ShapeMismatch", "ShapeMismatch", "NonFiniteUpdate", "DTypeMismatch", "UnknownClient", "StaleIncarnation",
    ]  # fmt: skip
    with server.receiving(1) as upload:
        upload.write(ones)
    with pytest.raises(ShapeMismatch, match="after its end"):
        upload.write(b"")
    assert upload.receipt.update_norm == pytest.approx(SIZE**0.5)


def test_a_copy_takes_the_place_of_an_open_upload_and_waits_for_a_complete_one(tmp_path: Path) -> None:
    ones, halves = torch.ones(SIZE), torch.full((SIZE,), 0.5)
    with fastagg.open(tmp_path, make) as server:
        task = server.dispatch(1)
        first = server.receiving(1).__enter__()
        first.write(data(halves)[:100])
        second = server.receiving(1).__enter__()
        assert (first.state, second.state) == ("dropped", "open") and len(list(tmp_path.glob("upload-*"))) == 0
        for late in (lambda: first.write(b"x"), lambda: first.__exit__(None, None, None)):
            with pytest.raises(fastagg.UnknownVersion, match="a newer one has begun"):
                late()
        second.write(data(ones))
        for _ in range(2):
            with pytest.raises(fastagg.Busy, match="another copy of this update is complete"):
                server.receiving(1)
        assert second.state == "complete" and len(list(tmp_path.glob("upload-*"))) == 1
        second.__exit__(None, None, None)
        assert second.state == "taken" and second.receipt.update_norm == pytest.approx(SIZE**0.5)
        with pytest.raises(fastagg.AlreadyCounted):
            server.receiving(1, task=task.id)
        server.dispatch(1)
        failed = server.receiving(1).__enter__()
        failed.write(data(torch.full((SIZE,), float("nan"))))
        with pytest.raises(NonFiniteUpdate):
            failed.__exit__(None, None, None)
        assert failed.state == "dropped" and len(list(tmp_path.glob("upload-*"))) == 1
        assert server.receiving(1).state == "open"  # the complete one was refused, so another copy may come


def test_bytes_that_are_not_those_that_came_do_not_count(tmp_path: Path) -> None:
    with fastagg.open(tmp_path, make) as server:
        for number, harm in enumerate((
            lambda path: path.write_bytes(data(torch.zeros(SIZE))), lambda path: path.write_bytes(b""), Path.unlink,
        )):  # fmt: skip
            server.dispatch(number)
            with pytest.raises(fastagg.NotDurable, match="upload-"), server.receiving(number) as upload:
                upload.write(data(torch.ones(SIZE)))
                harm(next(tmp_path.glob("upload-*")))
            assert upload.state == "dropped"
        assert not send(server, 5, torch.ones(SIZE)).applied
    fastagg.open(tmp_path, make).close()


def descriptors() -> dict[int, tuple[int, int]]:
    """The open files of this process, and which they are."""
    there = {}
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found = os.fstat(int(name))
            there[int(name)] = found.st_dev, found.st_ino
    return there


@pytest.mark.parametrize("seed", range(6))
def test_no_file_of_anybody_else_is_closed_and_none_stays_open(seed: int, tmp_path: Path) -> None:
    """Copies come, break, end, end twice, are forgotten, forked, and refused; meanwhile the application opens files, so
    that each number is taken at once. The model has what each client sent, in every element."""
    rng, truth = random.Random(seed), torch.zeros(SIZE)
    others: dict[int, tuple[int, int]] = {}
    server = fastagg.open(tmp_path / "a", lambda: fastagg.ASGD(torch.zeros(SIZE), lr=1.0))
    before = len(descriptors())

    def other() -> None:
        (tmp_path / f"{len(others)}").write_bytes(b"mine")
        file = os.open(tmp_path / f"{len(others)}", os.O_RDWR)
        found = os.fstat(file)
        assert file not in others
        others[file] = found.st_dev, found.st_ino

    for number in range(40):
        client, sent = number % 3, torch.randint(-4, 5, (SIZE,)).float()
        task, kept = server.dispatch(client), []
        for act in [*rng.choices(("open", "whole", "cut", "nan", "gone", "fork"), k=rng.randint(0, 4)), "whole"]:
            upload: Any = None
            try:
                upload = server.receiving(client, task=task.id).__enter__()
                other()
                upload.write(data(sent)[: rng.randrange(4, 4 * SIZE, 4)])
                if act == "cut":
                    for _ in range(2):
                        upload.__exit__(OSError, OSError(), None)
                if act == "fork" and (child := os.fork()) == 0:
                    upload = None
                    gc.collect()
                    os._exit(0)
                elif act == "fork":
                    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
                if act in ("whole", "nan"):
                    rest = data(sent)[upload.write(b"") :]
                    upload.write(rest if act == "whole" else rest[:-4] + data(torch.tensor([float("nan")])))
                    other()
                    with pytest.raises(fastagg.Busy):
                        server.receiving(client, task=task.id)
                    upload.__exit__(None, None, None)
                    truth -= sent
                if act != "gone":
                    kept.append(upload)
            except (NonFiniteUpdate, fastagg.AlreadyCounted):
                pass
            other()
        upload = None
        kept.clear()
        assert torch.equal(server.flat, truth)
        if number % 10 == 9:
            server.checkpoint()
    server.flush()
    assert others.items() <= descriptors().items() and len(descriptors()) - before - len(others) <= 1  # a segment
    server.close()
    assert others.items() <= descriptors().items()
    with fastagg.open(tmp_path / "a", lambda: fastagg.ASGD(torch.zeros(SIZE), lr=1.0)) as again:
        assert torch.equal(again.flat, truth)
    for file in others:
        os.close(file)


def test_where_no_file_can_be_made_uploads_have_the_spare_one_in_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = Disk.open

    def full(self: Disk, name: str, *, create: bool = False, write: bool = True) -> int:
        if create and name.startswith("upload-") and name not in self.names():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return usual(self, name, create=create, write=write)

    with fastagg.open(tmp_path, make) as server:
        assert (tmp_path / "spare").stat().st_blocks * 512 >= 4 * SIZE
        monkeypatch.setattr(Disk, "open", full)
        for client in range(4):
            server.dispatch(client)
            server.dispatch(-1 - client)
            refused = server.receiving(-1 - client).__enter__()
            for is_whole in (False, True):
                with contextlib.suppress(ZeroDivisionError), server.receiving(client) as upload:
                    upload.write(data(torch.ones(SIZE)))
                    assert not (tmp_path / "spare").exists()
                    with pytest.raises(fastagg.NotDurable, match="No space left"):
                        refused.write(b"x")
                    assert is_whole or 1 / 0
            for _ in range(2):
                server.dispatch(9)
                server.checkpoint()
            assert (tmp_path / "spare").exists()
        assert server.version == 2
    with fastagg.open(tmp_path, make) as again:
        assert again.version == 2 and not list(tmp_path.glob("upload-*"))


def test_a_volume_that_is_freed_takes_uploads_before_there_is_a_new_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with fastagg.open(tmp_path, make) as server:
        server.dispatch(0)
        with monkeypatch.context() as patched:
            patched.setattr(Disk, "allocate", full)
            patched.setattr(Disk, "rename", full)
            patched.setattr(Keeper, "_keep_room", full)
            with pytest.raises(fastagg.NotDurable), server.receiving(0) as upload:
                upload.write(data(torch.ones(SIZE)))
            patched.undo()
            patched.setattr(Keeper, "_keep_room", full)
            server.checkpoint()  # is written, and what is cleared after it is refused
        server.checkpoint()
        with server.receiving(0) as upload:
            upload.write(data(torch.ones(SIZE)))
        assert upload.receipt is not None


def test_an_upload_that_ends_after_close_says_so_and_leaves_nothing(tmp_path: Path) -> None:
    server = fastagg.open(tmp_path, make)
    server.dispatch(0)
    with pytest.raises(fastagg.NotDurable, match="closed"), server.receiving(0) as upload:
        upload.write(data(torch.ones(SIZE)))
        server.close()
    server = fastagg.open(tmp_path, make)
    server.dispatch(1)
    with pytest.raises(KeyError, match="mine"), server.receiving(1) as upload:
        upload.write(data(torch.ones(SIZE // 2)))
        server.close()
        raise KeyError("mine")
    fastagg.open(tmp_path, make).close()
    assert not list(tmp_path.glob("upload-*"))


@functools.cache
def looks(code: CodeType) -> set[int]:
    """The instructions before which Python looks for signals: behind a call, and where a function begins."""
    return {
        after.offset for before, after in itertools.pairwise(dis.get_instructions(code))
        if before.opname.startswith("CALL") or before.opname == "RESUME"
    }  # fmt: skip


def test_an_interrupt_at_any_instruction_leaves_no_upload_busy() -> None:
    left = -1

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal left
        if Path(frame.f_code.co_filename).name != "uploads.py":
            return None
        frame.f_trace_opcodes = True
        left -= event == "opcode" and frame.f_lasti in looks(frame.f_code)
        if left == -1:
            raise KeyboardInterrupt
        return trace

    server, ones = make(), data(torch.ones(SIZE))
    for count in itertools.count():
        client, left = count, count
        server.dispatch(client)
        upload = server.receiving(client).__enter__()
        sys.settrace(trace)
        try:
            upload.write(ones)
            upload.__exit__(None, None, None)
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(None)
        if left >= 0:
            break
        with contextlib.suppress(ShapeMismatch):
            upload.write(b"")
        upload.__exit__(OSError, OSError(), None)
        assert upload.state in ("taken", "dropped")
    assert count > 20
