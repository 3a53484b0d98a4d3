"""Coverage-guided fuzzing (atheris) of the code that reads a server's files: it must read or refuse them by name. The
same for arguments of the ops, and for recipes (fuzz_calls.py).

python .ci/fuzz.py bindings|record|journal|checkpoint|file|recipe CORPUS [options of libFuzzer, -max_total_time=120]

CORPUS is a folder for inputs that reached new code. With -runs=0 its inputs are only replayed.

Checksums are corrected after every change. Otherwise the code after the checks would never be reached.
"""

from __future__ import annotations

import json
import random
import struct
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import atheris

HERE = Path(__file__).resolve().parent
TESTS = HERE.parent / "tests"
sys.path[:0] = [str(TESTS), str(TESTS / "serving"), str(HERE)]

with atheris.instrument_imports(include=["fastagg.serving", "fastagg.storage", "fastagg.layout"]):
    import torch
    from fastagg.serving.opening import open_on
    from fuzz_calls import bindings, recipe
    from lossy import LossyDisk
    from presets import PRESETS, calls, model, update

    import fastagg
    from fastagg.serving import records, recovery
    from fastagg.storage import raw

HOME, SIZE = Path("/state"), 40
NAMES = ("CA2FL, int4", "ACE, int8")  # its journal keeps updates, or the rows that they become
_RECORD = struct.Struct("<4sIQQQQB7x")


def maker(name: str = NAMES[0]) -> Callable[[], fastagg.Server]:
    """Return the function that makes the folder's server."""
    return lambda: PRESETS[name](model(SIZE))


def folder(name: str = NAMES[0]) -> LossyDisk:
    """Return a folder with a checkpoint, and a journal that has a record of every kind."""
    disk, make = LossyDisk(), maker(name)
    with open_on(disk, HOME, make, "arrival", segment=16384) as server:
        for k, call in enumerate(calls(name, 12)):
            if call.number is None:
                server.dispatch(call.client)
            else:
                server.receive(call.client, update(call.number, SIZE), num_samples=1)
            if k == 8:
                server.checkpoint()
        server.hand_on(server.dispatch(0), 1)
        server.close_round()
        server.expire(before=1)
        server.forget(1)
        server.lr = server.lr / 2
        with server.receiving(0) as upload:
            upload.write(bytes(4 * SIZE))
    open_on(disk, HOME, make, "arrival", segment=16384).close()  # a second opening adds a record of a life
    return disk


def copied(disk: LossyDisk) -> LossyDisk:
    """Return a copy of the files, which the reader may change."""
    found = LossyDisk()
    found.names_of, found.folders = dict(disk.names_of), set(disk.folders)
    found.data = {node: bytearray(held) for node, held in disk.data.items()}
    found._next = disk._next
    return found


def expected(act: Callable[[], object]) -> None:
    """Check that a file is read, or refused by name in no more than 500 characters."""
    try:
        act()
    except (fastagg.CheckpointError, fastagg.ConfigError) as error:
        assert len(str(error)) < 500, len(str(error))


def edited(data: bytes, edits: atheris.FuzzedDataProvider) -> bytes:
    """Return ``data`` with some of its bytes replaced, removed or inserted."""
    found = bytearray(data)
    for _ in range(edits.ConsumeIntInRange(1, 4)):
        at, cut = edits.ConsumeIntInRange(0, len(found)), edits.ConsumeIntInRange(0, 12)
        new = edits.ConsumeBytes(edits.ConsumeIntInRange(0, 12))
        found[at : at + (len(new) if edits.ConsumeBool() else cut)] = new
    return bytes(found)


def record() -> Callable[[bytes], None]:
    """Fuzz the body of one record."""

    def one(data: bytes) -> None:
        body = memoryview(data)
        for read in (records.read_arrival, records.read_client, records.read_life, records.read_rate):
            expected(lambda read=read: read(body))  # type: ignore[misc]

    return one


