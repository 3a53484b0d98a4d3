"""A server with a folder is restored bit for bit, whatever ended its process."""

import copy
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from support import inside
from support.presets import PRESETS, model

import fastagg
from fastagg import AlreadyCounted, Busy, CheckpointError, ConfigError, NotDurable
from fastagg._build import native
from fastagg.durable.disk import Disk
from fastagg.durable.doctor import examine
from fastagg.durable.opening import open_on

SIZE = 300
Make = Callable[[], fastagg.Server]


def maker(name: str, **more: Any) -> Make:
    return lambda: PRESETS[name](model(SIZE), **more)


def equal(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and bool((a.nan_to_num() == b.nan_to_num()).all())
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(equal, a, b))
    return bool(a == b) or (a != a and b != b)


def without_lives(server: fastagg.Server) -> dict[str, Any]:
    """All state but the numbers of the server's lives, and the ids of tasks, which begin with these. Clients and open
    tasks are put in order: a forgotten client's line is the next one's, and a restart writes the lines anew."""
    state = server.state_dict()
    del state["lives"], state["ids"]
    tasks = state["tasks"]
    ids = list(tasks["clients"])
    known = sorted(zip(map(str, ids), tasks["last_sent"].tolist(), tasks["next_steps"].tolist(), strict=True))
    owners, started, told = (tasks[key].tolist() for key in ("task_client", "task_version", "task_steps"))
    lines = zip((str(ids[owner]) for owner in owners), started, told, strict=True)
    columns = dict.fromkeys(("clients", "last_sent", "next_steps", "task_client", "task_version"))
    state["tasks"] = {**tasks, **columns, "known": known, "task_steps": sorted(lines)}
    for entry in state["round"]:  # whose arrays have the shapes that they came in
        for key in ("update", "buffers"):
            entry[key] = [one.reshape(-1) for one in entry[key] or ()]
    return state


def opened(folder: Path, make: Make, durability: Any = "arrival") -> fastagg.Server:
    """Open with small segments, which are quick to copy."""
    return open_on(Disk(folder, create=True), make, durability, segment=1 << 16)


def again(server: fastagg.Server, to: Path, make: Make) -> fastagg.Server:
    """The server that the folder has if its process ends now."""
    server.flush()
    shutil.copytree(server.folder, to)
    return opened(to, make)


def test_a_fresh_server_begins_from_what_was_made_the_first_time(tmp_path: Path) -> None:
    def make() -> fastagg.Server:
        return fastagg.FedBuff(torch.nn.Linear(3, 2), buffer_size=1)

    with fastagg.open(tmp_path / "a", make) as server:
        first = server.flat.clone()
    with fastagg.open(tmp_path / "a", make) as server:
        assert torch.equal(server.flat, first)
        assert set(server.parameters()) == {"weight", "bias"}


def test_durability_says_who_waits(tmp_path: Path) -> None:
    for durability, waits in (("none", (False, False)), ("step", (False, True)), ("arrival", (True, True))):
        server = fastagg.open(tmp_path / durability, lambda: fastagg.FedBuff(torch.zeros(5), buffer_size=2), durability)
        waited = []
        for client in (1, 2):
            server.dispatch(client)
            begun = native.log.Journal.waited()
            receipt = server.receive(client, torch.ones(5))
            waited.append(native.log.Journal.waited() > begun)
        assert receipt.durable or durability == "none"
        assert waited == list(waits), durability
        server.flush()
        assert receipt.durable
        server.close()
    assert not fastagg.Receipt(1, True, 1, 0, 1.0, 1.0, 1.0).durable


