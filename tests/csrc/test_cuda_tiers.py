"""Rows on a disk, in memory and on a CUDA device: what a server on the CPU with rows on a disk has, bit for bit."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from support.disks import damage, full_disk
from support.ledgers import open_tasks
from torch import Tensor

import fastagg
from fastagg._build import native
from fastagg.ops.place import emulated, place
from fastagg.rules.directions.all_clients import TieredState
from fastagg.storage import tiered

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.cuda,
    pytest.mark.skipif(
        not (torch.cuda.is_available() and native.cuda_architectures) and not native.cuda_emulated,
        reason="needs a GPU, or a build that emulates one",
    ),
]

SIZE, CLIENTS = 3000, 12
STRIDE = {format: native.engine.Tiers.stride(format, SIZE) for format in ("fp32", "bf16", "int8", "int4")}


class Side(NamedTuple):
    """Where a server is."""

    device: str
    on: Callable[[], AbstractContextManager[None]]


@pytest.fixture(scope="module")
def sides() -> Iterator[tuple[Side, Side]]:
    if native.cuda_emulated:
        yield Side("cpu", lambda: emulated(False)), Side("cpu", lambda: emulated(True))
    else:
        yield Side("cpu", nullcontext), Side("cuda", nullcontext)


class Case:
    """A server that is driven on its side."""

    def __init__(self, side: Side, make: Callable[..., fastagg.Server], *given: Any, **settings: Any) -> None:
        self.side = side
        with side.on():
            self.server = make(*given, device=side.device, **settings)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.server, name)
        if not callable(found):
            return found

        def call(*given: Any, **more: Any) -> Any:
            with self.side.on():
                return found(*given, **more)

        return call

    def held(self) -> list[Tensor]:
        """The model, the sum, and all rows that there are."""
        state = self.server._running.extension.state
        with self.side.on():
            if isinstance(state, TieredState):
                rows = [state.rows.row(client) for client in range(CLIENTS)]
            else:
                rows = [state.cache.row(client) for client in range(CLIENTS)]
            return [each.cpu().clone() for each in (self.server.flat, state.sum, *rows) if each is not None]


def case(
    side: Side, path: Path, rows: int = 6, device: int | None = None, size: int = SIZE, **more: Any
) -> Case:  # fmt: skip
    """ACE with memory for ``rows`` rows, and on a device for ``device`` rows."""
    setting = {key: more.pop(key) for key in ("format", "keep", "damaged") if key in more}
    stride = native.engine.Tiers.stride(setting.get("format", "int8"), size)
    room = None if device is None else device * stride
    cache = fastagg.Tiered(**{"path": path, "memory": rows * stride, "device": room, **setting})
    preset = more.pop("preset", fastagg.ACE)
    settings = {"lr": 0.1, "num_clients": CLIENTS, "seed": 3, **more}
    return Case(side, preset, torch.zeros(size), cache=cache, **settings)


class Trace:
    """Tasks and answers of clients at random, with several of them training; the same for the same seed."""

    def __init__(self, training: int = 1, size: int = SIZE) -> None:
        self.draw = torch.Generator().manual_seed(1)
        self.size, self.most = size, training
        self.first, self.training = list(range(CLIENTS)), list[int]()

    def _client(self) -> int:
        if self.first:  # everybody once, so that the warm-up ends
            return self.first.pop()
        idle = [client for client in range(CLIENTS) if client not in self.training]
        return idle[int(torch.randint(len(idle), (1,), generator=self.draw))]

    def play(self, count: int, *cases: Case) -> None:
        """All servers say the same about every answer."""
        for _ in range(count):
            while len(self.training) < self.most:
                self.training.append(self._client())
                for one in cases:
                    one.dispatch(self.training[-1])
            client = self.training.pop(int(torch.randint(len(self.training), (1,), generator=self.draw)))
            update = torch.randn(self.size, generator=self.draw)
            said = [one.receive(client, update) for one in cases]
            assert len({(one.version, one.applied, one.delay, one.step_size, one.update_norm) for one in said}) == 1


def same(one: Case, *others: Case) -> None:
    held = one.held()
    for other in others:
        for mine, theirs in zip(held, other.held(), strict=True):
            assert torch.equal(mine, theirs)


@pytest.mark.parametrize("seed", range(6))
def test_whatever_uses_memory_next_waits(sides: tuple[Side, Side], seed: int) -> None:
    """Copies both ways, kernels and the host take turns at random: it is as if one came after the other."""
    draw, size, most = random.Random(seed), 1 << 18, 1_000_003
    with sides[1].on():
        device = torch.device(sides[1].device)
        on = place(device)
        assert on is not None
        copies = native.cuda.copies_on(on.device)
        there = [torch.full((size,), i, device=device) for i in range(4)]
        here = [torch.full((size,), -i, pin_memory=device.type == "cuda") for i in range(4)]
        copies.settle()
        numbers = {"there": list(range(4)), "here": [-i for i in range(4)]}  # what every element is
        marks = {key: [copies.mark() for _ in range(4)] for key in numbers}
        for turn in range(200):
            i, j = draw.randrange(4), draw.randrange(4)
            up, down = (there[i].data_ptr(), marks["there"][i]), (here[j].data_ptr(), marks["here"][j])
            match draw.randrange(4):
                case 0:
                    copies.up(up, down, size * 8)
                    numbers["there"][i] = numbers["here"][j]
                case 1:
                    copies.down(down, up, size * 8)
                    numbers["here"][j] = numbers["there"][i]
                case 2:
                    copies.before(on.stream, marks["there"][i])
                    there[i].mul_(3).add_(turn).remainder_(most)
                    copies.after(on.stream, marks["there"][i])
                    numbers["there"][i] = (numbers["there"][i] * 3 + turn) % most
                case 3:
                    copies.wait(marks["here"][j])
                    here[j].mul_(5).add_(turn).remainder_(most)
                    numbers["here"][j] = (numbers["here"][j] * 5 + turn) % most
        copies.settle()
        for key, vectors in (("there", there), ("here", here)):
            assert all((vector == number).all() for vector, number in zip(vectors, numbers[key], strict=True))


@pytest.mark.parametrize("format", list(STRIDE))
def test_a_device_has_the_bits_of_the_processor(sides: tuple[Side, Side], format: str, tmp_path: Path) -> None:
    """More clients than frames on the device, than frames of memory, or fewer; one that trains, or several."""
    cpu, gpu = sides
    for training in (1, 5):
        cases = [
            case(cpu, tmp_path / f"cpu{training}", format=format),
            *[
                case(gpu, tmp_path / f"{training}-{rows}-{device}", rows, device, format=format)
                for rows, device in ((6, 4), (4, 40), (40, 7), (6, None))
            ],
        ]
        Trace(training).play(60, *cases)
        same(*cases)
        few, wide, _, free = (one.tiers() for one in cases[1:])
        assert few["device_frames"] == 4 and few["frames"] == 6 and wide["frames"] == 4
        assert wide["there"] == 60 - CLIENTS, "a row that is on the device needs no copy"
        assert 4 <= free["device_frames"] <= 6
    plain = Case(cpu, fastagg.ACE, torch.zeros(SIZE), lr=0.1, num_clients=CLIENTS, cache=format, seed=3)
    Trace(5).play(60, plain)
    for row, mine in zip(plain.held()[2:], cases[0].held()[2:], strict=True):
        assert torch.equal(row, mine)


def test_rows_of_several_windows(sides: tuple[Side, Side], tmp_path: Path) -> None:
    size = 131_072 * 2 + 300
    cases = [case(side, tmp_path / side.device / str(i), size=size) for i, side in enumerate(sides)]
    Trace(3, size).play(30, *cases)
    same(*cases)


def test_with_an_optimizer_and_weights(sides: tuple[Side, Side], tmp_path: Path) -> None:
    more: dict[str, Any] = {"clip_norm": 30.0, "warmup": "partial", "optimizer": fastagg.AMSGrad(0.01, moments="8bit")}
    cases = [case(side, tmp_path / str(i), weighting="samples", **more) for i, side in enumerate(sides)]
    draw = torch.Generator().manual_seed(4)
    for turn in range(40):
        client, update = turn * 7 % CLIENTS, torch.randn(SIZE, generator=draw)
        for one in cases:
            one.dispatch(client)
            assert one.receive_many([(client, update, None, 1 + client)])[0].applied
    same(*cases)


@pytest.mark.parametrize("freshness", ["dispatch", "gradient"])
def test_rows_of_aced_leave_and_come_back(sides: tuple[Side, Side], freshness: str, tmp_path: Path) -> None:
    more: dict[str, Any] = {"preset": fastagg.ACED, "max_delay": 5, "freshness": freshness, "warmup": "partial"}
    cpu, gpu = sides
    cases = [case(cpu, tmp_path / "cpu", rows=16, **more)]
    cases += [case(gpu, tmp_path / str(device), 16, device, **more) for device in (16, None)]
    trace, left = Trace(), 0
    for turn in range(30):
        trace.most = 2 if turn % 6 < 3 else 8
        trace.play(5, *cases)
        weights = [one._running.extension.state.native.state()["weights"] for one in cases]
        assert all((other == weights[0]).all() for other in weights)
        left += int((weights[0] == 0).sum() > 3)
    assert left > 5, "nobody was too old"
    same(*cases)


def test_rows_that_leave_must_fit_on_the_device(sides: tuple[Side, Side], tmp_path: Path) -> None:
    server = case(sides[1], tmp_path, 16, 6, preset=fastagg.ACED, max_delay=3, warmup="partial")
    for client in range(6):
        server.dispatch(client)
    for client in range(4):
        server.receive(client, torch.ones(SIZE))
    with pytest.raises(fastagg.CacheError, match="the device holds 6: open it with more memory"):
        for _ in range(4):
            server.dispatch(9)
            server.receive(9, torch.ones(SIZE))
    assert open_tasks(server) == 3


def test_frames_come_with_the_clients_that_train(sides: tuple[Side, Side], tmp_path: Path) -> None:
    server, trace = case(sides[1], tmp_path, rows=40), Trace()
    trace.play(CLIENTS, server)
    assert server.tiers()["device_frames"] == 4
    trace.most = 10
    trace.play(30, server)
    assert server.tiers()["device_frames"] == 16


def test_updates_that_are_judged_later(sides: tuple[Side, Side], tmp_path: Path) -> None:
    """A bad update leaves its client's row, wherever the row is."""
    gpu = sides[1]
    few = case(gpu, tmp_path / "few", validate="deferred", warmup="partial")
    many = case(gpu, tmp_path / "many", 40, 40, validate="deferred", warmup="partial")
    plain = Case(
        gpu, fastagg.ACE, torch.zeros(SIZE), lr=0.1, num_clients=CLIENTS, cache="int8", seed=3, validate="deferred",
        warmup="partial",
    )  # fmt: skip
    draw, kept = torch.Generator().manual_seed(4), []
    for turn in range(60):
        client, update = turn * 7 % CLIENTS, torch.randn(SIZE, generator=draw)
        if turn % 9 == 5:
            update[turn] = float("nan")
        for one in (few, many, plain):
            one.dispatch(client)
            kept.append(one.receive(client, update).kept)
    assert kept.count(False) == 3 * 7
    same(few, many)
    for row, mine in zip(plain.held()[2:], few.held()[2:], strict=True):
        assert torch.equal(row, mine)
    torch.testing.assert_close(few.held()[0], plain.held()[0], rtol=0, atol=1e-5)


