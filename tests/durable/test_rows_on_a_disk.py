"""Rows on a disk and the folder of their server: whatever happens to the machine, the two of them fit together."""

import errno
import gc
import itertools
import os
import random
import shutil
import weakref
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import torch
from support import inside
from support.disks import refusing
from support.lossy import LossyDisk
from support.presets import update

import fastagg
from fastagg._build import native
from fastagg.durable.disk import Disk
from fastagg.durable.doctor import examine
from fastagg.durable.opening import open_on
from fastagg.rules.directions.all_clients import TieredState
from fastagg.storage import files, tiered

SIZE, CLIENTS = 300, 4
STRIDE = native.engine.RowFile.stride("int8", SIZE)
Names = dict[str, bytes]


def maker(rows: Path, **more: Any) -> Callable[[], fastagg.Server]:
    """ACED, so that rows leave the sum and come back."""
    return lambda: fastagg.ACED(
        torch.zeros(SIZE), lr=0.1, num_clients=CLIENTS, max_delay=2, warmup="partial", seed=3,
        cache=fastagg.Tiered("int8", path=rows, **more),
    )  # fmt: skip


def play(server: fastagg.Server, first: int, last: int) -> None:
    for k in range(first, last):
        client = (0, 1, 1, 2, 0, 3, 0, 2)[k % 8]
        server.dispatch(client)
        server.receive(client, update(k, SIZE))


def rows_of(server: fastagg.Server) -> TieredState:
    state = inside.direction(server)
    assert isinstance(state, TieredState)
    return state


def seen(server: fastagg.Server) -> str:
    """A digest of the model, the sum and all rows."""
    state, digest = rows_of(server), sha256(str(server.version).encode())
    for held in (server.flat, state.sum, *(inside.row_on_disk(state.rows, client) for client in range(CLIENTS))):
        digest.update(b"" if held is None else held.numpy().tobytes())
    return digest.hexdigest()


# -- power -------------------------------------------------------------------------------------------------------------