def test_a_folder_is_one_servers(tmp_path: Path) -> None:
    with fastagg.open(tmp_path / "a", maker("ASGD")):
        with pytest.raises(Busy, match="open already"):
            fastagg.open(tmp_path / "a", maker("ASGD"))
        code = f"""
import fastagg, torch
try: fastagg.open({str(tmp_path / "a")!r}, lambda: fastagg.ASGD(torch.zeros(3), lr=1.0))
except fastagg.Busy: print("refused")
"""
        done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True, cwd="/")
        assert done.stdout == "refused\n"
        (tmp_path / "a" / "lock").unlink()  # somebody removes the file, and the folder is locked all the same
        with pytest.raises(Busy):
            fastagg.open(tmp_path / "a", maker("ASGD"))
    with fastagg.open(tmp_path / "a", maker("ASGD")) as server, pytest.raises(NotDurable, match="closed"):
        server.close()
        server.dispatch(1)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_folder_is_free_when_its_server_is_closed_whatever_forked_children_hold(tmp_path: Path) -> None:
    with fastagg.open(tmp_path, lambda: fastagg.FedBuff(torch.zeros(2))):
        child = os.fork()
        if child == 0:
            signal.pause()
            os._exit(0)
    try:
        fastagg.open(tmp_path, lambda: fastagg.FedBuff(torch.zeros(2))).close()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


