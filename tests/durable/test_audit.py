"""A log that is executed again leads to the same roots, and what was changed is found and located."""

import json
import random
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import pytest
import torch
from support.damaged import HEAD, records, rewritten
from support.presets import PRESETS, calls, model, update

import fastagg
from fastagg.storage import raw

SIZE = 24
BLOCK = 4096


def played(folder: Path, make: Callable[[], fastagg.Server], lives: int = 3, *, name: str = "FedBuff") -> list:
    """Receipts of a few lives, one of which writes a checkpoint."""
    receipts, told = [], {}
    for life in range(lives):
        with fastagg.open(folder, make) as server:
            for call in calls(name, 4):
                if call.number is None:
                    told[call.client] = server.dispatch(call.client)
                else:
                    update_of = update(call.number, SIZE)
                    receipts.append(server.receive(call.client, update_of, told[call.client].version, num_samples=3))
            if life == 1:
                server.checkpoint()
    return receipts


def fed_buff() -> fastagg.Server:
    return PRESETS["FedBuff"](model(SIZE))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list]:
    path = tmp_path_factory.mktemp("audit") / "a"
    return path, played(path, fed_buff)


def test_an_audit_leads_to_the_same_roots(folder: tuple[Path, list]) -> None:
    path, receipts = folder
    found = fastagg.audit(path, receipts=receipts)
    assert found["same"], found["problem"]
    late = fastagg.audit(path, start=max(int(p.name[11:]) for p in path.glob("checkpoint-*")), receipts=receipts[-3:])
    assert late["same"] and (late["digest"], late["model"]) == (found["digest"], found["model"])
    assert 0 < late["start"] < found["last"] == late["last"]
    with fastagg.open(path, fed_buff) as server:
        assert found["model"] == sha256(server.flat.numpy().tobytes()).hexdigest()
        assert server.version == found["version"]
    isa = fastagg.build_info()["isa"]
    try:
        fastagg.set_isa("baseline")
        assert fastagg.audit(path)["model"] == found["model"]
    finally:
        fastagg.set_isa(isa)


@pytest.mark.parametrize("name", ["ACE, int8", "CA2FL, int4", "FADAS, moments in 8 bits"])
def test_an_audit_compares_the_whole_state_at_checkpoints(name: str, tmp_path: Path) -> None:
    def make() -> fastagg.Server:
        return PRESETS[name](model(SIZE))

    receipts = played(tmp_path / "a", make, name=name)
    assert (found := fastagg.audit(tmp_path / "a", receipts=receipts))["same"], found["problem"]


@pytest.mark.parametrize("bad", [{}, {"record": 1}, {"record": "1", "digest": "00"}, {"record": [], "digest": "00"}, 5])
def test_what_is_no_receipt_is_refused_by_name(bad: object, folder: tuple[Path, list]) -> None:
    with pytest.raises(fastagg.ConfigError, match=r"^receipts"):
        fastagg.audit(folder[0], receipts=[bad])


def test_the_digest_is_a_chain_over_the_records(folder: tuple[Path, list]) -> None:
    path, receipts = folder
    data, digest, digests = next(path.glob("journal-*")).read_bytes(), bytes(32), []
    for at, end in records(data):
        facts = int.from_bytes(data[at + 44 : at + 48], "little")
        assert facts <= end - at - HEAD
        digest = sha256(digest + data[at : at + HEAD + facts]).digest()
        digests.append(digest.hex())
    for receipt in receipts:
        assert receipt.digest == digests[receipt.sequence - 1]


def flips(path: Path, places: list[int], to: Path, receipts: list) -> None:
    segment = next(path.glob("journal-*"))
    whole = segment.read_bytes()
    shutil.copytree(path, to)
    for at in places:
        damaged = bytearray(whole)
        damaged[at] ^= 1 << random.Random(at).randrange(8)
        (to / segment.name).write_bytes(damaged)
        found = fastagg.audit(to)
        assert not found["same"], at
        begin = int(re.search(r"byte (\d+)", found["problem"])[1])
        inside = [(low, high) for low, high in [(0, BLOCK), *records(whole)] if low <= at < high]
        heads = [low for low in range(0, len(whole), BLOCK) if whole[low : low + 8] == b"FASTAGGJ"]
        low = inside[0][0] if inside else max(low for low in heads if low <= at)
        assert low - BLOCK < begin <= low, (at, found)


def used(path: Path) -> list[int]:
    """All bytes of a log's records and heads, but for the ends of processes: nobody needs these."""
    whole = next(path.glob("journal-*")).read_bytes()
    heads = [low for low in range(0, len(whole), BLOCK) if whole[low : low + 8] == b"FASTAGGJ"]
    spans = [*records(whole), *((low, low + BLOCK) for low in heads[:-1] if low + BLOCK not in heads)]
    return [at for low, high in spans for at in range(low, high)]


