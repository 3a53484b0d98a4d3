"""A damaged record in the middle of a log costs its own operation, whatever comes behind it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from support.presets import PRESETS, calls, model, update
from test_open import HEAD, opened

import fastagg

SIZE = 60
USE, CLIENT, DECIDED = 8, HEAD + 8, HEAD + 35  # places in a record: what it says of itself may be wrong, too


@pytest.mark.parametrize("name", PRESETS)
def test_one_damaged_record_costs_one_operation(name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def make() -> fastagg.Server:
        return PRESETS[name](model(SIZE))

    told: dict[int, fastagg.Dispatch] = {}
    with opened(tmp_path / "a", make) as server:
        for call in calls(name, 10):
            if call.number is None:
                told[call.client] = server.dispatch(call.client)
            else:
                server.receive(call.client, update(call.number, SIZE), told[call.client].version, num_samples=3)
        version = server.version
    path = next((tmp_path / "a").glob("journal-*"))
    whole = path.read_bytes()
    starts = [at for at in range(0, len(whole), 8) if whole[at : at + 4] == b"FAGR"]
    for record, at in enumerate(starts[:-2], 1):
        length = int.from_bytes(whole[at + 32 : at + 40], "little")
        for place in (place for place in (USE, CLIENT, DECIDED) if place < HEAD + length):
            shutil.copytree(tmp_path / "a", tmp_path / "b")
            damaged = bytearray(whole)
            damaged[at + place] ^= 1
            (tmp_path / "b" / path.name).write_bytes(damaged)
            caplog.clear()
            with opened(tmp_path / "b", make) as server:
                assert f"record {record}: lost: damaged" in caplog.text
                assert caplog.text.count(": lost: ") == 1, (record, place, caplog.text)
                assert server.version == version, (record, place)
            shutil.rmtree(tmp_path / "b")