FORKS = """
import ctypes, os, signal, sys
import torch, fastagg
server = fastagg.open(sys.argv[1], lambda: fastagg.FedBuff(torch.zeros(2)))
child = os.fork() if sys.argv[2] == "Python" else ctypes.PyDLL(None).fork()
if child == 0:
    assert sys.argv[2] != "Python" or os.fork() or signal.pause()  # a grandchild, too
    signal.pause()
    os._exit(0)
print(child, flush=True)
signal.pause()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="forks as on Linux")
@pytest.mark.parametrize("who", ["Python", "C"])
def test_a_folder_is_free_when_its_server_is_killed_whatever_forked_children_live(who: str, tmp_path: Path) -> None:
    def make() -> fastagg.Server:
        return fastagg.FedBuff(torch.zeros(2))

    with subprocess.Popen(
        [sys.executable, "-P", "-c", FORKS, tmp_path, who], stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as parent:
        try:
            assert parent.stdout is not None and int(parent.stdout.readline()) > 0
            with pytest.raises(fastagg.Busy):  # no child gives it away
                fastagg.open(tmp_path, make)
            parent.kill()
            parent.wait()
            fastagg.open(tmp_path, make).close()
        finally:
            os.killpg(parent.pid, signal.SIGKILL)


def test_another_server_than_the_folders_is_refused(tmp_path: Path) -> None:
    fastagg.open(tmp_path / "a", maker("ASGD")).close()
    for make, match in (
        (lambda: fastagg.ASGD(model(SIZE), lr=0.2), "optimizer"),
        (lambda: fastagg.ASGD(model(SIZE + 1), lr=0.1, answers_per_step=None), "size"),
        (maker("FedBuff"), "direction"),
        (lambda: 7, "returns a fastagg.Server"),
    ):
        with pytest.raises(ConfigError, match=match):
            fastagg.open(tmp_path / "a", make)
    for bad in ({"durability": "often"}, {"keep": 0}, {"make": 3}, {"path": "no-\udcff"}, {"path": b"bytes"}):
        with pytest.raises(ConfigError):
            fastagg.open(**{"path": tmp_path / "a", "make": maker("ASGD"), **bad})
    with fastagg.open(tmp_path / "a", maker("ASGD", lease=5.0)) as server:
        assert server.lease == 5.0
        with pytest.raises(ConfigError, match="goes on from what is there"):
            server.load_state_dict(server.state_dict())


def test_a_folder_is_as_small_as_its_model_and_its_segments_grow(tmp_path: Path) -> None:
    def sizes() -> list[int]:
        return [path.stat().st_size for path in sorted((tmp_path / "a").glob("journal-*"))]

    def make() -> fastagg.Server:
        return fastagg.FedBuff(torch.zeros(42), buffer_size=1)

    for openings in range(1, 3):
        with fastagg.open(tmp_path / "a", make) as server:
            server.dispatch(0)
            server.receive(0, torch.ones(42))
        assert openings and sizes() == [
            256 << 10
        ]  # a later process goes on in it; 64 MiB each would be more than 300,000 times the model
    with open_on(Disk(tmp_path / "a", create=True), make, "none", segment=1 << 20) as server:
        while len(sizes()) < 6:  # each record takes a block of 4 KiB at most
            server.dispatch(0)
            server.receive(0, torch.ones(42))
            server.flush()
        before = without_lives(server)
    assert [size >> 10 for size in sizes()[1:]] == [512, 1024, 1024, 1024, 1024]
    with fastagg.open(tmp_path / "a", make) as server:
        assert equal(without_lives(server), before)


@pytest.mark.parametrize("ends", ["closed", "killed"])
def test_a_bad_record_stops_the_opening_and_a_torn_tail_does_not(ends: str, tmp_path: Path) -> None:
    make = maker("ASGD")
    server = opened(tmp_path / "a", make)
    for _ in range(6):
        server.dispatch(0)
        server.receive(0, torch.ones(SIZE))
    if ends == "closed":
        server.close()
    shutil.copytree(tmp_path / "a", tmp_path / "c")
    path = next((tmp_path / "c").glob("journal-*"))
    whole = path.read_bytes()
    starts = [at for at in range(0, len(whole), 8) if whole[at : at + 4] == b"FAGR"]
    for record, at in enumerate(starts, 1):
        shutil.copytree(tmp_path / "c", tmp_path / "b")
        data = bytearray(whole)
        data[at + 60] ^= 4
        (tmp_path / "b" / path.name).write_bytes(data)
        if ends == "killed" and at >= starts[-2]:  # of the last group a crash may have done it
            told = examine(tmp_path / "b", replay=True)
            assert told["healthy"] and path.name in told["recovery"]["torn"]
            with fastagg.open(tmp_path / "b", make) as found:
                assert found.version == 5
        else:
            behind = f"{len(starts) - record} good records lie behind it"
            with pytest.raises(CheckpointError, match=f"record {record} is damaged, and it was on the disk; {behind}"):
                fastagg.open(tmp_path / "b", make)
            assert (tmp_path / "b" / path.name).read_bytes() == data, "nothing has changed"
        shutil.rmtree(tmp_path / "b")
    server.close()


def test_threads_share_syncs_and_all_that_was_acknowledged_is_there(tmp_path: Path) -> None:
    def make() -> fastagg.Server:
        return fastagg.FedBuff(torch.zeros(100), buffer_size=4)

    server = opened(tmp_path / "a", make)
    rounds = 20

    def client(number: int) -> None:
        for _ in range(rounds):
            task = server.dispatch(number)
            assert server.receive(number, torch.full((100,), float(number)), task.version).durable

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(client, range(16)))
    assert inside.journal(server).groups < 16 * rounds
    found = again(server, tmp_path / "b", make)
    assert equal(without_lives(server), without_lives(found))
    assert found.version == 16 * rounds // 4


def test_an_update_that_is_the_model_itself_is_written_as_it_came(tmp_path: Path) -> None:
    def make() -> fastagg.Server:
        return fastagg.ASGD(torch.ones(5000), lr=0.5)

    with opened(tmp_path / "a", make) as server:
        for client in "abc":
            server.dispatch(client)
        server.receive("a", torch.ones(5000))
        server.receive("b", server.flat)
        server.receive("c", server.flat, kind="gradient")  # by the other way
        found = again(server, tmp_path / "b", make)
        assert equal(without_lives(found), without_lives(server))
        found.close()


def test_a_copy_has_no_folder_and_memory_counts_what_waits(tmp_path: Path) -> None:
    with opened(tmp_path / "a", maker("ASGD")) as server:
        server.dispatch(1)
        other = copy.deepcopy(server)
        assert type(other) is fastagg.Server and equal(without_lives(other), without_lives(server))
        other.receive(1, torch.ones(SIZE))
        assert server.version == 0 and other.version == 1
        server.flush()
        assert server.memory()["journal"] == 0
        assert server.memory()["total"] == sum(nbytes for part, nbytes in server.memory().items() if part != "total")


BEGINS = """
import resource, torch, fastagg
size = 16 << 20  # 64 MB
make = lambda: fastagg.FADAS(torch.zeros(size), lr=0.1)
fastagg.open({folder!r} + "/small", lambda: fastagg.FADAS(torch.zeros(8), lr=0.1)).close()
server = make()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
with fastagg.open({folder!r} + "/big", lambda: server):
    print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / (size >> 8))
