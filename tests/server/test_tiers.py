"""Rows on a disk: the same rows and the same sum as in memory; and what a disk may do."""

import gc
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support import inside
from support.disks import damage, full_disk, in_page_cache
from torch import Tensor

import fastagg
from fastagg._build import native
from fastagg.durable.doctor import examine
from fastagg.rules.directions.all_clients import TieredState
from fastagg.server import engine
from fastagg.storage import tiered

SIZE = 300_000  # three windows of the scrub
STRIDE = {format: native.engine.RowFile.stride(format, SIZE) for format in ("fp32", "bf16", "int8", "int4")}


def make(path: Path, clients: int = 12, size: int = SIZE, **more: Any) -> fastagg.Server:
    """ACE with its rows on a disk."""
    given = {key: more.pop(key) for key in ("format", "keep") if key in more}
    cache = fastagg.Tiered(**{"path": path, **given})
    return fastagg.ACE(torch.zeros(size), **{"lr": 0.1, "num_clients": clients, "cache": cache, "seed": 3, **more})


class Trace:
    """Answers of clients at random; the same for the same seed."""

    def __init__(self, clients: int = 12, size: int = SIZE) -> None:
        self.draw = torch.Generator().manual_seed(1)
        self.clients, self.size = clients, size
        self.first = list(range(clients))

    def next(self) -> tuple[int, Tensor]:
        # Everybody once at first, so that the warm-up ends.
        client = self.first.pop() if self.first else int(torch.randint(self.clients, (1,), generator=self.draw))
        return client, torch.randn(self.size, generator=self.draw)

    def play(self, count: int, *servers: fastagg.Server) -> None:
        for _ in range(count):
            client, update = self.next()
            for server in servers:
                server.dispatch(client)
                server.receive(client, update, num_samples=1 + client)


def rows_of(server: fastagg.Server, clients: int = 12) -> list[Tensor]:
    state = inside.direction(server)
    assert isinstance(state, TieredState)
    found = [inside.row_on_disk(state.rows, client) for client in range(clients)]
    assert all(row is not None for row in found)
    return [row for row in found if row is not None]


def same(one: fastagg.Server, other: fastagg.Server) -> bool:
    return torch.equal(one.flat, other.flat) and torch.equal(inside.sum_of(one), inside.sum_of(other))


EVERYTHING: dict[str, Any] = {
    "weighting": "samples", "clip_norm": 300.0, "warmup": "partial",
    "optimizer": fastagg.AMSGrad(0.01, moments="8bit"),
}  # fmt: skip


@pytest.mark.parametrize("size", [1, 255, 131_072, 131_073, SIZE])  # around a window
@pytest.mark.parametrize("format", ["fp32", "bf16", "int8", "int4"])
@pytest.mark.parametrize("more", [{}, EVERYTHING], ids=["plain", "everything"])
def test_rows_are_those_of_a_cache_in_memory(more: dict[str, Any], format: str, size: int, tmp_path: Path) -> None:
    server = make(tmp_path, format=format, size=size, **more)
    plain = fastagg.ACE(torch.zeros(size), **{"lr": 0.1, "num_clients": 12, "cache": format, "seed": 3, **more})
    Trace(size=size).play(40, server, plain)
    for client, row in enumerate(rows_of(server)):
        assert torch.equal(row, inside.row(plain, client))
    weights = torch.from_numpy(inside.weights(server)).double()
    exact = weights @ torch.stack(rows_of(server)).double()
    torch.testing.assert_close(
        inside.sum_of(server).double(), exact, rtol=0, atol=2e-5 * max(1.0, float(weights.max()))
    )
    apart = (server.flat - plain.flat).abs()  # where a mean is nearly zero AMSGrad makes much of its rounding
    assert float(apart.mean()) < 1e-6 * (1.0 + float(plain.flat.abs().mean()))


