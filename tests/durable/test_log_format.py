"""docs/log-format.md is the format: a decoder that was written from it alone reads the folders of servers. And what is
damaged in a folder is harmless, or refused by name; never silently lost."""

from __future__ import annotations

import errno
import os
import random
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support import log_page
from support.disks import damage
from support.presets import PRESETS, calls, model, update
from test_open import equal, opened, without_lives

import fastagg
from fastagg._build import native
from fastagg.durable import log
from fastagg.durable.disk import Disk
from fastagg.durable.doctor import examine
from fastagg.durable.folder import contents, read_checkpoint, read_log
from fastagg.durable.keeper import Keeper
from fastagg.durable.opening import open_on
from fastagg.durable.recovery import Replay

SIZE = 60
BLOCK = 4096
KINDS = (
    "", "incarnation", "dispatch", "hand_on", "answer", "close_round", "forget", "lr", "expire", "row", "lost"
)  # fmt: skip


def test_the_decoder_has_at_most_100_lines() -> None:
    assert len(Path(log_page.__file__).read_text().splitlines()) <= 100


def same_as_the_package_reads(folder: Path) -> list[dict[str, Any]]:
    """What the decoder reads, after a comparison with what the package does, field by field."""
    disk = Disk(folder)
    held = contents(disk)
    reader = read_log(disk, held, read_checkpoint(disk, held.checkpoints[-1]))
    found = log_page.read(folder)
    for one in found:
        record = reader.next()
        said = record.operation.describe()
        assert record.sequence == one["sequence"] and said["kind"] == KINDS[one["kind"]]
        for mine, name in (("client", "client"), ("task", "task"), ("lr", "rate"), ("share", "share"),
                           ("slots", "slots"), ("version", "version"), ("incarnation", "incarnation")):  # fmt: skip
            assert mine not in one or one[mine] == said[name], (one, said)
        if "applied" in one:
            outcome = (one["applied"], one["after"], one["step_size"], one.get("weight", 0.0), one.get("norm", 0.0))
            assert str(outcome) == str((int(said["decided"][0]), *said["decided"][1:]))
        if "parts" in one:
            assert [part[:3] for part in one["parts"]] == said["parts"]
            assert one.get("upload") == record.operation.streamed
        assert reader.chain.digest == one["digest"]
    assert reader.next() is None
    disk.leave()
    return found


@pytest.mark.parametrize("name", PRESETS)
def test_presets(name: str, tmp_path: Path) -> None:
    told: dict[int, fastagg.Dispatch] = {}
    with open_on(Disk(tmp_path / "a", create=True), lambda: PRESETS[name](model(SIZE)), "arrival", segment=1) as server:
        for call in calls(name, 8):
            if call.number is None:
                told[call.client] = server.dispatch(call.client)
            else:
                receipt = server.receive(call.client, update(call.number, SIZE), told[call.client].version, 3)
    found = same_as_the_package_reads(tmp_path / "a")
    assert receipt.digest == found[receipt.sequence - 1]["digest"].hex()
    norms = [one["norm"] for one in found if "norm" in one]
    assert len(norms) >= 8 and norms[-1] == receipt.update_norm


def everything(folder: Path, make: Callable[[], fastagg.Server], lives: int) -> dict[str, Any]:
    """A few lives with all operations. Return the last state."""
    for life in range(lives):
        with open_on(Disk(folder, create=True), make, "arrival", segment=1 << 15) as server:
            for client in ("ünïcode", 2**63 + life, 5 + life):
                server.dispatch(client)
                server.receive(client, update(life, SIZE))
            server.dispatch("chunks")
            with server.receiving("chunks") as upload:
                upload.write(update(life, SIZE).float().numpy().tobytes())
            server.close_round()
            server.hand_on(server.dispatch(1), 2)
            server.forget(1)
            server.expire(before=1)
            server.lr = 0.5 + life
            if life == lives - 2:
                server.checkpoint()
            server.dispatch(9)
    return without_lives(server)


def buffered() -> fastagg.Server:
    return fastagg.FedBuff(model(SIZE), buffer_size=9)


