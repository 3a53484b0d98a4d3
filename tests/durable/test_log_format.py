"""docs/log-format.md is the format: a decoder that was written from it alone reads the folders of servers. And what is
damaged in a folder is harmless, or refused by name; never silently lost."""

import errno
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support import damaged, log_page
from support.crc import crc32c
from support.damaged import everything, outcome, rewritten
from support.presets import PRESETS, calls, model, update
from support.simulated import limit
from test_open import equal, opened, without_lives

import fastagg
from fastagg.durable import log
from fastagg.durable.disk import Disk
from fastagg.durable.doctor import examine
from fastagg.durable.folder import contents, read_checkpoint, read_log
from fastagg.durable.opening import open_on

SIZE = 60
BLOCK = 4096
KINDS = "", "incarnation", "dispatch", "hand_on", "answer", "close_round", "forget", "lr", "expire"


def test_the_decoder_has_at_most_120_lines() -> None:
    assert len(Path(log_page.__file__).read_text().splitlines()) <= 120


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
                           ("version", "version"), ("incarnation", "incarnation")):  # fmt: skip
            assert mine not in one or one[mine] == said[name], (one, said)
        if "applied" in one:
            outcome = (one["applied"], one["after"], one["step_size"], one.get("weight", 0.0), one.get("norm", 0.0))
            assert str(outcome) == str((int(said["decided"][0]), *said["decided"][1:]))
        if "parts" in one:
            assert [part[:3] for part in one["parts"]] == said["parts"]
            assert one.get("upload") == record.operation.streamed
        assert reader.digest == one["digest"]
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


buffered = damaged.RULES["FedBuff"]


def test_all_operations_in_three_lives_with_uploads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "SMALL", 0)
    everything(tmp_path / "a", buffered, 3)
    found = same_as_the_package_reads(tmp_path / "a")
    assert {one["kind"] for one in found} == set(range(1, 9))
    ends = [one for one in found if one["kind"] == 5]
    assert [(one["known"], one["applied"], one["after"]) for one in ends] == [(1, 1, 3)]
    assert {one["client"] for one in found if "upload" in one} == {"chunks"}


def test_another_format_is_refused_by_its_number(tmp_path: Path) -> None:
    everything(tmp_path / "a", buffered, 1)
    for name, kind in (("a", "log"), ("a", "checkpoint")):
        shutil.copytree(tmp_path / name, tmp_path / kind)
    segment = min((tmp_path / "log").glob("journal-*"))
    block = bytearray(segment.read_bytes()[:BLOCK])
    block[12] = 2
    block[8:12] = crc32c(block[12:]).to_bytes(4, "little")
    with segment.open("r+b") as file:
        file.write(block)
    manifest = max((tmp_path / "checkpoint").glob("checkpoint-*/manifest.json"))  # the older one is not taken instead
    text = manifest.read_bytes().partition(b"\n")[2].replace(b'"format":1', b'"format":2', 1)
    manifest.write_bytes(json.dumps({"crc32c": crc32c(text), "bytes": len(text)}).encode() + b"\n" + text)
    for kind in ("log", "checkpoint"):
        with pytest.raises(
            fastagg.CheckpointError, match="it is of format 2, and this version of fastagg reads format 1"
        ):
            opened(tmp_path / kind, buffered)
    state = buffered().state_dict()
    with pytest.raises(fastagg.CheckpointError, match="it is of format 2, and this version of fastagg reads format 1"):
        buffered().load_state_dict({**state, "format": 2})


def at(place: int, value: int) -> Callable[[bytearray], None]:
    """Sets a byte of a record's body."""

    def change(body: bytearray) -> None:
        assert body[place] != value
        body[place] = value

    return change


@pytest.mark.parametrize(
    ("lie", "change"),
    [
        ("another version", at(9, 7)), ("a negative share", at(24, 0xBF)), ("no step", at(34, 0)),
        ("another norm", at(59, 0x41)), ("no part", at(67, 0)), ("a part of another role", at(71, 7)),
        ("an unknown role", at(71, 8)), ("another type", at(72, 3)), ("a part that is shorter", at(73, 0)),
    ],
)  # fmt: skip
def test_a_record_that_lies_stops_the_opening(lie: str, change: Callable[[bytearray], None], tmp_path: Path) -> None:
    def make() -> fastagg.Server:
        return fastagg.ASGD(torch.zeros(300), lr=0.1)

    with opened(tmp_path / "b", make) as server:
        server.dispatch(0)
        server.receive(0, torch.ones(300))
        shutil.copytree(tmp_path / "b", tmp_path / "a")  # as one that was killed: nothing vouches for the record
    path = next((tmp_path / "a").glob("journal-*"))
    rewritten(path, change)
    before = path.read_bytes()
    with pytest.raises(fastagg.CheckpointError, match="record 2 of the log cannot be executed"):
        opened(tmp_path / "a", make)
    assert path.read_bytes() == before


# -- what a machine does to a folder -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", damaged.RULES)
def test_what_is_damaged_is_refused_or_changes_nothing(name: str) -> None:
    assert set(damaged.run(name, 60, 1)) == {"refused", "the same state"}


@pytest.mark.parametrize("place", [1, 2, 9])
def test_a_pipe_with_a_segments_name_is_refused_and_not_waited_for(place: int, tmp_path: Path) -> None:
    state = everything(tmp_path / "a", buffered, 4)
    name = tmp_path / "a" / f"journal-{place:012d}"
    name.unlink(missing_ok=True)
    os.mkfifo(name)
    with limit(60):
        assert outcome(tmp_path / "a", buffered, state) == "refused"


def held(path: Path) -> dict[str, bytes]:
    return {one.relative_to(path).as_posix(): one.read_bytes() for one in path.rglob("*") if one.is_file()}


@pytest.mark.parametrize("number", [errno.EIO, errno.EMFILE, errno.ENOMEM])
@pytest.mark.parametrize(("call", "begin"), [("open", "upload-"), ("opened", "upload-"), ("read_of", "journal-")])
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
    assert outcome(tmp_path / "a", buffered, state) == "the same state"


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