@pytest.mark.parametrize("freshness", ["dispatch", "gradient"])
def test_rows_of_aced_leave_and_come_back(freshness: str, tmp_path: Path) -> None:
    """Clients train for long, so that rows leave the sum, several at a time, and come back."""
    more: dict[str, Any] = {
        "lr": 0.1, "num_clients": 12, "max_delay": 6, "seed": 3, "freshness": freshness, "warmup": "partial",
    }  # fmt: skip
    cache = fastagg.Tiered(path=tmp_path)
    tiered_, plain = servers = [fastagg.ACED(torch.zeros(SIZE), cache=kind, **more) for kind in (cache, "int8")]
    draw, training, left = torch.Generator().manual_seed(5), [], 0
    for turn in range(150):
        idle = [client for client in range(12) if client not in training]
        while len(training) < (3 if turn % 40 < 20 else 6):
            training.append(idle.pop(int(torch.randint(len(idle), (1,), generator=draw))))
            for server in servers:
                server.dispatch(training[-1])
        client = training.pop(int(torch.randint(len(training), (1,), generator=draw)))
        update = torch.randn(SIZE, generator=draw)
        for server in servers:
            server.receive(client, update)
        weights = inside.weights(plain)
        left += int((weights == 0).sum() > 3)
        assert (inside.weights(tiered_) == weights).all()
    assert left > 20, "nobody was too old"
    for client, row in enumerate(rows_of(tiered_)):
        assert torch.equal(row, inside.row(plain, client))
    torch.testing.assert_close(tiered_.flat, plain.flat, rtol=0, atol=1e-4)
    rows, weights = torch.stack(rows_of(tiered_)).double(), torch.from_numpy(weights).double()
    torch.testing.assert_close(inside.sum_of(tiered_).double(), weights @ rows, rtol=0, atol=2e-5)


@pytest.mark.parametrize("format", ["fp32", "bf16", "int8", "int4"])
def test_nearly_all_rows_leave_at_once(format: str, tmp_path: Path) -> None:
    """When the warm-up ends nearly everybody is too old."""
    clients, size = 40, 140_000  # two windows

    def made(name: str) -> fastagg.Server:
        cache = fastagg.Tiered(format, path=tmp_path / name)
        return fastagg.ACED(torch.zeros(size), lr=0.1, num_clients=clients, cache=cache, seed=3)

    saved, whole = made("saved"), made("whole")
    trace, most = Trace(clients, size), 0
    for _ in range(2 * clients):
        before = inside.weights(saved)
        trace.play(1, saved, whole)
        after = inside.weights(saved)
        most = max(most, int(((before > 0) & (after == 0)).sum()))
    assert most > 20, "nobody left"
    torch.testing.assert_close(inside.sum_of(whole).double(), exact_sum(whole), rtol=0, atol=2e-5)
    state = saved.state_dict()
    del saved
    gc.collect()
    again = made("saved")
    again.load_state_dict(state)
    trace.play(30, again, whole)
    assert same(again, whole)


def aced(path: Path) -> fastagg.Server:
    cache = fastagg.Tiered("int8", path=path)
    return fastagg.ACED(torch.zeros(SIZE), lr=0.1, num_clients=12, max_delay=3, cache=cache, seed=3)


def exact_sum(server: fastagg.Server) -> Tensor:
    """The sum of a server's rows, each with its weight, in float64."""
    weights = inside.weights(server).tolist()
    held = [inside.row(server, client) for client in range(len(weights))]
    total = torch.zeros(server.layout.size, dtype=torch.float64)
    for weight, row in zip(weights, held, strict=True):
        assert row is not None or weight == 0
        total += 0 if row is None else weight * row.double()
    return total


def test_a_damaged_row_among_those_that_leave(tmp_path: Path) -> None:
    server, trace = aced(tmp_path / "rows"), Trace()
    trace.play(11, server)
    update = torch.ones(SIZE)
    for _ in range(4):  # the warm-up ends, and all but client 0 are nearly too old
        server.dispatch(0)
        assert server.receive(0, update).applied
    server.dispatch(0)
    damage(tmp_path / "rows", 11, server.state_dict(), STRIDE["int8"], 200_000)  # in the second window
    total = inside.sum_of(server).clone()
    server.receive(0, update)
    assert server.tiers()["lost"] == 1 and not torch.equal(inside.sum_of(server), total)
    torch.testing.assert_close(inside.sum_of(server).double(), exact_sum(server), rtol=0, atol=2e-5)