def test_all_operations_in_three_lives_with_uploads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "SMALL", 0)
    everything(tmp_path / "a", buffered, 3)
    found = same_as_the_package_reads(tmp_path / "a")
    assert {one["kind"] for one in found} == set(range(1, 9))
    ends = [one for one in found if one["kind"] == 5]
    assert [(one["known"], one["applied"], one["after"]) for one in ends] == [(1, 1, 3)]
    assert {one["client"] for one in found if "upload" in one} == {"chunks"}


def test_a_lost_row_has_a_record_and_the_log_with_it_leads_to_the_same_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Keeper, "soon", lambda self: None)  # no checkpoint comes before the copy
    rows, size = tmp_path / "rows", 300
    stride = native.engine.RowFile.stride("int8", size)

    def make() -> fastagg.Server:
        cache = fastagg.Tiered("int8", memory=5 * stride, path=rows)
        return fastagg.ACE(torch.zeros(size), lr=0.1, num_clients=9, cache=cache, warmup="partial")

    with opened(tmp_path / "a", make) as server:

        def answer(client: int) -> None:
            server.dispatch(client)
            server.receive(client, torch.full((size,), 1.0 + client))

        for client in range(9):
            answer(client)
        server.checkpoint()
        damage(rows, 2, server.state_dict(copy=False), stride, 0)
        for client in (0, 1, 2, 3):
            answer(client)
        server.flush()
        shutil.copytree(tmp_path / "a", tmp_path / "b")
        flat = server.flat.clone()
        assert server.tiers()["lost"] == 1
    lost = [one for one in same_as_the_package_reads(tmp_path / "b") if one["kind"] == 10]
    assert [one["slots"] for one in lost] == [[2]]
    with opened(tmp_path / "b", make) as server:
        assert torch.equal(server.flat, flat)


# -- what a machine does to a folder -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def lived(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A folder that was closed, with a checkpoint and a restart behind it, and its state."""
    path = tmp_path_factory.mktemp("lived") / "a"
    return path, everything(path, buffered, 4)


def outcome(path: Path, state: dict[str, Any]) -> str:
    """What an opening does, and that the doctor says it."""
    told = examine(path, replay=True)
    try:
        with opened(path, buffered) as server:
            found = without_lives(server)
    except fastagg.CheckpointError as error:
        assert not told["healthy"] and told["recovery"]["would"] == "be refused", error
        assert len(str(error)) < 400
        return "refused"
    assert told["recovery"]["would"] == "go on", told
    assert equal(found, state), "a silent loss"
    return "the same state"


def journals(path: Path) -> list[Path]:
    return sorted(path.glob("journal-*"))


def flips(path: Path) -> Iterator[tuple[str, int]]:
    rng = random.Random(7)
    for one in (*journals(path), *sorted(path.glob("free-*"))):
        yield from ((one.name, rng.randrange(BLOCK)) for _ in range(12))
        yield from ((one.name, at) for at in (0, 9, 13, 17, 25, 33, 41, 49, 57, 70, 97, 4095))