"""


def test_a_new_folder_needs_no_copy_of_the_state(tmp_path: Path) -> None:
    line = [sys.executable, "-P", "-c", BEGINS.format(folder=str(tmp_path))]
    models = subprocess.run(line, capture_output=True, text=True, check=True, cwd="/").stdout
    assert float(models) < 1.0, models  # a copy of the moments that are in use is two


D = 8


def make() -> fastagg.Server:
    return fastagg.FedBuff(torch.zeros(D), buffer_size=3)


def ace() -> fastagg.Server:
    return fastagg.ACE(torch.zeros(D), lr=0.1, num_clients=4, cache="int8")


@pytest.mark.parametrize("checkpoint", [False, True])
def test_ids_and_offsets_after_a_restart(tmp_path: Path, checkpoint: bool) -> None:
    server = opened(tmp_path / "0", make)
    counted = [server.dispatch(client) for client in ("ann", "bob", "eve", "sum")]
    server.receive("ann", torch.ones(D), task=counted[0].id, offset=1)
    server.receive_model(counted[1], torch.ones(D), offset=2)
    with server.receiving("eve", task=counted[2].id, offset=3) as upload:
        upload.write(torch.ones(D).numpy().tobytes())
    server.receive_partial("sum", fastagg.Partial(torch.ones(D), 1, 1.0), task=counted[3].id, offset=4)
    if checkpoint:
        server.checkpoint()
    open_tasks = [server.dispatch("ann"), server.dispatch("bob"), server.dispatch("tom")]
    handed = server.hand_on(open_tasks[0], "ida")
    server.forget("tom")
    for life in range(2):
        server = again(server, tmp_path / str(life + 1), make)
        assert server.offset == 4
        for task in counted:
            with pytest.raises(AlreadyCounted) as error:
                server.receive(task.client, torch.ones(D), task=task.id)
            assert error.value.version in (0, 1) and error.value.applied == (task is counted[2])
            assert isinstance(server.receive_many([fastagg.Answer.to(task, torch.ones(D))])[0], AlreadyCounted)
        with pytest.raises(AlreadyCounted):
            server.receive("ann", torch.ones(D), task=open_tasks[0].id, offset=4)
        with pytest.raises(fastagg.UnknownVersion, match="forgotten"):
            server.receive("tom", torch.ones(D), task=open_tasks[2].id)
    server.receive("ann", torch.ones(D), task=open_tasks[0].id, offset=5)
    server.receive("bob", torch.ones(D), task=open_tasks[1].id)
    server.receive("ida", torch.ones(D), task=handed.id)
    assert server.offset == 5


def test_offsets_are_with_rows_too(tmp_path: Path) -> None:
    server = opened(tmp_path / "0", ace)
    for offset in range(6):
        task = server.dispatch(offset % 4)
        server.receive(offset % 4, torch.ones(D), task=task.id, offset=offset)
    found: Any = again(server, tmp_path / "1", ace)
    assert found.offset == 5 and torch.equal(found.flat, server.flat)
    with pytest.raises(AlreadyCounted):
        found.receive(task.client, torch.ones(D), task=task.id)