def loaded(side: Side, path: Path) -> Case:
    return Case(side, fastagg.load, path)


@pytest.mark.parametrize("there", [False, True])
@pytest.mark.parametrize("back", [False, True])
def test_a_checkpoint_is_loaded_on_either_side(
    sides: tuple[Side, Side], there: bool, back: bool, tmp_path: Path
) -> None:
    before, after = sides[there], sides[back]
    whole, saved = case(sides[0], tmp_path / "whole"), case(before, tmp_path / "rows", device=5 if there else None)
    trace = Trace(3)
    trace.play(40, whole, saved)
    saved.save(tmp_path / "server.pt")
    waiting, held = list(trace.training), saved.held()
    Trace().play(20, saved)  # what nobody saved
    del saved
    again = loaded(after, tmp_path / "server.pt")
    for mine, was in zip(again.held(), held, strict=True):
        assert torch.equal(mine, was)
    assert trace.training == waiting
    trace.play(50, whole, again)
    same(whole, again)


def test_a_folder_with_a_journal(sides: tuple[Side, Side], tmp_path: Path) -> None:
    cpu, gpu = sides

    def made() -> fastagg.Server:
        return case(gpu, tmp_path / "rows").server

    def opened() -> Case:
        return Case(gpu, lambda device: fastagg.open(tmp_path / "state", made))

    whole, trace = case(cpu, tmp_path / "whole"), Trace()
    server = opened()
    trace.play(20, whole, server)
    server.checkpoint()
    trace.play(25, whole, server)
    for name in ("state", "rows"):  # as if it had been killed here
        shutil.copytree(tmp_path / name, tmp_path / f"{name} killed")
    server.close()
    del server
    for name in ("state", "rows"):
        shutil.rmtree(tmp_path / name)
        shutil.move(tmp_path / f"{name} killed", tmp_path / name)
    again = opened()
    same(whole, again)
    trace.play(20, whole, again)
    same(whole, again)
    again.close()


