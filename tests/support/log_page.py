"""A decoder of a folder's log, written from docs/log-format.md alone. It reads the page's table of records, and uses
nothing of the package."""

import json
import re
import struct
from hashlib import sha256
from pathlib import Path
from typing import Any

from support.crc import crc32c

BLOCK = 4096
SIZES = (4, 2, 2, 8, 4, 2, 1, 1, 1, 2, 4, 8)
PAGE = Path(__file__).parents[2] / "docs" / "log-format.md"
TABLE = re.findall(r"^\| (\d \w+(?:, \d \w+)*) \| ([^;|]*)", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
CODES = {"u8": "B", "u32": "I", "i64": "q", "u64": "Q", "f64": "d"}  # of the module struct
KINDS = {int(kind): name for kinds, _ in TABLE for kind, name in re.findall(r"(\d) (\w+)", kinds)}
FIELDS = {kind: dict(re.findall(r"([a-z][a-z ]*) ([iuf]\d+)", body))  # of each kind, names -> types
          for kinds, body in TABLE for kind in map(int, re.findall(r"\d", kinds))}  # fmt: skip
FORMS = {kind: struct.Struct("<" + "".join(map(CODES.get, fields.values()))) for kind, fields in FIELDS.items()}
HEAD = "format", "number", "use", "first", "folder", "size", "digest", "next"
SAME = "format", "number", "first", "folder", "digest"


def head_at(data: bytes, at: int) -> dict[str, Any] | None:
    block = data[at : at + BLOCK]
    if len(block) < BLOCK or block[:8] != b"FASTAGGJ" or crc32c(block[12:]) != struct.unpack_from("<I", block, 8)[0]:
        return None
    return dict(zip(HEAD, struct.unpack_from("<IQQQQQ32sQ", block, 12), strict=True))


def record_at(data: bytes, at: int) -> dict[str, Any] | None:
    if data[at : at + 4] != b"FAGR":
        return None
    crc, use, sequence, _, length, kind, facts = struct.unpack_from("<IQQQQB3xI", data, at + 4)
    body = data[at + 48 : at + 48 + length]
    if len(body) < length or facts > length or crc32c(data[at + 8 : at + 48] + body) != crc:
        return None
    end, bound = (at + 48 + length + 7) // 8 * 8, data[at : at + 48 + facts]
    return {"use": use, "sequence": sequence, "kind": kind, "body": body, "end": end, "bound": bound}


def client_in(body: bytes) -> tuple[int | str, int, int]:
    if body[0] == 1:
        length, version = struct.unpack_from("<Hq", body, 1)
        return body[11 : 11 + length].decode(), version, 11 + length
    return *struct.unpack_from("<qq" if body[0] == 0 else "<Qq", body, 1), 17


def fields(kind: int, body: bytes) -> dict[str, Any]:
    client, version, at = client_in(body) if kind in (2, 3, 4, 6) else (None, None, 0)
    record = {"client": client, "version": version}
    record |= zip(FIELDS[kind], FORMS[kind].unpack_from(body, at), strict=True)
    at += FORMS[kind].size
    if kind != 4:
        assert at == len(body)
        return record
    (count,) = struct.unpack_from("<I", body, at)
    parts = [struct.unpack_from("<BBQ", body, at + 4 + 10 * k) for k in range(count & 0x7FFFFFFF)]
    at += 4 + 10 * len(parts)
    if count >> 31:
        record["upload"], at = struct.unpack_from("<QQIB", body, at), at + 21
    record["parts"] = []
    for role, dtype, count in parts:
        at = (at + 7) // 8 * 8
        size = count if role in (5, 7) else count * SIZES[dtype]
        record["parts"] += [(role, dtype, count, body[at : at + size])] if role != 5 else []
        at += size
    return record


def manifest_in(checkpoint: Path) -> dict[str, Any]:
    head, _, text = (checkpoint / "manifest.json").read_bytes().partition(b"\n")
    assert json.loads(head) == {"crc32c": crc32c(text), "bytes": len(text)}
    manifest: dict[str, Any] = json.loads(text)
    assert (manifest["format"], manifest["sequence"]) == (1, int(checkpoint.name[11:]))
    data = (checkpoint / "state.safetensors").read_bytes()
    begin = 8 + int.from_bytes(data[:8], "little")
    tensors = json.loads(data[8:begin])
    assert tensors.keys() == manifest["checksums"].keys()
    for name, tensor in tensors.items():
        first, end = tensor["data_offsets"]
        numbers, size = data[begin + first : begin + end], manifest["parts"][name]
        assert manifest["checksums"][name] == [crc32c(numbers[at : at + size]) for at in range(0, len(numbers), size)]
    return manifest


def read(folder: Path) -> list[dict[str, Any]]:
    manifests = [manifest_in(path) for path in sorted(folder.glob("checkpoint-*[0-9]"))]
    last, log, own = (manifests[-1][key] for key in ("sequence", "log", "folder"))
    data = {int(path.name[8:]): path.read_bytes() for path in sorted(folder.glob("journal-*"))}
    heads = {number: head_at(held, 0) for number, held in data.items()}
    number = [number for number, head in heads.items() if head and head["first"] <= max(last, 1)][-1]
    for behind, head in heads.items():
        assert behind < number or (head and head["number"] == behind and head["size"] <= len(data[behind]))
    at, wanted, digest, use = BLOCK, heads[number]["first"], heads[number]["digest"], heads[number]["use"]
    found: list[dict[str, Any]] = []
    while True:
        block = (at + BLOCK - 1) // BLOCK * BLOCK
        good = [one for one in (record_at(data[number], at), record_at(data[number], block))
                if one and (one["use"], one["sequence"]) == (use, wanted)]  # fmt: skip
        marks = [one for one in map(head_at, [data[number]] * 2, (block, block + BLOCK))
                 if one and [one[key] for key in SAME] == [1, number, wanted, own, digest]]  # fmt: skip
        if good:
            digest, at, wanted = sha256(digest + good[0]["bound"]).digest(), good[0]["end"], wanted + 1
            if good[0]["sequence"] > last:
                found.append({**good[0], **fields(good[0]["kind"], good[0]["body"]), "digest": digest})
            assert good[0]["sequence"] != last or digest.hex() == log["digest"]
        elif marks:
            use, at = marks[0]["use"], (block if head_at(data[number], block) else block + BLOCK) + BLOCK
            if marks[0]["next"]:
                number, at = marks[0]["next"], BLOCK
                assert (heads[number]["use"], heads[number]["first"], heads[number]["digest"]) == (use, wanted, digest)
        else:
            said = int.from_bytes((folder / "lock").read_bytes()[:8], "little")
            assert wanted > max(said, *(one["log"]["end"] for one in manifests))
            return found
