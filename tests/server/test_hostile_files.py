"""A checkpoint that somebody else has written: what it claims is compared with what is there, before memory is asked
for; and what `save` does to what is at its path already."""

import copy
import os
import stat
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from support.models import same

import fastagg
from fastagg import CheckpointError

HUGE = 2**31 - 1

MAKE: dict[str, Callable[[], fastagg.Server]] = {
    "FedBuff": lambda: fastagg.FedBuff(torch.zeros(100), num_clients=5),
    "FADAS, 8bit": lambda: fastagg.FADAS(torch.zeros(100), moments="8bit"),
    "ACE": lambda: fastagg.ACE(torch.zeros(100), lr=0.1, num_clients=5, cache="int8"),
    "ACED": lambda: fastagg.ACED(torch.zeros(100), lr=0.1, num_clients=5),
    "ACE at the clients": lambda: fastagg.ACE(torch.zeros(100), lr=0.1, num_clients=5, mode="client"),
    "CA2FL": lambda: fastagg.CA2FL(torch.zeros(100), num_clients=5, buffer_size=2),
    "AsyncFedED": lambda: fastagg.AsyncFedED(
        {"w": torch.zeros(100), "bn.running_mean": torch.zeros(3)}, lam=1.0, eps=1.0
    ),
}


def used(name: str) -> dict[str, Any]:
    server = MAKE[name]()
    for client in range(3):
        server.dispatch(client)
        server.receive(client, torch.ones(server.layout.size))
        server.dispatch(client)
    return server.state_dict()