def test_the_scrub_rebuilds_the_sum(tmp_path: Path) -> None:
    server, trace = make(tmp_path), Trace()
    trace.play(12, server)
    inside.sum_of(server).add_(1.0)  # as if it had drifted
    trace.play(2 * 4 * 12, server)  # each window begins and ends at least once
    exact = torch.stack([row.double() for row in rows_of(server)]).sum(0)
    torch.testing.assert_close(inside.sum_of(server).double(), exact, rtol=0, atol=2e-5)


def test_a_loaded_server_goes_on_as_the_one_that_was_saved(tmp_path: Path) -> None:
    whole, saved, trace = make(tmp_path / "whole"), make(tmp_path / "rows"), Trace()
    trace.play(40, whole, saved)
    state = whole.state_dict()  # a checkpoint changes nothing
    assert state["direction"]["cache"]["number"] == 1
    saved.save(tmp_path / "server.pt")
    before = rows_of(saved)
    Trace().play(30, saved)  # what nobody saved: it must not reach the saved rows
    del saved
    again = fastagg.load(tmp_path / "server.pt")
    assert all(torch.equal(row, was) for row, was in zip(rows_of(again), before, strict=True))
    trace.play(70, whole, again)
    assert same(whole, again)


def test_the_last_checkpoints_can_be_loaded_and_older_ones_say_so(tmp_path: Path) -> None:
    server, trace, states = make(tmp_path / "rows"), Trace(), []
    for turn in range(4):
        trace.play(15, server)
        server.save(tmp_path / f"{turn}.pt")
        states.append((server.flat.clone(), rows_of(server)))
    trace.play(30, server)
    del server
    for turn in (0, 1):
        with pytest.raises(fastagg.CheckpointError, match=r"given up.*keep"):
            fastagg.load(tmp_path / f"{turn}.pt")
    shutil.copytree(tmp_path / "rows", tmp_path / "kept")
    for turn in (2, 3):
        shutil.rmtree(tmp_path / "rows")
        shutil.copytree(tmp_path / "kept", tmp_path / "rows")
        again = fastagg.load(tmp_path / f"{turn}.pt")
        assert torch.equal(again.flat, states[turn][0])
        assert all(torch.equal(row, was) for row, was in zip(rows_of(again), states[turn][1], strict=True))
        del again


def test_places_in_the_file_are_used_again(tmp_path: Path) -> None:
    server, trace = make(tmp_path / "rows"), Trace()
    sizes = []
    for _ in range(6):
        trace.play(30, server)
        server.save(tmp_path / "server.pt")
        sizes.append(max(server.state_dict()["direction"]["cache"]["slots"].tolist()))
    assert sizes[-1] < 4 * 12, "rows of checkpoints that were given up left no places"


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="the page cache is asked of Linux")
def test_a_row_is_asked_for_when_its_client_is_sent_a_model(tmp_path: Path) -> None:
    server, path = make(tmp_path, warmup="partial"), tmp_path / "rows.bin"
    Trace().play(12, server)
    place = int(server.state_dict()["direction"]["cache"]["slots"][3]) * STRIDE["int8"]  # all is on the disk then
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), place, STRIDE["int8"], os.POSIX_FADV_DONTNEED)
    if in_page_cache(path, place, STRIDE["int8"]):
        pytest.skip("a file system without a page cache that lets go")
    server.dispatch(3)
    until = time.monotonic() + 60.0
    while not in_page_cache(path, place, STRIDE["int8"]):
        assert time.monotonic() < until, "nobody asked for it"
        time.sleep(0.001)


def test_a_full_disk(tmp_path: Path) -> None:
    server, other = make(tmp_path / "rows"), make(tmp_path / "other")
    Trace().play(8, other)
    trace = Trace()
    with full_disk(5 * STRIDE["int8"]):
        trace.play(5, server)
        server.dispatch(trace.first[-1])
        for _ in range(3):
            with pytest.raises(fastagg.CacheError, match="no room for another row"):
                server.receive(trace.first[-1], torch.ones(SIZE))
        assert server.version == 5 - 5 and inside.open_tasks(server) == 1
    trace.play(1, server)  # there is room again, and the client still owes its answer
    trace.play(2, server)
    assert same(server, other)