def journal() -> Callable[[bytes], None]:
    """Fuzz a journal: some records are changed and have correct checksums. Then recover."""
    disks = {name: folder(name) for name in NAMES}
    places: dict[str, list[tuple[int, int]]] = {name: [] for name in NAMES}
    for name, disk in disks.items():
        for path, node in disk.names_of.items():
            if path.name.startswith("journal"):
                held = bytes(disk.data[node])
                places[name] += [(node, at) for at in range(4096, len(held), 8) if held[at : at + 4] == b"FAGR"]

    def one(data: bytes) -> None:
        edits = atheris.FuzzedDataProvider(data)
        name = NAMES[edits.ConsumeIntInRange(0, len(NAMES) - 1)]
        left, found = copied(disks[name]), places[name]
        for _ in range(edits.ConsumeIntInRange(1, 3)):
            node, at = found[edits.ConsumeIntInRange(0, len(found) - 1)]
            held = left.data[node]
            magic, _, use, sequence, synced, length, kind = _RECORD.unpack_from(held, at)
            body = bytes(held[at + 48 : at + 48 + length])
            what = edits.ConsumeIntInRange(0, 9)
            if what < 7:
                body = edited(body, edits)[:length].ljust(length, b"\0")  # the next record keeps its place
            elif what == 7:
                kind = edits.ConsumeIntInRange(0, 255)
            elif what == 8:
                sequence = edits.ConsumeIntInRange(0, 2**64 - 1)
            else:
                synced = edits.ConsumeIntInRange(0, 2**64 - 1)
            tail = _RECORD.pack(magic, 0, use, sequence, synced, length, kind)[8:]
            held[at : at + 48 + length] = magic + raw.crc32c([tail, body]).to_bytes(4, "little") + tail + body
        expected(lambda: recovery.recover(left, HOME, maker(name)))

    return one


def checkpoint() -> Callable[[bytes], None]:
    """Fuzz a checkpoint: its manifest or header is changed and has correct checksums. Then recover."""
    disk = folder()
    last = max(path for path in disk.folders if path.name.startswith("checkpoint-"))
    files = {path.name: node for path, node in disk.names_of.items() if path.parent == last}
    text = bytes(disk.data[files["manifest.json"]]).partition(b"\n")[2]
    whole = bytes(disk.data[files["state.safetensors"]])
    size = int.from_bytes(whole[:8], "little")

    def one(data: bytes) -> None:
        edits, left = atheris.FuzzedDataProvider(data), copied(disk)
        left.names_of = {path: node for path, node in left.names_of.items() if not path.name.startswith("journal")}
        if edits.ConsumeBool():
            new = edited(text, edits)
            said = json.dumps({"crc32c": raw.crc32c([new]), "bytes": len(new)}).encode()
            left.data[files["manifest.json"]] = bytearray(said + b"\n" + new)
        else:
            header = edited(whole[8 : 8 + size], edits)
            left.data[files["state.safetensors"]] = bytearray(
                len(header).to_bytes(8, "little") + header + whole[8 + size :]
            )
        expected(lambda: recovery.recover(left, HOME, maker()))

    return one


def file() -> Callable[[bytes], None]:
    """Fuzz a file of ``Server.save``: some of its bytes are changed."""
    place = Path(tempfile.mkdtemp()) / "one.fastagg"
    server = maker()()
    for client in range(3):
        server.dispatch(client)
        server.receive(client, torch.ones(SIZE), num_samples=1)
    server.save(place)
    whole = place.read_bytes()

    def one(data: bytes) -> None:
        place.write_bytes(edited(whole, atheris.FuzzedDataProvider(data)))
        expected(lambda: fastagg.load(place))

    return one


TARGETS = {one.__name__: one for one in (bindings, record, journal, checkpoint, file, recipe)}

if __name__ == "__main__":
    target = TARGETS[sys.argv[1]]()
    corpus = Path(sys.argv[2])
    corpus.mkdir(parents=True, exist_ok=True)
    rng = random.Random(0)
    for k in range(32):  # the first inputs
        (corpus / f"seed {k}").write_bytes(rng.randbytes(rng.randint(1, 200)))
    if sys.argv[1] == "record":
        disk = folder()
        for node in disk.data:
            held = bytes(disk.data[node])
            for at in (at for at in range(0, len(held), 8) if held[at : at + 4] == b"FAGR"):
                length = _RECORD.unpack_from(held, at)[5]
                (corpus / f"record {node} {at}").write_bytes(held[at + 48 : at + 48 + length])
    atheris.Setup([sys.argv[0], *sys.argv[3:], str(corpus)], target)
    atheris.Fuzz()