def test_a_bit_in_the_first_block_of_a_segment(lived: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    path, state = lived
    found: dict[str, set[str]] = {}
    for name, at in flips(path):
        shutil.copytree(path, tmp_path / "b")
        data = bytearray((path / name).read_bytes())
        data[at] ^= 1 << at % 8
        (tmp_path / "b" / name).write_bytes(data)
        found.setdefault(name[:4], set()).add(outcome(tmp_path / "b", state))
        shutil.rmtree(tmp_path / "b")
    assert "refused" in found["jour"] and found.get("free", {"the same state"}) == {"the same state"}


@pytest.mark.parametrize("how", ["missing", "empty", "cut", "of zeros"])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_the_newest_segments_are_not_whole(
    how: str, count: int, lived: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    path, state = lived
    shutil.copytree(path, tmp_path / "b")
    for one in journals(tmp_path / "b")[-count:]:
        size = one.stat().st_size
        if how == "missing":
            one.unlink()
        else:
            os.truncate(one, {"empty": 0, "cut": size - BLOCK, "of zeros": 0}[how])
            os.truncate(one, size if how == "of zeros" else one.stat().st_size)
    assert outcome(tmp_path / "b", state) == "refused"


def test_an_old_log_beside_newer_checkpoints(tmp_path: Path) -> None:
    everything(tmp_path / "a", buffered, 2)
    shutil.copytree(tmp_path / "a", tmp_path / "old")
    state = everything(tmp_path / "a", buffered, 2)
    for one in journals(tmp_path / "a"):
        one.unlink()
    for one in journals(tmp_path / "old"):
        shutil.copy(one, tmp_path / "a" / one.name)
    assert outcome(tmp_path / "a", state) == "refused"


def test_a_bit_anywhere_in_a_log_of_a_closed_server(lived: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    path, state = lived
    rng, found = random.Random(3), set()
    for _ in range(60):
        shutil.copytree(path, tmp_path / "b")
        one = rng.choice(journals(tmp_path / "b"))
        data = bytearray(one.read_bytes())
        data[rng.randrange(len(bytes(data).rstrip(b"\0")))] ^= 1 << rng.randrange(8)
        one.write_bytes(data)
        found.add(outcome(tmp_path / "b", state))
        shutil.rmtree(tmp_path / "b")
    assert found == {"refused", "the same state"}


def held(path: Path) -> dict[str, bytes]:
    return {one.relative_to(path).as_posix(): one.read_bytes() for one in path.rglob("*") if one.is_file()}


@pytest.mark.parametrize("number", [errno.EIO, errno.EMFILE, errno.ENOMEM])
@pytest.mark.parametrize(("call", "begin"), [("open", "upload-"), ("read_of", "upload-"), ("read_of", "journal-")])
def test_what_the_machine_refuses_now_ends_the_opening_and_changes_nothing(
    call: str, begin: str, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "SMALL", 0)
    state = everything(tmp_path / "a", buffered, 2)
    before, usual = held(tmp_path / "a"), getattr(Disk, call)

    def refused(self: Disk, name: str, **more: Any) -> Any:
        if name.startswith(begin) and not more.get("create"):
            raise OSError(number, os.strerror(number), name)
        return usual(self, name, **more)

    with monkeypatch.context() as patch:
        patch.setattr(Disk, call, refused)
        with pytest.raises(fastagg.CheckpointError, match=re.escape(os.strerror(number))):
            opened(tmp_path / "a", buffered)
        assert not examine(tmp_path / "a")["healthy"]
    assert held(tmp_path / "a") == before
    assert outcome(tmp_path / "a", state) == "the same state"


def test_a_checkpoint_that_cannot_be_read_now_stays_and_an_older_one_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = everything(tmp_path / "a", buffered, 2)
    newest = sorted(path.name for path in (tmp_path / "a").glob("checkpoint-*"))[-1]
    usual = Disk.open

    def refused(self: Disk, name: str, **more: Any) -> Any:
        if name.startswith(newest + "/"):
            raise OSError(errno.EIO, os.strerror(errno.EIO), name)
        return usual(self, name, **more)

    with monkeypatch.context() as patch:
        patch.setattr(Disk, "open", refused)
        with opened(tmp_path / "a", buffered) as server:
            assert equal(without_lives(server), state)
    assert (tmp_path / "a" / newest).is_dir() and not list((tmp_path / "a").glob("*.damaged"))


def test_a_row_that_cannot_be_written_now_ends_the_opening(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def make() -> fastagg.Server:
        return fastagg.ACE(torch.zeros(SIZE), lr=0.1, num_clients=4, warmup="partial")

    with opened(tmp_path / "a", make) as server:
        for client in range(4):
            server.dispatch(client)
            server.receive(client, update(client, SIZE))
        state = without_lives(server)
    usual = Replay._execute

    def refused(self: Replay, operation: Any, record: Any, given: Any) -> None:
        if record.sequence == 6:
            raise fastagg.CacheError("rows.bin: Input/output error")
        usual(self, operation, record, given)

    before = held(tmp_path / "a")
    with monkeypatch.context() as patch:
        patch.setattr(Replay, "_execute", refused)
        with pytest.raises(fastagg.CacheError, match="Input/output"):
            opened(tmp_path / "a", make)
    assert held(tmp_path / "a") == before
    with opened(tmp_path / "a", make) as server:
        assert equal(without_lives(server), state)
