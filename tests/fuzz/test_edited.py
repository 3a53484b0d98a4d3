"""Bytes of a checkpoint's manifest and header (with the right checksums), of a saved file and of a recipe are changed:
what is there is read, or refused by name in few words."""

import json
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.lossy import LossyDisk
from support.presets import PRESETS, model, update
from support.properties import examples

import fastagg
from fastagg.durable.folder import contents
from fastagg.durable.opening import open_on
from fastagg.durable.recovery import recover
from fastagg.sim.recipes import config
from fastagg.storage import raw

SIZE = 40
RECIPE = Path(config.__file__).parent / "fadas-digits-cnn.toml"
Edits = list[tuple[float, int, bytes]]  # where, how many bytes go, and what comes in their place


def make() -> fastagg.Server:
    return PRESETS["CA2FL, int4"](model(SIZE))


@cache
def folder() -> tuple[LossyDisk, dict[str, int]]:
    """A folder of which only the checkpoint is left, and the numbers of the checkpoint's files."""
    disk = LossyDisk()
    for _ in range(2):
        with open_on(disk, make, "arrival") as server:
            for client in range(3):
                server.dispatch(client)
                server.receive(client, update(client, SIZE), num_samples=1)
    disk.names_of = {path: node for path, node in disk.names_of.items() if not path.startswith("journal")}
    last = max(path for path in disk.folders if path.startswith("checkpoint-"))
    return disk, {path.partition("/")[2]: node for path, node in disk.names_of.items() if path.startswith(last + "/")}


def recovered(name: str, data: bytes) -> None:
    disk, files = folder()
    left = disk.copy()
    left.data[files[name]] = bytearray(data)
    recover(left, contents(left), lambda _: make())


def manifest(edited: Callable[[bytes], bytes]) -> None:
    disk, files = folder()
    new = edited(bytes(disk.data[files["manifest.json"]]).partition(b"\n")[2])
    said = json.dumps({"crc32c": raw.crc32c([new]), "bytes": len(new)}).encode()
    recovered("manifest.json", said + b"\n" + new)


def header(edited: Callable[[bytes], bytes]) -> None:
    disk, files = folder()
    whole = bytes(disk.data[files["state.safetensors"]])
    size = 8 + int.from_bytes(whole[:8], "little")
    new = edited(whole[8:size])
    recovered("state.safetensors", len(new).to_bytes(8, "little") + new + whole[size:])


def file(edited: Callable[[bytes], bytes]) -> None:
    with tempfile.TemporaryDirectory() as place:
        path, server = Path(place) / "one.fastagg", make()
        server.dispatch(0)
        server.receive(0, torch.ones(SIZE), num_samples=1)
        server.save(path)
        path.write_bytes(edited(path.read_bytes()))
        fastagg.load(path)


def recipe(edited: Callable[[bytes], bytes]) -> None:
    found = config.from_toml(edited(RECIPE.read_bytes()).decode(errors="replace"), "recipe")
    assert config.from_toml(config.to_toml(found), "again") == found


@pytest.mark.parametrize("what", [manifest, header, file, recipe])
@given(edits=st.lists(st.tuples(st.floats(0, 1), st.integers(0, 12), st.binary(max_size=12)), min_size=1, max_size=4))
@examples(400)
def test_what_is_changed_is_read_or_refused_by_name(what: Callable[..., None], edits: Edits) -> None:
    def edited(data: bytes) -> bytes:
        found = bytearray(data)
        for share, cut, new in edits:
            at = int(share * len(found))
            found[at : at + cut] = new
        return bytes(found)

    try:
        what(edited)
    except (fastagg.CheckpointError, fastagg.ConfigError) as error:
        assert len(str(error)) < 500, len(str(error))
