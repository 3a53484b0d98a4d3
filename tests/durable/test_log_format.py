"""docs/log-format.md is the format: a decoder that was written from it alone reads the folders of servers. And what is
damaged in a folder is harmless, or refused by name; never silently lost."""

import errno
import json
import os
import re
import shutil
import struct
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
from fastagg._build import native
from fastagg.durable import log
from fastagg.durable.disk import Disk
from fastagg.durable.doctor import examine
from fastagg.durable.folder import contents, read_checkpoint, read_log
from fastagg.durable.opening import open_on

SIZE = 60
BLOCK = 4096


def test_the_decoder_has_at_most_120_lines() -> None:
    assert len(Path(log_page.__file__).read_text().splitlines()) <= 120


def test_the_page_has_every_field_of_the_records_in_the_order_of_their_bytes() -> None:
    table = {log_page.KINDS[kind]: list(map(" ".join, fields.items())) for kind, fields in log_page.FIELDS.items()}
    assert table == native.log.field_table()  # csrc/log/operation.h


def same_as_the_package_reads(folder: Path) -> list[dict[str, Any]]:
    """What the decoder reads, after a comparison with what the package does, field by field."""
    disk = Disk(folder)
    listing = contents(disk)
    reader = read_log(disk, listing, read_checkpoint(disk, listing.checkpoints[-1]))
    records = log_page.read(folder)
    for record in records:
        theirs = reader.next()
        told = theirs.operation.describe()
        assert (record["sequence"], log_page.KINDS[record["kind"]]) == (theirs.sequence, theirs.operation.kind)
        for name in ("client", "version", *log_page.FIELDS[record["kind"]]):
            assert record[name] is None or repr(record[name]) == repr(told[name]), (name, record, told)
        assert [part[:3] for part in record.get("parts", ())] == told["parts"]
        assert record.get("upload") == theirs.operation.streamed
        assert reader.digest == record["digest"]
    assert reader.next() is None
    disk.leave()
    return records


@pytest.mark.parametrize("name", PRESETS)
def test_presets(name: str, tmp_path: Path) -> None:
    told: dict[int, fastagg.Dispatch] = {}
    with open_on(Disk(tmp_path / "a", create=True), lambda: PRESETS[name](model(SIZE)), "arrival", segment=1) as server:
        for call in calls(name, 8):
            if call.number is None:
                told[call.client] = server.dispatch(call.client)
            else:
                receipt = server.receive(call.client, update(call.number, SIZE), told[call.client].version, 3)
    records = same_as_the_package_reads(tmp_path / "a")
    assert receipt.digest == records[receipt.sequence - 1]["digest"].hex()
    norms = [record["norm"] for record in records if "norm" in record]
    assert len(norms) >= 8 and norms[-1] == receipt.update_norm


buffered = damaged.RULES["FedBuff"]


def test_all_operations_in_three_lives_with_uploads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "SMALL", 0)
    everything(tmp_path / "a", buffered, 3)
    records = same_as_the_package_reads(tmp_path / "a")
    assert {record["kind"] for record in records} == set(log_page.KINDS)
    ends = [record for record in records if record["kind"] == 5]
    assert [(end["known"], end["applied"], end["version after"]) for end in ends] == [(1, 1, 3)]
    assert {record["client"] for record in records if "upload" in record} == {"chunks"}


def test_a_server_writes_every_field(tmp_path: Path) -> None:
    everything(tmp_path / "a", buffered, 3)
    with opened(tmp_path / "b", lambda: fastagg.ASGD(model(SIZE), lr=0.1)) as server:
        tasks = [
            server.dispatch(client) for client in (1, 2)
        ]  # the second answer makes a version, and is a version late
        for task in tasks:
            server.receive(task.client, update(task.client, SIZE), task.version)
    records = [*log_page.read(tmp_path / "a"), *log_page.read(tmp_path / "b")]
    written = {(record["kind"], name) for record in records for name, value in record.items() if value}
    assert written >= {(kind, name) for kind, names in log_page.FIELDS.items() for name in names}


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


def byte(place: int, value: int) -> Callable[[bytearray], None]:
    """Sets a byte of a record's body."""

    def change(body: bytearray) -> None:
        assert body[place] != value
        body[place] = value

    return change


def field(name: str) -> Callable[[bytearray], None]:
    """Changes a fixed field of an answer's record: the sign of a number, or what a byte says."""
    size = struct.calcsize(log_page.FORMS[4].format[: [*log_page.FIELDS[4]].index(name) + 2])

    def change(body: bytearray) -> None:
        body[CLIENT + size - 1] ^= 1 if log_page.FIELDS[4][name] == "u8" else 0x80

    return change


UNCHECKED = "known", "incarnation"  # an outcome may be unknown; a record of its own tells an incarnation
CLIENT = 17  # bytes of a client that has a number
PARTS = CLIENT + log_page.FORMS[4].size  # where their number is


@pytest.mark.parametrize(
    ("lie", "change"),
    [
        ("another version", byte(9, 7)), ("no part", byte(PARTS, 0)), ("a part of another role", byte(PARTS + 4, 7)),
        ("an unknown role", byte(PARTS + 4, 8)), ("another type", byte(PARTS + 5, 3)),
        ("a part that is shorter", byte(PARTS + 6, 0)),
        *((f"another {name}", field(name)) for name in log_page.FIELDS[4] if name not in UNCHECKED),
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