def peak() -> int:
    """Return the peak of this process's memory in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))


def put(*path: Any) -> Callable[[dict[str, Any], Any], None]:
    def change(state: dict[str, Any], value: Any) -> None:
        for key in path[:-1]:
            state = state[key]
        assert path[-1] in state
        state[path[-1]] = value

    return change


def larger_entry(state: dict[str, Any], _: Any) -> None:
    name, _, dtype, role, offset = state["layout"]["entries"][0]
    state["layout"]["entries"][0] = (name, [HUGE], dtype, role, offset)


def larger_buffer(state: dict[str, Any], _: Any) -> None:
    name, _, dtype, role, offset = state["layout"]["entries"][1]
    state["layout"]["entries"][1] = (name, [HUGE], dtype, role, offset)


CLAIMS: dict[str, tuple[str, Callable[[dict[str, Any], Any], None], Any]] = {
    "a larger model": ("FedBuff", larger_entry, None),
    "a larger buffer": ("AsyncFedED", larger_buffer, None),
    "flat of stride 0": ("FedBuff", put("flat"), torch.zeros(1).expand(HUGE)),
    "moments of stride 0": ("FADAS, 8bit", put("moments", "m"), torch.zeros(1, dtype=torch.uint8).expand(HUGE)),
    "a sum of stride 0": ("ACE", put("direction", "sum"), torch.zeros(1).expand(100)),
    "buffers of stride 0": ("AsyncFedED", put("buffers", "values"), torch.zeros(1).expand(3)),
    "FedBuff's clients": ("FedBuff", put("config", "num_clients"), HUGE),
    "ACE's clients": ("ACE", put("config", "direction", "num_clients"), HUGE),
    "ACED's clients": ("ACED", put("config", "direction", "num_clients"), HUGE),
    "clients of differences": ("ACE at the clients", put("config", "direction", "num_clients"), HUGE),
    "CA2FL's clients": ("CA2FL", put("config", "direction", "num_clients"), HUGE),
    "CA2FL's buffer": ("CA2FL", put("config", "direction", "size"), HUGE),
}


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is asked of Linux")
@pytest.mark.parametrize("what", CLAIMS)
def test_claims_beyond_the_file_are_refused_before_memory_is_taken(what: str, tmp_path: Path) -> None:
    name, change, value = CLAIMS[what]
    state = used(name)
    target = MAKE[name]()
    change(state, value)
    path = tmp_path / "state"
    torch.save(state, path)
    assert path.stat().st_size < 100_000
    before, mine = peak(), copy.deepcopy(target.state_dict())
    with pytest.raises(CheckpointError):
        fastagg.load(path)
    if "clients" not in what and "CA2FL" not in what:  # a server's own settings are not the state's
        with pytest.raises(CheckpointError):
            target.load_state_dict(state)
        assert torch.equal(target.state_dict()["flat"], mine["flat"])
    assert peak() - before < 64 << 20


def test_many_clients_of_whom_few_came_load(tmp_path: Path) -> None:
    server = fastagg.FedBuff(torch.zeros(10), num_clients=1_000_000)
    server.dispatch(999_999)
    server.save(tmp_path / "state")
    assert fastagg.load(tmp_path / "state").receive(999_999, torch.ones(10)).delay == 0


def test_an_archive_whose_members_are_packed_or_overlap_is_refused(tmp_path: Path) -> None:
    path, bad = tmp_path / "state", tmp_path / "bad"
    MAKE["FedBuff"]().save(path)
    with zipfile.ZipFile(path) as file, zipfile.ZipFile(bad, "w", zipfile.ZIP_DEFLATED) as packed:
        for member in file.infolist():
            packed.writestr(member.filename, file.read(member), zipfile.ZIP_DEFLATED)
        packed.writestr("archive/data/9", bytes(1 << 24))
    with pytest.raises(CheckpointError, match="claims more than its bytes"):
        fastagg.load(bad)
    whole = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as file:
        first, second = file.infolist()[:2]
    # Where the list at the end says that the second member begins.
    entry = whole.rindex(second.filename.encode()) - 4
    assert int.from_bytes(whole[entry : entry + 4], "little") == second.header_offset
    whole[entry : entry + 4] = (first.header_offset + 1).to_bytes(4, "little")
    bad.write_bytes(whole)
    with pytest.raises(CheckpointError):
        fastagg.load(bad)


def test_checkpoints_that_are_damaged_or_of_another_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server, path = MAKE["FADAS, 8bit"](), tmp_path / "s.pt"
    server.load_state_dict(used("FADAS, 8bit"))
    server.save(path)
    whole = path.read_bytes()
    for cut in (0, 1, 100, len(whole) // 2, len(whole) - 1):
        (tmp_path / "cut.pt").write_bytes(whole[:cut])
        with pytest.raises(CheckpointError):
            fastagg.load(tmp_path / "cut.pt")
    state = server.state_dict()
    for other in (MAKE["FedBuff"](), fastagg.FADAS(torch.zeros(5)), fastagg.FADAS({"w": torch.zeros(100)})):
        before = other.state_dict()
        with pytest.raises(CheckpointError):
            other.load_state_dict(state)
        assert same(other.state_dict(), before)
    for key in ("flat", "moments", "direction", "tasks", "buffers"):
        broken = {**state, key: None}
        with pytest.raises(CheckpointError):
            server.load_state_dict(broken)
    assert same(server.state_dict(), state)

    def refuse(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(CheckpointError, match="disk full"):
        server.save(path)
    assert path.read_bytes() == whole and sorted(p.name for p in tmp_path.iterdir()) == ["cut.pt", "s.pt"]


def test_loading_runs_no_code(tmp_path: Path) -> None:
    class Payload:
        def __reduce__(self) -> Any:
            return (os.mkdir, (str(tmp_path / "ran"),))

    torch.save({"format": 1, "x": Payload()}, tmp_path / "evil.pt")
    with pytest.raises(CheckpointError):
        fastagg.load(tmp_path / "evil.pt")
    assert not (tmp_path / "ran").exists()


# -- where a checkpoint goes -------------------------------------------------------------------------------------------


def test_a_file_keeps_its_mode_and_a_new_one_has_the_usual(tmp_path: Path) -> None:
    server, path = MAKE["FedBuff"](), tmp_path / "state"
    mask = os.umask(0o027)
    try:
        with mock.patch("os.umask", side_effect=AssertionError("it is the whole process's")):
            server.save(path)
    finally:
        os.umask(mask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    path.chmod(0o604)
    server.save(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o604


def test_a_symbolic_link_stays_one(tmp_path: Path) -> None:
    server, real, link = MAKE["FedBuff"](), tmp_path / "disk" / "state", tmp_path / "state"
    real.parent.mkdir()
    link.symlink_to(real)  # dangling at first
    for _ in range(2):
        server.save(link)
        assert link.is_symlink() and real.is_file() and fastagg.load(link).version == 0
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["disk", "state"]


@pytest.mark.parametrize("what", ["fifo", "device"])
def test_what_is_no_regular_file_is_left_alone(what: str, tmp_path: Path) -> None:
    path = tmp_path / "state" if what == "fifo" else Path("/dev/null")
    if what == "fifo":
        os.mkfifo(path)
    before = path.stat().st_mode
    with pytest.raises(CheckpointError, match="no regular file"):
        MAKE["FedBuff"]().save(path)
    with pytest.raises(CheckpointError, match="no regular file"):
        fastagg.load(path)
    assert path.stat().st_mode == before