@pytest.mark.parametrize("count", [60, pytest.param(10_000, marks=pytest.mark.slow)])
def test_a_flipped_byte_is_located(count: int, folder: tuple[Path, list], tmp_path: Path) -> None:
    path, receipts = folder
    flips(path, random.Random(count).choices(used(path), k=count), tmp_path / "b", receipts)


@pytest.mark.parametrize("life", [0, 1, 2])
def test_a_record_that_was_rewritten_with_its_checksum_is_found(
    folder: tuple[Path, list], tmp_path: Path, life: int
) -> None:
    path, receipts = folder
    shutil.copytree(path, tmp_path / "b")
    data, segment = next(path.glob("journal-*")).read_bytes(), tmp_path / "b" / next(path.glob("journal-*")).name
    answers = [i for i, (at, _) in enumerate(records(data)) if data[at + 40] == 4]
    which = answers[1 + life * len(answers) // 3]

    rewritten(segment, lambda body: body.__setitem__(slice(-4, None), torch.tensor([7.0]).numpy().tobytes()), which)
    found = fastagg.audit(tmp_path / "b")  # the norm that the record says is not the update's
    assert not found["same"] and f"record {which + 1}" in found["problem"]

    held = bytearray(data)
    held[records(data)[which][0] + 24] ^= 1  # a number that no execution looks at
    segment.write_bytes(held)
    rewritten(segment, lambda body: None, which)
    found = fastagg.audit(tmp_path / "b", receipts=receipts)
    assert not found["same"]


def test_a_log_that_was_cut_is_found_by_a_receipt(folder: tuple[Path, list], tmp_path: Path) -> None:
    path, receipts = folder
    shutil.copytree(path, tmp_path / "b")
    segment = next((tmp_path / "b").glob("journal-*"))
    data = segment.read_bytes()
    at, _ = records(data)[receipts[-1].sequence - 1]
    for left in (data[:at], data[:at] + bytes(len(data) - at)):
        segment.write_bytes(left)
        found = fastagg.audit(tmp_path / "b")
        assert not found["same"] and ("it is cut" in found["problem"] or "folder says" in found["problem"])
    (tmp_path / "b" / "lock").write_bytes(b"")  # nobody says that a server was closed behind it
    assert fastagg.audit(tmp_path / "b")["same"]  # as if the last life had done less
    found = fastagg.audit(tmp_path / "b", receipts=receipts)
    assert not found["same"] and "the log ends with record" in found["problem"]


def test_a_checkpoint_of_another_history_is_found(folder: tuple[Path, list], tmp_path: Path) -> None:
    path, _ = folder
    shutil.copytree(path, tmp_path / "b")
    newest = max((tmp_path / "b").glob("checkpoint-*"))
    manifest = newest / "manifest.json"
    _, _, text = manifest.read_bytes().partition(b"\n")
    state = json.loads(text)
    other = {**state["log"], "digest": "00" * 32}
    for key, value, what in (("model", "00" * 32, "hash"), ("log", other, "records before it")):
        changed = json.dumps({**state, key: value}, separators=(",", ":")).encode()
        said = json.dumps({"crc32c": raw.crc32c([changed]), "bytes": len(changed)}).encode()
        manifest.write_bytes(said + b"\n" + changed)
        found = fastagg.audit(tmp_path / "b")
        assert not found["same"] and newest.name in found["problem"] and what in found["problem"]


@dataclass(frozen=True)
class Halved(fastagg.Staleness):
    """A rule that is not registered."""

    by: float = 0.5
    weighs = True

    def weight(self, delay: int) -> float:
        return self.by ** (1 + delay)


def test_a_rule_of_ones_own_is_executed_again(tmp_path: Path) -> None:
    def make(by: float = 0.5) -> fastagg.Server:
        return fastagg.Server(torch.zeros(SIZE), fastagg.Buffer(2), fastagg.SGD(0.5), Halved(by))

    receipts = played(tmp_path / "a", make)
    assert fastagg.audit(tmp_path / "a", receipts=receipts, make=make)["same"]
    with pytest.raises(fastagg.CheckpointError, match="Halved"):
        fastagg.audit(tmp_path / "a")
    with pytest.raises(fastagg.ConfigError, match="staleness"):
        fastagg.audit(tmp_path / "a", make=lambda: make(0.25))

    def other(self: Halved, delay: int) -> float:
        return 0.125

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Halved, "weight", other)
        found = fastagg.audit(tmp_path / "a", make=make)
    assert not found["same"] and "record 4" in found["problem"] and "byte" in found["where"]


def test_an_audit_runs_beside_a_server(tmp_path: Path) -> None:
    with fastagg.open(tmp_path / "a", fed_buff) as server:
        for turn in range(30):
            server.dispatch(turn)
            receipt = server.receive(turn, update(turn, SIZE))
            if turn % 6 == 0:
                found = fastagg.audit(tmp_path / "a", receipts=[receipt])
                assert found["same"] and found["digest"] == receipt.digest, found