class Machine(LossyDisk):
    """A state folder that loses power, and beside it a folder of rows, which is looked at whenever something happens.

    Attributes:
        moments: after so many steps: the names that are on the disk, those that may be, the rows that are on the disk,
            and those that may be.
    """

    def __init__(self, rows: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.rows, self.synced, self.safe = rows, bytes(0), Names()
        self.moments: list[tuple[int, Names, Names, bytes, bytes]] = []
        written, named = files.write, files.sync_folder

        def write(path: Path, content: bytes) -> None:
            if path.name.startswith("slots-"):  # the rows were synced before
                self.synced = self.file()
                self.look()
            written(path, content)
            self.look()

        def sync_folder(path: Path) -> None:
            self.look()  # what was renamed or removed before it may come back
            named(path)
            if path == rows:
                self.safe = self.lists()
                self.look()

        monkeypatch.setattr(files, "write", write)
        monkeypatch.setattr(files, "sync_folder", sync_folder)

    def file(self) -> bytes:
        path = self.rows / tiered.ROWS
        return path.read_bytes()[: 40 * STRIDE] if path.exists() else bytes(0)

    def lists(self) -> Names:
        return {path.name: path.read_bytes() for path in self.rows.glob("slots-*")} if self.rows.exists() else {}

    def look(self) -> None:
        self.moments.append((len(self.steps), self.safe, self.lists(), self.synced, self.file()))

    def lost(self, rng: random.Random, to: Path) -> tuple[LossyDisk, int]:
        """What may remain of both, and after how many steps power was lost."""
        steps, safe, names, synced, now = rng.choice([one for one in self.moments if one[1]])
        left = bytearray(synced + now[len(synced) :])
        for at in range(0, len(now), 512):  # each sector is there, or not
            if rng.random() < 0.5:
                left[at : at + 512] = now[at : at + 512]
        shutil.rmtree(to, ignore_errors=True)
        to.mkdir()
        (to / tiered.ROWS).write_bytes(left + bytes(-len(left) % STRIDE))
        for one in sorted({name.removesuffix(".begun") for name in (*safe, *names)}):
            before, after = ([name for name in (one, f"{one}.begun") if name in held] for held in (safe, names))
            held = (safe, before) if rng.random() < 0.5 else (names, after)  # a file is renamed whole, or not
            for name in held[1]:
                (to / name).write_bytes(held[0][name])
        return self.after(steps, rng, 512), steps


def test_power_is_lost_at_any_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every opening gives a state that was, with all that was acknowledged, and no row is lost."""
    path, states, turn = tmp_path / "rows", list[str](), 0
    disk, make = Machine(path, monkeypatch), maker(path)
    for _ in range(3):
        server = open_on(disk, make, "arrival", segment=16384)
        states += [seen(server)]
        for k in range(7):
            play(server, turn, turn + 1)
            states.append(seen(server))
            disk.note("acknowledged", len(states) - 1)
            disk.look()
            turn += 1
            if k in (2, 4):
                server.checkpoint()
        server.close()
    del server
    gc.collect()
    monkeypatch.undo()
    rng, found = random.Random(1), set()
    for _ in range(150):
        left, steps = disk.lost(rng, path)
        promised = max((step[1] for step in disk.steps[:steps] if step[0] == "acknowledged"), default=0)
        again = open_on(left, make, "arrival", segment=16384, check=True)
        state = seen(again)
        assert state in states[promised:], (steps, promised, state in states)
        assert again.tiers()["lost"] == 0
        found.add(state)
        again.close()
    assert len(found) > 10


# -- what fails --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("more", [0, 9])  # answers, and rows, of the second process
def test_a_restart_keeps_the_older_checkpoint(more: int, tmp_path: Path) -> None:
    make = maker(tmp_path / "rows")
    with fastagg.open(tmp_path / "state", make) as server:
        play(server, 0, 9)
        server.checkpoint()
        play(server, 9, 15)
        server.checkpoint()
    with fastagg.open(tmp_path / "state", make) as server:
        play(server, 15, 15 + more)
        state = seen(server)
    newest = max((tmp_path / "state").glob("checkpoint-*"))
    (newest / "manifest.json").write_text("{")
    assert not examine(tmp_path / "state")["healthy"]
    with fastagg.open(tmp_path / "state", make, check=True) as server:
        assert seen(server) == state and server.tiers()["lost"] == 0
        server.checkpoint()
        play(server, 40, 50)
        state = seen(server)
    with fastagg.open(tmp_path / "state", make, check=True) as server:
        assert seen(server) == state


@pytest.mark.parametrize("of", ["loaded", "other"])
def test_a_list_of_slots_that_is_damaged(of: str, tmp_path: Path) -> None:
    """The checkpoint itself has them, too; only another one cannot be kept any more."""
    server = maker(tmp_path / "rows")()
    for k in range(2):
        play(server, 6 * k, 6 * k + 6)
        server.save(tmp_path / f"{k}.pt")
    state = seen(server)
    server.close()
    lists = sorted((tmp_path / "rows").glob("slots-*"))
    assert len(lists) == 2
    path = lists[of == "loaded"]
    path.write_bytes(b"X" + path.read_bytes()[1:])
    with fastagg.load(tmp_path / "1.pt") as again:
        assert seen(again) == state
        play(again, 12, 20)
    if of == "other":
        with pytest.raises(fastagg.CheckpointError, match="given up"):
            fastagg.load(tmp_path / "0.pt")
    else:
        fastagg.load(tmp_path / "0.pt").close()


class Killed(BaseException):
    pass


@pytest.mark.parametrize("how", ["fails", "is killed"])
@pytest.mark.parametrize("where", ["write", "sync_folder", "rename"])
def test_a_first_opening_that_does_not_end_can_be_repeated(
    where: str, how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = maker(tmp_path / "rows")
    error: BaseException = OSError(errno.EIO, "a disk's error") if how == "fails" else Killed()

    def refuse(*_: Any) -> None:
        raise error

    with monkeypatch.context() as patched:
        if where == "rename":
            patched.setattr("fastagg.durable.disk.Disk.rename", refuse)
        else:
            patched.setattr(files, where, refuse)
        with pytest.raises(Killed if how == "is killed" else fastagg.FastaggError):
            fastagg.open(tmp_path / "state", make)
    with fastagg.open(tmp_path / "state", make) as server:
        play(server, 0, 9)
        state = seen(server)
    with fastagg.open(tmp_path / "state", make) as server:
        assert seen(server) == state


@pytest.mark.parametrize("of", [files, Disk])  # the rows' folder, the state's
def test_a_checkpoint_that_fails_at_its_end_can_be_made_again(
    of: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = maker(tmp_path / "rows")
    with fastagg.open(tmp_path / "state", make) as server:
        play(server, 0, 5)
        with monkeypatch.context() as patched:
            named = of.sync_folder

            def refuse(*given: Any, **inside: Any) -> None:
                if len(list((tmp_path / "state").glob("checkpoint-*[0-9]"))) > 1:  # it is renamed
                    raise OSError(errno.EIO, "a disk's error")
                named(*given, **inside)

            patched.setattr(of, "sync_folder", refuse)
            with pytest.raises(fastagg.FastaggError, match="a disk's error"):
                server.checkpoint()
        server.checkpoint()
        state = seen(server)
    with fastagg.open(tmp_path / "state", make, check=True) as server:
        assert seen(server) == state and server.tiers()["lost"] == 0


def test_closing_after_a_failed_sync_gives_the_rows_back(tmp_path: Path) -> None:
    disk, make = LossyDisk(), maker(tmp_path / "rows")
    server = open_on(disk, make, "none", segment=16384)
    play(server, 0, 5)
    server.flush()

    def fail(what: str) -> None:
        if what == "sync":
            raise OSError(errno.EIO, "a disk's error")

    disk.fail = fail
    play(server, 5, 6)
    with pytest.raises(fastagg.NotDurable):
        server.close()
    disk.fail = lambda what: None
    with open_on(disk.copy(), make, "arrival", segment=16384) as again:
        assert again.version >= 5


@pytest.mark.parametrize("what", ["read", "write", "sync"])
def test_rows_that_cannot_be_read_written_or_synced_for_a_while(what: str, tmp_path: Path) -> None:
    """It is refused by name, and later the server is what another one is that nothing was refused."""
    twin = maker(tmp_path / "twin")()
    play(twin, 0, 20)
    make, file = maker(tmp_path / "rows"), tmp_path / "rows" / tiered.ROWS
    with fastagg.open(tmp_path / "state", make) as server:
        for last in (9, 11, 13):  # the first checkpoint is given up, and leaves places in the file
            play(server, server.version, last)
            server.checkpoint()
        before = seen(server)
        with refusing(file, what):
            if what == "sync":
                with pytest.raises(fastagg.FastaggError, match="rows cannot be synced"):
                    server.checkpoint()
            else:
                done = int(what == "write")  # it is known when the next answer comes
                play(server, 13, 13 + done)
                for _ in range(2):
                    with pytest.raises(fastagg.CacheError, match=f"a row cannot be {'written' if done else 'read'}"):
                        play(server, 13 + done, 14 + done)
        if what != "write":
            assert seen(server) == before
        play(server, 13 + (what == "write"), 20)
        assert seen(server) == seen(twin)
        server.checkpoint()
        flat = seen(server)
    with fastagg.open(tmp_path / "state", make, check=True) as server:
        assert seen(server) == flat and server.tiers()["lost"] == 0
    twin.close()


def test_after_a_failed_sync_rows_are_written_again(tmp_path: Path) -> None:
    """The system takes what a failed sync left behind for written, and may forget it."""
    with fastagg.open(tmp_path / "state", maker(tmp_path / "rows")) as server:
        play(server, 0, 6)
        server.checkpoint()
        play(server, 6, 9)
        written = [server.tiers()["written"]]
        for fails in (True, False, False):
            if fails:
                with (
                    refusing(tmp_path / "rows" / tiered.ROWS, "sync"),
                    pytest.raises(fastagg.FastaggError, match="rows cannot be synced"),
                ):
                    server.checkpoint()
            else:
                server.checkpoint()
            written.append(server.tiers()["written"])
    again = 2 * STRIDE  # of clients 0 and 2
    assert [after - before for before, after in itertools.pairwise(written)] == [0, again, 0]


def test_a_closed_server_is_not_kept_alive(tmp_path: Path) -> None:
    with fastagg.open(tmp_path / "state", maker(tmp_path / "rows")) as server:
        play(server, 0, 5)
        kept = weakref.ref(rows_of(server)), weakref.ref(server)
    del server
    gc.collect()
    assert [one() for one in kept] == [None, None]


def test_the_names_of_new_folders_are_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced, sync = list[str](), files.sync

    def note(file: int, *, names: bool = False) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{file}"))
        sync(file, names=names)

    monkeypatch.setattr(files, "sync", note)
    with fastagg.open(tmp_path / "state", maker(tmp_path / "a" / "b" / "c")) as server:
        play(server, 0, 2)
    assert {str(tmp_path / one) for one in (".", "a", "a/b", "a/b/c")} <= {os.path.normpath(one) for one in synced}
