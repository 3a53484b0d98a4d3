"""Coverage-guided fuzzing (atheris) of the code that reads a server's files: it must read or refuse them by name. The
same for arguments of the ops, and for recipes (fuzz_calls.py).

python .ci/fuzz.py bindings|log|checkpoint|file|recipe CORPUS [options of libFuzzer, -max_total_time=120]

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
sys.path[:0] = [str(TESTS), str(TESTS / "durable"), str(HERE)]

with atheris.instrument_imports(include=["fastagg.durable", "fastagg.server", "fastagg.storage", "fastagg.model"]):
    import torch
    from fuzz_calls import bindings, recipe
    from support.lossy import LossyDisk
    from support.presets import PRESETS, calls, model, update

    import fastagg
    from fastagg.durable.folder import contents
    from fastagg.durable.opening import open_on
    from fastagg.durable.recovery import recover
    from fastagg.storage import raw

SIZE = 40
NAMES = ("CA2FL, int4", "ACE, int8")  # its log keeps updates, or the rows that they become
_RECORD = struct.Struct("<4sIQQQQB7x")


def maker(name: str = NAMES[0]) -> Callable[[], fastagg.Server]:
    """Return the function that makes the folder's server."""
    return lambda: PRESETS[name](model(SIZE))


def folder(name: str = NAMES[0]) -> LossyDisk:
    """Return a folder with a checkpoint, and a log whose last opening has a record of every kind."""
    disk, make = LossyDisk(), maker(name)
    played = list(calls(name, 12))
    for last, part in enumerate((played[:6], played[6:])):
        with open_on(disk, make, "arrival", segment=1 << 20) as server:
            for call in part:
                if call.number is None:
                    server.dispatch(call.client)
                else:
                    server.receive(call.client, update(call.number, SIZE), num_samples=1)
            if last:
                server.hand_on(server.dispatch(0), 1)
                server.close_round()
                server.expire(before=1)
                server.forget(1)
                server.lr = server.lr / 2
                server.dispatch(0)
                with server.receiving(0) as upload:
                    upload.write(bytes(4 * SIZE))
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


def recovered(disk: LossyDisk, name: str = NAMES[0]) -> Callable[[], object]:
    """Return a function that recovers a folder's server."""
    return lambda: recover(disk, contents(disk), lambda _: maker(name)())


def log() -> Callable[[bytes], None]:
    """Fuzz a log: some records of its last opening are changed and have correct checksums. Then recover."""
    disks = {name: folder(name) for name in NAMES}
    places: dict[str, list[tuple[int, int]]] = {name: [] for name in NAMES}
    for name, disk in disks.items():
        for path, node in disk.names_of.items():
            if path.startswith("journal"):
                held = bytes(disk.data[node])
                # A head has the digest of all records before it, so these cannot be changed unnoticed.
                begin = held.rindex(b"FASTAGGJ")
                places[name] += [(node, at) for at in range(begin, len(held) - 48, 8) if held[at : at + 4] == b"FAGR"]
    assert all(places.values())

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
        expected(recovered(left, name))

    return one


def checkpoint() -> Callable[[bytes], None]:
    """Fuzz a checkpoint: its manifest or header is changed and has correct checksums. Then recover."""
    disk = folder()
    last = max(path for path in disk.folders if path.startswith("checkpoint-"))
    files = {path.partition("/")[2]: node for path, node in disk.names_of.items() if path.startswith(last + "/")}
    text = bytes(disk.data[files["manifest.json"]]).partition(b"\n")[2]
    whole = bytes(disk.data[files["state.safetensors"]])
    size = int.from_bytes(whole[:8], "little")

    def one(data: bytes) -> None:
        edits, left = atheris.FuzzedDataProvider(data), copied(disk)
        left.names_of = {path: node for path, node in left.names_of.items() if not path.startswith("journal")}
        if edits.ConsumeBool():
            new = edited(text, edits)
            said = json.dumps({"crc32c": raw.crc32c([new]), "bytes": len(new)}).encode()
            left.data[files["manifest.json"]] = bytearray(said + b"\n" + new)
        else:
            header = edited(whole[8 : 8 + size], edits)
            left.data[files["state.safetensors"]] = bytearray(
                len(header).to_bytes(8, "little") + header + whole[8 + size :]
            )
        expected(recovered(left))

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


TARGETS = {one.__name__: one for one in (bindings, log, checkpoint, file, recipe)}

if __name__ == "__main__":
    target = TARGETS[sys.argv[1]]()
    corpus = Path(sys.argv[2])
    corpus.mkdir(parents=True, exist_ok=True)
    rng = random.Random(0)
    for k in range(32):  # the first inputs
        (corpus / f"seed {k}").write_bytes(rng.randbytes(rng.randint(1, 200)))
    atheris.Setup([sys.argv[0], *sys.argv[3:], str(corpus)], target)
    atheris.Fuzz()
