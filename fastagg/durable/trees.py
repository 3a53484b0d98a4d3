"""Writes and reads the two files of a checkpoint. One file has the state's tensors in the safetensors format. The other
file, the manifest, has all other data and the tensors' checksums as JSON. snapshot.py writes, and folder.py reads.

A tensor is divided into parts of a fixed number of bytes, which may be written in any order. Each part has a checksum.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from fastagg._types import Plain, State, Tree
from fastagg.durable.disk import Disk
from fastagg.errors import CheckpointError
from fastagg.storage import files, raw

FORMAT = 1
TENSORS, MANIFEST = "state.safetensors", "manifest.json"
BLOCK = 4096  # room for a file is reserved in multiples of this many bytes
_LINE, _LAST = 64, 4096  # bytes of the manifest's first line, and the most bytes of the keys that `finish` adds
_PART = 16 << 20  # bytes of a part, for a tensor whose parts the caller does not choose
DTYPES = {  # torch's types as safetensors names them
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64",
    torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint64: "U64", torch.uint32: "U32",
    torch.uint16: "U16", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip
_BY_NAME = {name: dtype for dtype, name in DTYPES.items()}


class SeparateTensor(NamedTuple):
    """A placeholder in a tree for the tensor of this name, whose parts the caller writes."""

    name: str


def flatten(value: Tree, tensors: dict[str, Tensor], name: str = "") -> Tree:
    """Return ``value`` as data that JSON can hold. Add its tensors to ``tensors``. Their names begin with ``name``."""
    if isinstance(value, Tensor):
        tensors[name] = value
        return {"tensor": name}
    if isinstance(value, SeparateTensor):
        return {"tensor": value.name}
    if isinstance(value, dict):
        items = [[key, flatten(item, tensors, f"{name}.{key}" if name else str(key))] for key, item in value.items()]
        return {"dict": items}
    if isinstance(value, (list, tuple)):
        items = [flatten(item, tensors, f"{name}.{i}") for i, item in enumerate(value)]
        return items if isinstance(value, list) else {"tuple": items}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise CheckpointError(f"{name}: a checkpoint holds plain data and tensors, got {type(value).__name__}")


def restored(value: Tree, tensors: dict[str, Tensor]) -> Tree:
    """Return the value from ``value``, the result of :func:`flatten`, and its tensors by name."""
    if isinstance(value, list):
        return [restored(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    kind, content = next(iter(value.items()))
    if kind == "tensor":
        return tensors[content]
    if kind == "tuple":
        return tuple(restored(item, tensors) for item in content)
    return {key: restored(item, tensors) for key, item in content}


class Writer:
    """Writes both files. Parts of tensors may be written in any order. The constructor reserves room for all bytes.

    Args:
        folder: the folder's name. An existing folder's files are written over.
        slack: further bytes of each file, if there is room. They are filled with spaces, so that a later state in the
            same blocks may be larger.
        shapes: the type and the shape of every tensor.
        parts: the bytes of a part, for tensors whose parts the caller writes (:meth:`part`).
        tree: all other data, the result of :func:`flatten`.
        more: further keys of the manifest.
    """

    def __init__(
        self, disk: Disk, folder: str, shapes: dict[str, tuple[torch.dtype, tuple[int, ...]]], parts: dict[str, int],
        tree: Tree, more: Plain, slack: int,
    ) -> None:  # fmt: skip
        self.disk, self.folder = disk, folder
        header: Plain = {}
        self._begins: dict[str, tuple[int, int]] = {}
        end = 0
        # Tensors with larger elements come first, so that each tensor is aligned to its elements' size.
        for name, (dtype, shape) in sorted(shapes.items(), key=lambda item: -item[1][0].itemsize):
            size = dtype.itemsize * math.prod(shape)
            header[name] = {"dtype": DTYPES[dtype], "shape": list(shape), "data_offsets": [end, end + size]}
            self._begins[name] = (end, size)
            end += size
        text = json.dumps(header, separators=(",", ":")).encode()
        self._parts = {name: parts.get(name, _PART) for name in shapes}
        self.sums: dict[str, list[int | None]] = {
            name: [None] * -(-size // self._parts[name]) for name, (_, size) in self._begins.items()
        }
        self._tree = json.dumps(tree, separators=(",", ":"))
        self._more = {"format": FORMAT, **more, "parts": self._parts}
        last = len(json.dumps(self._more)) + len(self._tree) + _LAST
        last += sum(len(json.dumps(name)) + 4 + 11 * len(sums) for name, sums in self.sums.items())
        self.sizes = reserve(disk, folder, [16 + len(text) + end, last], slack)
        self._base = (self.sizes[0] - end) // 8 * 8
        self._file = disk.open(f"{folder}/{TENSORS}")
        disk.write(self._file, [(self._base - 8).to_bytes(8, "little"), text.ljust(self._base - 8)], 0)
        disk.truncate(self._file, self._base + end)

    def part(self, name: str, index: int, data: memoryview) -> None:
        """Write part number ``index`` of a tensor."""
        begin, _ = self._begins[name]
        self.sums[name][index] = raw.crc32c([data])
        self.disk.write(self._file, [data], self._base + begin + index * self._parts[name])

    def whole(self, name: str, tensor: Tensor) -> None:
        """Write a whole tensor, which must be contiguous and in host memory."""
        data = raw.at(tensor.data_ptr(), tensor.nbytes)
        for index in range(len(self.sums[name])):
            self.part(name, index, data[index * self._parts[name] : (index + 1) * self._parts[name]])

    def finish(self, more: Plain) -> None:
        """Sync the file of the tensors, then write and sync the manifest. ``more``: the last keys of the manifest."""
        try:
            self.disk.sync(self._file)
        finally:
            self.close()
        manifest = json.dumps({**self._more, **more, "checksums": self.sums}, separators=(",", ":"))
        text = f'{manifest[:-1]},"state":{self._tree}}}'.encode().ljust(self.sizes[1] - _LINE)
        line = json.dumps({"crc32c": raw.crc32c([text]), "bytes": len(text)}).encode().ljust(_LINE - 1)
        self.disk.put(f"{self.folder}/{MANIFEST}", [line, b"\n", text])
        self.disk.sync_folder(self.folder)

    def close(self) -> None:
        """Close the file of the tensors."""
        file, self._file = self._file, -1
        if file >= 0:
            self.disk.close(file)


def used(disk: Disk, folder: str) -> list[int]:
    """Return the bytes of each file without its slack: the room for the next checkpoint, if the state does not grow."""
    with disk.opened(f"{folder}/{TENSORS}", write=False) as file:
        size = int.from_bytes(disk.read(file, 8, 0), "little")
        slack = size - len(disk.read(file, size, 8).rstrip())
        return [disk.size(file) - slack, len(disk.read_of(f"{folder}/{MANIFEST}").rstrip()) + _LAST]


def reserve(disk: Disk, folder: str, sizes: list[int], slack: int = 0) -> list[int]:
    """Reserve ``sizes`` bytes for the two files of a folder, and about ``slack`` bytes more for each if there is room.
    Make the folder if it does not exist. Return the files' sizes. OSError: there is no room for ``sizes`` bytes."""
    disk.make_folder(folder)
    has = []
    for name, size in zip((TENSORS, MANIFEST), (-(-size // BLOCK) * BLOCK for size in sizes), strict=True):
        with disk.opened(f"{folder}/{name}", create=True) as file:
            try:
                disk.allocate(file, size + slack)
            except OSError:
                disk.allocate(file, size)
            if disk.size(file) > size + 2 * slack:
                disk.truncate(file, size + slack)
            has.append(disk.size(file))
    return has


def read_manifest(disk: Disk, folder: str) -> Plain:
    """Return the manifest that :meth:`Writer.finish` wrote. CheckpointError: it is missing or damaged."""
    path = disk.path / folder / MANIFEST
    try:
        head, _, text = disk.read_of(f"{folder}/{MANIFEST}").partition(b"\n")
        sums = json.loads(head)
        is_whole = sums["crc32c"] == raw.crc32c([text]) and sums["bytes"] == len(text)
        manifest: Plain = json.loads(text) if is_whole else {}
    except (FileNotFoundError, ValueError, LookupError, TypeError) as error:
        raise CheckpointError(f"{path}: the checkpoint is damaged: {error}") from error
    if not is_whole:
        raise CheckpointError(f"{path}: the checkpoint is damaged: wrong checksum of its manifest")
    if manifest.get("format") != FORMAT:
        raise files.OtherFormat(path, manifest.get("format"), FORMAT)
    return manifest


def read(disk: Disk, folder: str, manifest: Plain) -> State:
    """Return the state that a manifest describes. CheckpointError: the tensors' file is missing or damaged."""
    path = disk.path / folder / TENSORS
    try:
        with disk.opened(f"{folder}/{TENSORS}", write=False) as file:
            return restored(manifest["state"], dict(_tensors(disk, file, manifest)))
    except (FileNotFoundError, ValueError, LookupError, TypeError, AttributeError, RuntimeError) as error:
        kind = "" if isinstance(error, CheckpointError) else f"{type(error).__name__}: "
        raise CheckpointError(f"{path}: the checkpoint is damaged: {kind}{error}") from error


def _tensors(disk: Disk, file: int, manifest: Plain) -> Iterator[tuple[str, Tensor]]:
    length = disk.size(file)
    size = int.from_bytes(disk.read(file, 8, 0), "little")
    if size > length - 8:
        raise CheckpointError("it ends too early")
    header = json.loads(disk.read(file, size, 8))
    base, last_end = 8 + size, 0
    if set(header) != set(manifest["checksums"]):
        raise CheckpointError("its tensors are not those of its manifest")
    for name, place in header.items():
        begin, end = place["data_offsets"]
        dtype, shape, part = _BY_NAME[place["dtype"]], place["shape"], manifest["parts"][name]
        if begin != last_end or end - begin != dtype.itemsize * math.prod(shape) or end > length - base or part < 1:
            raise CheckpointError(f"{name} claims more than its bytes")
        last_end = end
        data = disk.read_tensor(file, end - begin, base + begin)
        sums = [raw.crc32c([data[at : at + part].numpy()]) for at in range(0, len(data), part)]
        if sums != manifest["checksums"][name]:
            raise CheckpointError(f"wrong checksum of {name}")
        yield name, data.view(dtype).view(shape)