@pytest.mark.parametrize("found", ["at load", "by the scrub"])
def test_a_damaged_row(sides: tuple[Side, Side], found: str, tmp_path: Path) -> None:
    servers = []
    for i, side in enumerate(sides):
        server = case(side, tmp_path / str(i))
        Trace().play(30, server)
        server.save(tmp_path / f"{i}.pt")
        state = server.state_dict()
        del server
        if found == "at load":
            damage(tmp_path / str(i), 7, state, STRIDE["int8"], 2000)
        servers.append(loaded(side, tmp_path / f"{i}.pt"))
        if found == "by the scrub":
            damage(tmp_path / str(i), 7, state, STRIDE["int8"], 2000)
    others = [client for client in range(CLIENTS) if client != 7]
    for turn in range(4 * CLIENTS):  # the scrub comes to the row of 7
        for server in servers:
            server.dispatch(others[turn % 11])
        said = [server.receive(others[turn % 11], torch.full((SIZE,), float(turn))).applied for server in servers]
        assert said[0] == said[1]
    assert [server.tiers()["lost"] for server in servers] == [1, 1]
    for server in servers:
        assert len(server.held()) == 2 + CLIENTS - 1
        server.dispatch(7)
        assert server.receive(7, torch.ones(SIZE)).applied
    same(*servers)