def damaged_server(path: Path, *clients: int, **more: Any) -> fastagg.Server:
    """A server whose rows of these clients change on the disk while it runs."""
    server = make(path, **more)
    Trace().play(30, server)
    flip(path, *clients)(server.state_dict())
    return server


@pytest.mark.parametrize("found_by", ["its client", "the scrub"])
@pytest.mark.parametrize("lost", [[7], [2, 6, 7]])
def test_clients_whose_rows_are_damaged_warm_up_again(
    lost: list[int], found_by: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    whole = [client for client in range(12) if client not in lost]
    server = damaged_server(tmp_path, *lost)

    def answer(client: int) -> fastagg.Receipt:
        server.dispatch(client)
        return server.receive(client, torch.full((SIZE,), float(client)))

    for turn in range(1 if found_by == "its client" else 5 * 12):
        answer(7 if found_by == "its client" else whole[turn % len(whole)])
        if server.tiers()["lost"]:
            break
    named = ", ".join(map(str, lost))
    assert server.tiers()["lost"] == len(lost) and f"are damaged and given up: {named}." in caplog.text
    torch.testing.assert_close(inside.sum_of(server).double(), exact_sum(server), rtol=0, atol=2e-5)
    unheard = [client for client in lost if inside.row(server, client) is None]
    assert unheard == [client for client in lost if found_by == "the scrub" or client != 7]
    assert answer(0).applied == (not unheard), "ACE waits until all have been heard"
    assert [answer(client).applied for client in lost][-1]
    torch.testing.assert_close(inside.sum_of(server).double(), exact_sum(server), rtol=0, atol=2e-5)


def test_a_sum_that_cannot_be_made_anew_stays(tmp_path: Path) -> None:
    """A row is lost, and while all others are read the file turns out to be too short."""
    server = damaged_server(tmp_path, 7)
    slots = server.state_dict()["direction"]["cache"]["slots"].tolist()
    os.truncate(tmp_path / "rows.bin", (slots[7] + 1) * STRIDE["int8"])
    before, total = server.flat.clone(), inside.sum_of(server).clone()
    server.dispatch(7)
    for _ in range(2):
        with pytest.raises(fastagg.CacheError, match="the file ends before it"):
            server.receive(7, torch.ones(SIZE))
    assert torch.equal(server.flat, before) and torch.equal(inside.sum_of(server), total)
    assert server.tiers()["lost"] == 0 and inside.open_tasks(server) == 1


def flip(path: Path, *clients: int) -> Callable[[dict[str, Any]], None]:
    def change(state: dict[str, Any]) -> None:
        for client in clients:
            damage(path, client, state, STRIDE["int8"], 200_000)

    return change


def cut(path: Path, rows: int) -> Callable[[dict[str, Any]], None]:
    return lambda _: os.truncate(path / "rows.bin", rows * STRIDE["int8"])


@pytest.mark.parametrize("logged", [0, 9])  # answers behind the checkpoint
@pytest.mark.parametrize("rule", ["ACE", "ACED"])
@pytest.mark.parametrize("how", ["flips", "cut"])
def test_damage_between_two_runs_is_found_at_open(
    how: str, rule: str, logged: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = tmp_path / "rows"

    def made() -> fastagg.Server:
        return make(rows, warmup="partial") if rule == "ACE" else aced(rows)

    trace = Trace()
    server = fastagg.open(tmp_path / "state", made)
    trace.play(30, server)
    server.checkpoint()
    state = server.state_dict(copy=False)
    slots = state["direction"]["cache"]["slots"].tolist()
    trace.play(logged, server)
    server.flush()
    version = server.version
    server.close()  # `server` is still there, but its rows are free
    with pytest.raises(fastagg.FastaggError, match="closed"):
        inside.direction(server).rows.native.cut()
    lost = [2, 5, 7] if how == "flips" else [client for client in range(12) if slots[client] >= max(slots) // 2]
    assert 0 < len(lost) < 12
    (flip(rows, *lost) if how == "flips" else cut(rows, max(slots) // 2))(state)
    named = "".join(examine(tmp_path / "state")["problems"])
    assert all(f"client {client}'s row is damaged" in named for client in lost)
    if logged and rule == "ACED":  # who is in the sum decides what an answer behind it does
        with pytest.raises(fastagg.CheckpointError, match="of the log cannot be executed: the outcome differs"):
            fastagg.open(tmp_path / "state", made)
        return
    with fastagg.open(tmp_path / "state", made) as again:
        assert f"the rows of {len(lost)} clients are damaged and given up: {', '.join(map(str, lost))}." in caplog.text
        assert again.tiers()["lost"] == len(lost) and again.version == version
        torch.testing.assert_close(inside.sum_of(again).double(), exact_sum(again), rtol=0, atol=2e-5)
        trace.play(60, again)  # never a CacheError
        torch.testing.assert_close(inside.sum_of(again).double(), exact_sum(again), rtol=0, atol=2e-5)
        flat = again.flat.clone()
        again.checkpoint()
    with fastagg.open(tmp_path / "state", made, check=True) as last:
        assert torch.equal(last.flat, flat) and last.tiers()["lost"] == 0


def test_damage_that_a_sample_misses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows that a sample does not hold are found by ``check``, or when they are needed."""
    rows = tmp_path / "rows"
    with fastagg.open(tmp_path / "state", lambda: make(rows)) as server:
        Trace().play(30, server)
        server.checkpoint()
        state = server.state_dict(copy=False)
    flip(rows, 7)(state)
    monkeypatch.setattr(tiered, "SAMPLE", STRIDE["int8"])
    found = 0
    for _ in range(40):  # one row of twelve each time
        found += bool(examine(tmp_path / "state")["problems"])
    assert 0 < found < 40
    assert examine(tmp_path / "state", check=True)["problems"]
    with fastagg.open(tmp_path / "state", lambda: make(rows), check=True) as again:
        assert again.tiers()["lost"] == 1
        again.checkpoint()
    with fastagg.open(tmp_path / "state", lambda: make(rows), check=True) as again:
        assert again.tiers()["lost"] == 0


@pytest.mark.parametrize("durable", [False, True])
def test_close_gives_the_rows_back(durable: bool, tmp_path: Path) -> None:
    make_it = lambda: make(tmp_path / "rows")  # noqa: E731
    server = fastagg.open(tmp_path / "state", make_it) if durable else make_it()
    Trace().play(14, server)
    if not durable:
        server.save(tmp_path / "server.pt")
    server.dispatch(0)
    flat = server.flat.clone()
    for _ in range(2):
        server.close()
    with pytest.raises(fastagg.FastaggError, match="closed"):
        server.receive(0, torch.ones(SIZE))
    again = fastagg.open(tmp_path / "state", make_it) if durable else fastagg.load(tmp_path / "server.pt")
    assert torch.equal(again.flat, flat) and torch.equal(server.flat, flat)
    Trace().play(3, again)
    again.close()


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "rows").write_text("a file")
    server = make(tmp_path / "rows")
    server.dispatch(0)
    with pytest.raises(fastagg.CacheError, match="the folder of the cached updates"):
        server.receive(0, torch.ones(SIZE))


def test_the_rows_stay_where_they_are_when_the_program_goes_to_another_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path)
    cache = fastagg.Tiered("int8", path="rows")
    with fastagg.ACE(torch.zeros(300), lr=0.1, num_clients=2, warmup="partial", cache=cache) as server:
        monkeypatch.chdir("other")
        server.dispatch(0)
        server.receive(0, torch.ones(300))
        server.save("saved.pt")
    assert (tmp_path / "rows/rows.bin").exists() and not Path("rows").exists()


def test_a_folder_belongs_to_one_server(tmp_path: Path) -> None:
    server = make(tmp_path / "rows")
    Trace().play(3, server)
    other = make(tmp_path / "rows")
    other.dispatch(0)
    with pytest.raises(fastagg.CacheError, match="in use"):
        other.receive(0, torch.ones(SIZE))
    server.save(tmp_path / "server.pt")
    with pytest.raises(fastagg.CacheError, match="in use"):
        fastagg.load(tmp_path / "server.pt")
    del server
    with pytest.raises(fastagg.ConfigError, match="checkpoints of another server"):
        other.receive(0, torch.ones(SIZE))
    assert inside.engine(other).open_tasks == 1  # its state cannot be read


@pytest.mark.parametrize("fails", ["_load_moments", "new_incarnation", "limit", "finite"])
def test_a_load_that_fails_can_be_repeated(fails: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also while somebody holds its error, and with it what was loaded."""
    server = make(tmp_path / "rows")
    Trace().play(3, server)
    server.save(tmp_path / "server.pt")
    flat = server.flat
    del server

    def refuses(*_: object) -> None:
        raise ValueError("a refusal")

    with monkeypatch.context() as patch:
        patch.setattr(engine, fails, refuses)
        with pytest.raises(fastagg.CheckpointError, match="a refusal") as held:
            fastagg.load(tmp_path / "server.pt")
    assert torch.equal(fastagg.load(tmp_path / "server.pt").flat, flat), held
    Trace().play(3, fastagg.load(tmp_path / "server.pt"))


@pytest.mark.parametrize("format", ["fp32", "int4"])
def test_a_doctor_reads_the_rows_too(format: str, tmp_path: Path) -> None:
    server = make(tmp_path / "rows", format=format)
    Trace().play(30, server)
    server.save(tmp_path / "server.pt")
    slots = server.state_dict()["direction"]["cache"]["slots"]
    found = examine(tmp_path / "server.pt")  # while the server goes on
    assert found["healthy"] and found["problems"] == []
    with (tmp_path / "rows" / "rows.bin").open("r+b") as file:
        file.seek((int(slots[5]) + 1) * STRIDE[format] - 4096 * (format == "fp32") - 5000)
        file.write(b"other")
    says = f"client 5's row is damaged (slot {int(slots[5])})"
    assert [one.endswith(says) for one in examine(tmp_path / "server.pt")["problems"]] == [True]
    (tmp_path / "rows" / "rows.bin").unlink()
    assert not examine(tmp_path / "server.pt")["healthy"]


@pytest.mark.parametrize(
    ("damaged", "says"),
    [
        (lambda path: next(path.glob("slots-*")).unlink(), "does not have the cached updates"),
        (lambda path: os.truncate(path / "rows.bin", 4096), "none of its 12 cached updates is whole"),
        (lambda path: (path / "rows.bin").unlink(), "rows cannot be opened"),
    ],
)
def test_a_damaged_folder(damaged: Callable[[Path], object], says: str, tmp_path: Path) -> None:
    server = make(tmp_path / "rows")
    Trace().play(14, server)
    server.save(tmp_path / "server.pt")
    del server
    damaged(tmp_path / "rows")
    with pytest.raises(fastagg.CheckpointError, match=says):
        fastagg.load(tmp_path / "server.pt")


def test_a_folder_keeps_no_more_checkpoints_than_there_are_rows_of(tmp_path: Path) -> None:
    with pytest.raises(fastagg.ConfigError, match="keep: 3 checkpoints"):
        fastagg.open(tmp_path / "state", lambda: make(tmp_path / "rows"), keep=3)
    fastagg.open(tmp_path / "state", lambda: make(tmp_path / "rows", keep=3), keep=3).close()


def test_a_forked_child_leaves_the_rows_to_its_parent(tmp_path: Path) -> None:
    server, update = make(tmp_path), torch.ones(SIZE)
    Trace().play(13, server)
    server.dispatch(0)
    child = os.fork()
    if child == 0:
        try:
            server.receive(0, update)
        except fastagg.ConfigError:  # it belongs to the process that made it
            del server
            gc.collect()
            os._exit(7)
        finally:
            os._exit(0)
    assert os.waitpid(child, 0)[1] >> 8 == 7
    server.receive(0, update)
    other = make(tmp_path)
    other.dispatch(0)
    with pytest.raises(fastagg.CacheError, match="in use"):  # the child's end did not unlock them
        other.receive(0, update)
