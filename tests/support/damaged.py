"""What a machine does to the files of a closed server's folder: a bit, a sector, an end, a whole file. What comes of it
is the same state, or a refusal that the doctor foretells. Anything else is a silent loss, and a failure."""

import collections
import random
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

from test_open import equal, opened, without_lives

import fastagg
from fastagg.durable import log
from fastagg.durable.disk import Disk
from fastagg.durable.doctor import examine
from fastagg.durable.opening import open_on
from fastagg.storage import raw
from support.operations import CHANGES
from support.presets import model

SIZE = 60
HEAD = 48  # bytes before a record's body
CALLS = "receive", "receive", "receive", "receiving", "close_round", "hand_on", "forget", "expire", "lr"
Make = Callable[[], fastagg.Server]
RULES: dict[str, Make] = {
    "FedBuff": lambda: fastagg.FedBuff(model(SIZE), buffer_size=9),
    "ACE, int8": lambda: fastagg.ACE(model(SIZE), lr=0.1, num_clients=40, cache="int8", warmup="partial"),
    "FADAS": lambda: fastagg.FADAS(model(SIZE), buffer_size=3, moments="8bit"),
}


def everything(folder: Path, make: Make, lives: int) -> dict[str, Any]:
    """A few lives with all operations. Return the last state."""
    for life in range(lives):
        with open_on(Disk(folder, create=True), make, "arrival", segment=1 << 15) as server:
            rows = server.config()["num_clients"] is not None
            senders = (30, 10 + life, 5 + life, 31) if rows else ("ünïcode", 2**63 + life, 5 + life, "chunks")
            for client, name in zip((*senders, 1, 1, 1, 1, 1), CALLS, strict=True):
                if name.startswith("receiv"):
                    server.dispatch(client)
                CHANGES[name](server, client, life)
            if life == lives - 2:
                server.checkpoint()
            server.dispatch(9)
    return without_lives(server)


def records(data: bytes) -> list[tuple[int, int]]:
    """Where the records of a segment begin and end."""
    starts = [at for at in range(0, len(data), 8) if data[at : at + 4] == b"FAGR"]
    return [(at, at + HEAD + int.from_bytes(data[at + 32 : at + 40], "little")) for at in starts]


def rewritten(segment: Path, change: Callable[[bytearray], object], which: int = -1) -> None:
    """Change the body of one of a segment's records, and make its checksum right."""
    data = bytearray(segment.read_bytes())
    at, end = records(data)[which]
    body = data[at + HEAD : end]
    change(body)
    data[at + HEAD : end] = body
    data[at + 4 : at + 8] = raw.crc32c([bytes(data[at + 8 : end])]).to_bytes(4, "little")
    segment.write_bytes(data)


def outcome(path: Path, make: Make, state: dict[str, Any]) -> str:
    """What an opening does, and that the doctor says it."""
    told = examine(path, replay=True)
    try:
        with opened(path, make) as server:
            found = without_lives(server)
    except fastagg.CheckpointError as error:
        would = told["recovery"]["would"] if "recovery" in told else "be refused"  # no checkpoint is whole
        assert not told["healthy"] and would == "be refused", error
        assert len(str(error)) < 400
        return "refused"
    assert told["recovery"]["would"] == "go on", told
    assert equal(found, state), "a silent loss"
    return "the same state"


def _bits(rng: random.Random, data: bytearray) -> None:
    used = len(bytes(data).rstrip(b"\0")) or len(data)
    for _ in range(rng.choice((1, 1, 50))):
        data[rng.randrange(used)] ^= 1 << rng.randrange(8)


def _first_block(rng: random.Random, data: bytearray) -> None:
    data[rng.randrange(min(4096, len(data)))] ^= 1 << rng.randrange(8)


def _sector(rng: random.Random, data: bytearray) -> None:
    """A sector is of zeros, of anything, or another one of the file."""
    size = rng.choice((512, 4096))
    at, other = (rng.randrange(0, len(data), size) for _ in range(2))
    there = len(data[at : at + size])
    data[at : at + size] = rng.choice((bytes(there), rng.randbytes(there), bytes(data[other:][:there])))


def _end(rng: random.Random, data: bytearray) -> None:
    """A file is shorter, by sectors or not, or of zeros from there on."""
    size, to = len(data), rng.choice((0, rng.randrange(len(data)), rng.randrange(0, len(data), 4096)))
    del data[to:]
    data += rng.choice((b"", bytes(size - to)))


CONTENTS = (_bits, _first_block, _sector, _end)


def change(rng: random.Random, path: Path, others: list[Path]) -> str:
    """Change a file of a folder, or put one of another folder in its place. Return what was done."""
    rooms = [one for one in sorted(path.rglob("*")) if one.is_file() and one.stat().st_size > 0]
    name = rng.choice([one.relative_to(path) for one in rooms if one.name != "lock" and "reserve" not in one.name])
    do = rng.randrange(len(CONTENTS) + 2)
    if do == len(CONTENTS):
        (path / name).unlink()
        return f"{name} is gone"
    if do > len(CONTENTS):
        other = rng.choice(others)
        held = [one for one in other.rglob(name.name) if one.is_file()]
        if held:
            shutil.copy(rng.choice(held), path / name)
        return f"{name} is that of {other.name}"
    data = bytearray((path / name).read_bytes())
    CONTENTS[do](rng, data)
    (path / name).write_bytes(data)
    return f"{name}, {CONTENTS[do].__name__.strip('_')}"


def run(name: str, count: int, seed: int) -> collections.Counter[str]:
    """Damage the folder of a server with this rule so often. Return how many had which outcome."""
    make, found = RULES[name], collections.Counter[str]()
    with tempfile.TemporaryDirectory() as folder, mock.patch.object(log, "SMALL", 0):
        root = Path(folder)
        everything(root / "lived", make, 3)
        shutil.copytree(root / "lived", root / "its past")
        state = everything(root / "lived", make, 2)
        everything(root / "a stranger", make, 3)
        for number in range(count):
            rng = random.Random(f"{name} {seed} {number}")
            shutil.copytree(root / "lived", root / "b")
            said = "; ".join(
                change(rng, root / "b", [root / "its past", root / "a stranger"]) for _ in range(rng.choice((1, 1, 2)))
            )
            try:
                found[outcome(root / "b", make, state)] += 1
            except BaseException as error:
                raise AssertionError(f"{name}, seed {seed}, number {number}: {said}") from error
            shutil.rmtree(root / "b")
    return found
