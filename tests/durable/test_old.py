"""Folders and files of earlier versions open, with the state that they had, and go on with the same bits."""

import json
import shutil
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
import torch
from support.presets import numbers

import fastagg
from fastagg.durable.doctor import examine

OLD = Path(__file__).parent / "old"
sys.path.insert(0, str(OLD))

import rows as on_disk  # noqa: E402
from lives import LAST, MAKE, SIZE, TRAINED, found, parts, play  # noqa: E402

SAID: dict[str, Any] = json.loads((OLD / "lives.json").read_text())
ROWS: dict[str, Any] = json.loads((OLD / "rows.json").read_text())


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    to = tmp_path_factory.mktemp("lives")
    with tarfile.open(OLD / "lives.tar.xz") as packed:
        packed.extractall(to, filter="data")
    return to / "old"


@pytest.fixture
def old(unpacked: Path, tmp_path: Path, name: str) -> Path:
    """A copy of the folder ``name``, and of the file beside it."""
    shutil.copytree(unpacked / name, tmp_path / name)
    shutil.copy(unpacked / f"{name}.fastagg", tmp_path)
    return tmp_path / name


def same(name: str, server: fastagg.Server, when: str, other: fastagg.Server) -> None:
    """The server is what the older version was; where bits are torch's, near to what another way leads to."""
    assert found(name, server) == SAID[name][when]
    if name in TRAINED:
        for part, held in parts(server).items():
            torch.testing.assert_close(held, parts(other)[part], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", MAKE)
def test_a_folder_and_a_file_go_on(name: str, old: Path) -> None:
    read = fastagg.load(old.with_suffix(".fastagg"), distill=getattr(MAKE[name]().direction, "distill", None))
    same(name, read, "state", read)
    replay = name not in TRAINED  # that needs the unlabelled data
    told = examine(old, replay=replay)
    assert told["healthy"], told["problems"]
    assert told["recovery"].get("would", "go on") == "go on" and len(told["segments"]) > 1
    with fastagg.open(old, MAKE[name]) as server:
        same(name, server, "state", read)
        assert server.incarnation not in dict(SAID[name]["lives"]).values()
    play(name, read, LAST)
    same(name, read, "later", read)
    with fastagg.open(old, MAKE[name]) as server:  # its log is of both versions
        play(name, server, LAST)
        same(name, server, "later", read)
    with fastagg.open(old, MAKE[name]) as server:
        same(name, server, "later", read)
        server.checkpoint()
        read.save(old / "again.fastagg")
    same(name, fastagg.load(old / "again.fastagg", distill=getattr(read.direction, "distill", None)), "later", read)
    assert examine(old, replay=replay)["healthy"]


@pytest.mark.parametrize("name", [name for name in MAKE if name not in TRAINED])
def test_the_history_of_an_older_version_is_executed_again(name: str, old: Path) -> None:
    assert fastagg.audit(old, make=MAKE[name])["same"]


@pytest.mark.parametrize("name", [name for name in MAKE if name != "ordered"])  # a round takes no late answer
def test_an_answer_to_a_task_of_the_older_process_is_taken(name: str, old: Path) -> None:
    client, version = next(one for one in SAID[name]["state"]["open"] if one[0] == 3)
    incarnation = [number for first, number in SAID[name]["lives"] if first <= version][-1]
    with fastagg.open(old, MAKE[name]) as server:
        zeros = torch.zeros(server.layout.size)
        with pytest.raises(fastagg.StaleIncarnation):
            server.receive(client, zeros, version, num_samples=2, incarnation=incarnation + 1)
        server.receive(client, zeros, version, num_samples=2, incarnation=incarnation)


LEFT = {
    "sketched": (MAKE["AsyncFedED"], "sketch=1024, which is gone: versions are kept"),
    "slice": (MAKE["FedBuff"], "origin=65536, which is gone: fastagg.parts"),
}


@pytest.mark.parametrize("name", LEFT)
def test_what_left_is_refused_by_name(name: str, old: Path) -> None:
    make, says = LEFT[name]
    with pytest.raises(fastagg.ConfigError, match=says):
        fastagg.open(old, make)
    assert any(says in problem for problem in examine(old, replay=True)["problems"])
    with pytest.raises(fastagg.CheckpointError, match=says) as refused:
        fastagg.load(old.with_suffix(".fastagg"))
    assert "damaged" not in str(refused.value)


def test_a_folder_of_ranks_is_refused_by_name(unpacked: Path, tmp_path: Path) -> None:
    shutil.copytree(unpacked / "ranks", tmp_path / "ranks")
    with pytest.raises(fastagg.CheckpointError, match="a server in slices"):
        examine(tmp_path / "ranks")
    with pytest.raises(fastagg.CheckpointError, match=r"a server in slices, which are gone: fastagg[.]parts"):
        fastagg.open(tmp_path / "ranks", MAKE["FADAS"])
    # a slice begins where the model does, so only its records say what it is
    (of,) = (tmp_path / "ranks" / "cut-000001").iterdir()
    with pytest.raises(fastagg.CheckpointError, match="it is of a slice of a model, and servers in slices are gone"):
        fastagg.open(of, lambda: fastagg.FADAS(numbers(0, SIZE, 22), lr=0.01))


# -- rows on a disk ----------------------------------------------------------------------------------------------------


@pytest.fixture
def rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder and a file whose rows went past the page cache; their list was one file."""
    with tarfile.open(OLD / "rows.tar.xz") as packed:
        packed.extractall(tmp_path, filter="data")
    monkeypatch.chdir(tmp_path / "old")
    return tmp_path / "old"


def test_a_folder_with_rows_on_a_disk_goes_on(rows: Path) -> None:
    with fastagg.open("state", on_disk.make) as server:
        assert on_disk.found(server) == ROWS["state"]
        on_disk.play(server, on_disk.LAST)
        assert on_disk.found(server) == ROWS["later"]
        server.checkpoint()
    assert not (rows / "rows" / "rows.json").exists()
    with fastagg.open("state", on_disk.make, check=True) as server:
        assert on_disk.found(server) == ROWS["later"] and server.tiers()["lost"] == 0
    assert examine(rows / "state", check=True)["healthy"]


@pytest.mark.parametrize("damaged", [False, True])
def test_a_file_with_rows_on_a_disk_goes_on(damaged: bool, rows: Path) -> None:
    """A list that is damaged refuses nothing: the checkpoint says the same, and the rows have checksums."""
    index = rows / "of a file" / "rows.json"
    if damaged:
        index.write_bytes(index.read_bytes()[:-5])
        other = on_disk.make("of a file")
        other.dispatch(0)
        with pytest.raises(fastagg.ConfigError, match="checkpoints of another server"):
            other.receive(0, torch.zeros(on_disk.SIZE))
    server = fastagg.load("server.fastagg")
    assert on_disk.found(server) == ROWS["file"]