def test_a_full_disk(sides: tuple[Side, Side], tmp_path: Path) -> None:
    server, other = (case(sides[1], tmp_path / name, rows=5, device=4) for name in ("rows", "other"))
    Trace().play(8, other)
    trace = Trace()
    with full_disk(5 * STRIDE["int8"]):
        trace.play(5, server)
        server.dispatch(trace.first[-1])
        for _ in range(3):
            with pytest.raises(fastagg.CacheError, match="no room for another row"):
                server.receive(trace.first[-1], torch.ones(SIZE))
        assert open_tasks(server) == 1
    trace.play(3, server)  # there is room again
    same(server, other)


def test_a_device_without_memory(
    sides: tuple[Side, Side], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    """It holds as many rows as it has room for, and says so if those are too few."""
    asked, memory_on = 0, tiered._memory_on

    def first_two(device: torch.device, count: int) -> Tensor | None:
        nonlocal asked
        asked += 1
        return memory_on(device, count) if asked <= 2 else None

    monkeypatch.setattr(tiered, "_memory_on", first_two)
    server, other = case(sides[1], tmp_path / "rows", rows=40), case(sides[0], tmp_path / "other")
    Trace(9).play(40, server, other)
    same(other, server)
    assert server.tiers()["device_frames"] == 4 and asked == 3
    none = case(sides[1], tmp_path / "none")
    none.dispatch(0)
    with pytest.raises(fastagg.CacheError, match="the device has no memory for 4 rows"):
        none.receive(0, torch.ones(SIZE))
    assert none._engine.open_tasks == 1  # its state cannot be read
    monkeypatch.setattr(tiered, "_memory_on", memory_on)
    assert none.receive(0, torch.ones(SIZE)).kept


def test_a_device_needs_room_for_an_arrival(sides: tuple[Side, Side], tmp_path: Path) -> None:
    with pytest.raises(fastagg.ConfigError, match=r"device: \d+ bytes hold 3 rows .* an arrival needs 4"):
        case(sides[1], tmp_path, device=3)
    with pytest.raises(fastagg.ConfigError, match="this server is on the CPU"):
        case(sides[0], tmp_path, device=8)
