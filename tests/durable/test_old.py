"""Folders and files of earlier versions open, with the state that they had, and go on with the same bits."""

from __future__ import annotations

import json
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
import torch

import fastagg
from fastagg.durable.doctor import examine

OLD = Path(__file__).parent / "old"
sys.path.insert(0, str(OLD))

from lives import LAST, MAKE, SIZE, found, play  # noqa: E402

SAID: dict[str, Any] = json.loads((OLD / "lives.json").read_text())


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Path:
    to = tmp_path_factory.mktemp("lives")
    with tarfile.open(OLD / "lives.tar.xz") as packed:
        packed.extractall(to, filter="data")
    return to / "old"


@pytest.mark.parametrize("name", MAKE)
def test_a_folder_of_format_3_opens_and_goes_on(name: str, old: Path) -> None:
    told = examine(old / name, replay=True)
    assert told["healthy"], told["problems"]
    assert told["recovery"]["would"] == "go on" and len(told["segments"]) > 1
    with fastagg.open(old / name, MAKE[name]) as server:
        assert found(server) == SAID[name]["state"]
        assert server.incarnation not in dict(SAID[name]["lives"]).values()
    with fastagg.open(old / name, MAKE[name]) as server:  # its segments of both formats
        play(server, LAST)
    with fastagg.open(old / name, MAKE[name]) as server:
        assert found(server) == SAID[name]["later"]
        server.checkpoint()
    assert examine(old / name, replay=True)["healthy"]


@pytest.mark.parametrize("name", MAKE)
def test_an_answer_to_a_task_of_the_older_process_is_taken(name: str, old: Path, tmp_path: Path) -> None:
    client, version = next(one for one in SAID[name]["state"]["open"] if one[0] == 3)
    incarnation = [number for first, number in SAID[name]["lives"] if first <= version][-1]
    with tarfile.open(OLD / "lives.tar.xz") as packed:
        packed.extractall(tmp_path, filter="data")
    with fastagg.open(tmp_path / "old" / name, MAKE[name]) as server:
        with pytest.raises(fastagg.StaleIncarnation):
            server.receive(client, torch.zeros(SIZE), version, num_samples=2, incarnation=incarnation + 1)
        server.receive(client, torch.zeros(SIZE), version, num_samples=2, incarnation=incarnation)


@pytest.mark.parametrize("name", MAKE)
def test_a_file_loads(name: str, old: Path) -> None:
    server = fastagg.load(old / f"{name}.fastagg")
    assert found(server) == SAID[name]["state"]
    play(server, LAST)
    assert found(server) == SAID[name]["later"]
