"""An answer's way on a CUDA device: what is asked of the device, on whose stream, and what stays until it is done.

The emulated device does the work of a stream at once or only when somebody must wait for it, at random.
"""

import gc
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import fastagg
from fastagg._build import native
from fastagg.errors import DeviceError, FastaggError, NonFiniteUpdate
from fastagg.ops.place import emulated

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.cuda,
    pytest.mark.skipif(not native.cuda_emulated, reason="needs a build that emulates a GPU"),
]

SIZE, CLIENTS = 1500, 4
Make = Callable[..., fastagg.Server]
RULES: dict[str, Make] = {
    "ASGD": lambda **k: fastagg.ASGD(model(), lr=0.1, **k),
    "FedBuff": lambda **k: fastagg.FedBuff(model(), lr=0.5, buffer_size=3, **k),
    "FADAS": lambda **k: fastagg.FADAS(model(), lr=0.1, buffer_size=3, delay_threshold=1, **k),
    "FADAS in 8 bits": lambda **k: fastagg.FADAS(model(), lr=0.1, buffer_size=3, moments="8bit", **k),
    "FedAsync": lambda **k: fastagg.FedAsync(model(), alpha=0.5, policy="polynomial", a=0.5, **k),
    "FedBuff, clipped": lambda **k: fastagg.FedBuff(model(), buffer_size=2, clip_norm=5.0, weighting="samples", **k),
    "ACE int8": lambda **k: fastagg.ACE(model(), lr=0.1, num_clients=CLIENTS, cache="int8", **k),
    "ACED bf16": lambda **k: fastagg.ACED(
        model(), lr=0.1, num_clients=CLIENTS, cache="bf16", max_delay=3, warmup="partial", **k
    ),
    "CA2FL": lambda **k: fastagg.CA2FL(model(), lr=0.1, num_clients=CLIENTS, buffer_size=3, cache="int8", **k),
}
ROBUST: dict[str, Make] = {
    rule: lambda rule=rule, **k: fastagg.Server(
        model(), fastagg.Robust(rule, 5), fastagg.Adam(0.1), answers_per_step=None, **k
    )
    for rule in ("median", "krum")
}


def model() -> Tensor:
    return torch.linspace(-1, 1, SIZE)


def update_of(turn: int) -> Tensor:
    return torch.randn(SIZE, generator=torch.Generator().manual_seed(turn))


@contextmanager
def on_stream(stream: int) -> Iterator[None]:
    """Let ops of this thread run on the emulated device, and on this stream of it."""
    before = native.emulation.current_stream()
    with emulated():
        native.emulation.use_stream(stream)
        try:
            yield
        finally:
            native.emulation.use_stream(before)


def expected(make: Make, turns: int) -> fastagg.Server:
    """The same answers on the CPU."""
    with emulated(False):
        server = make()
        for turn in range(turns):
            server.dispatch(turn % CLIENTS)
            server.receive(turn % CLIENTS, update_of(turn), num_samples=1 + turn % 3)
    return server


def state_of(server: fastagg.Server) -> dict[str, Any]:
    state = server.state_dict()
    return {key: state[key] for key in ("flat", "moments", "direction", "version")}


def same(a: Any, b: Any) -> None:
    if isinstance(a, dict):
        assert a.keys() == b.keys()
        for key in a:
            same(a[key], b[key])
    elif isinstance(a, Tensor):
        assert torch.equal(a, b)
    else:
        assert a == b


# Launches of an answer that makes no step, and of one that does.
LAUNCHES = {
    "ASGD": {2}, "FedAsync": {2}, "FedBuff": {2}, "FADAS": {2}, "FADAS in 8 bits": {2}, "FedBuff, clipped": {2},
    "ACE int8": {2, 3, 4}, "ACED bf16": {2, 3, 4}, "CA2FL": {2, 3, 4},
}  # fmt: skip


ROWS = ("ACE int8", "ACED bf16", "CA2FL")


@pytest.mark.parametrize("sends", ["device", "host"])
@pytest.mark.parametrize("name", RULES)
def test_what_an_answer_asks_of_the_device(name: str, sends: str) -> None:
    """A norm and a step, and one wait. Little data is read where it lies, and nothing is set to zero."""
    with on_stream(0):
        native.emulation.unload()
        server = RULES[name]()
        for turn in range(24):
            task = server.dispatch(turn % CLIENTS)
            update = update_of(turn) if sends == "device" else update_of(turn).numpy()
            native.emulation.take_counts()
            server.receive(task.client, update, num_samples=1)
            asked = native.emulation.take_counts()
            assert asked.pop("launches") in LAUNCHES[name]
            if name in ROWS:  # new memory of the resummation
                asked["memsets"] = 0
            # all kernels were loaded when the server was made
            assert asked == {"copies": 0, "memsets": 0, "records": 2, "orders": 0, "waits": 0, "loads": 0}


def test_a_scrub_sends_the_weights_of_its_rows_alone() -> None:
    """Of 20,000 clients they would be 80 KB at each arrival, which takes a copy."""
    updates = [torch.full((8,), float(turn)) for turn in range(40)]
    found = []
    for on in (False, True):
        with emulated(on):
            server = fastagg.ACE(torch.zeros(8), lr=0.1, num_clients=20_000, cache="int8", warmup="partial", seed=1)
            for turn, update in enumerate(updates):
                server.dispatch(turn)
                native.emulation.take_counts()
                server.receive(turn, update)
                asked = native.emulation.take_counts()
                assert not on or (asked["launches"] in (2, 3, 4) and asked["copies"] == 0)
            found.append(state_of(server))
    same(*found)


def test_many_clients_that_expire_at_once() -> None:
    """A launch takes 16 of them; parameters stay below 4 KB."""
    clients, found = 40, []
    for on in (False, True):
        with emulated(on):
            server = fastagg.ACED(
                model(), lr=0.1, num_clients=clients, cache="bf16", max_delay=clients, warmup="full", seed=1
            )
            for turn in range(clients):
                server.dispatch(turn)
            for turn in range(3 * clients):
                client = turn if turn < clients else 0
                server.receive(client, update_of(turn))
                server.dispatch(client)
            found.append(state_of(server))
    same(*found)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", [*RULES, *ROBUST])
def test_random_streams(name: str, seed: int) -> None:
    """Whoever sends on whichever stream: the bits are the CPU's, and so is what a client is sent. A sender lets its
    tensor go as soon as ``receive`` returns."""
    draw, turns = random.Random(seed), 25
    streams = [native.emulation.new_stream() for _ in range(3)]
    make = {**RULES, **ROBUST}[name]
    whole = expected(make, 0)
    with on_stream(draw.choice(streams)):
        server = make()
    for turn in range(turns):
        client = turn % CLIENTS
        encoded = fastagg.encode(update_of(turn), "int8", seed=turn) if turn % 5 == 3 else None
        with emulated(False):
            there = whole.dispatch(client).flat
            whole.receive(client, encoded or update_of(turn), num_samples=1 + turn % 3)
        stream = draw.choice(streams)
        with on_stream(stream):
            here = server.dispatch(client).flat
            native.emulation.settle(stream)  # as an op of torch on this stream would
            assert torch.equal(here, there)
        with on_stream(draw.choice(streams)):
            update: Any = encoded or update_of(turn)
            if draw.random() < 0.3 and encoded is None:
                update = update.numpy()
            server.receive(client, update, num_samples=1 + turn % 3)
            del update, encoded, here
            _ = [torch.full((SIZE,), float("nan")) for _ in range(4)]  # takes the memory, if it is free
    last = draw.choice(streams)
    with on_stream(last):
        assert server.flat is not None
        native.emulation.settle(last)
        same(state_of(server), state_of(whole))


def test_threads_with_streams_of_their_own() -> None:
    each = 30
    with on_stream(native.emulation.new_stream()):
        server = fastagg.FedBuff(torch.zeros(SIZE), lr=1.0, buffer_size=4 * each)
        tasks = [[server.dispatch(first * each + i) for i in range(each)] for first in range(4)]

    def send(mine: list[fastagg.Dispatch]) -> None:
        native.emulation.use_stream(native.emulation.new_stream())
        for task in mine:
            server.receive(task.client, torch.ones(SIZE), task.version)

    with emulated(), ThreadPoolExecutor(len(tasks)) as pool:
        list(pool.map(send, tasks))
    last = native.emulation.new_stream()
    with on_stream(last):
        flat = server.flat
        native.emulation.settle(last)
        assert server.version == 1 and torch.equal(flat, torch.ones(SIZE))


@pytest.mark.parametrize("name", RULES)
def test_a_launch_that_fails(name: str) -> None:
    """The answer does not count, and counts when it comes again."""
    turns, plain = 12, expected(RULES[name], 12)
    with on_stream(0):
        server = RULES[name]()
        for turn in range(turns):
            server.dispatch(turn % CLIENTS)
            before = server.version
            for failing in (0, 1):
                native.emulation.fail_launch(failing)
                with pytest.raises(DeviceError, match="emulated"):
                    server.receive(turn % CLIENTS, update_of(turn), num_samples=1 + turn % 3)
                assert server.version == before
            server.receive(turn % CLIENTS, update_of(turn), num_samples=1 + turn % 3)
        same(state_of(server), state_of(plain))


@pytest.mark.parametrize("name", ROBUST)
def test_a_launch_that_fails_where_updates_wait(name: str) -> None:
    """Whichever it is of those that find distances, combine and step: the answer counts when it comes again."""
    plain = expected(ROBUST[name], 5)
    with on_stream(0):
        server = ROBUST[name]()
        for turn in range(5):
            server.dispatch(turn % CLIENTS)
            launches = 1 if turn < 4 else 3 if name == "median" else 4  # of them a norm
            for failing in range(launches):
                native.emulation.fail_launch(failing)
                with pytest.raises(DeviceError, match="emulated"):
                    server.receive(turn % CLIENTS, update_of(turn), num_samples=1)
                assert server.version == 0
            native.emulation.fail_launch(-1)
            server.receive(turn % CLIENTS, update_of(turn), num_samples=1)
        same(state_of(server), state_of(plain))


@pytest.mark.parametrize("name", ROWS)
def test_a_launch_that_fails_behind_others(name: str) -> None:
    """Rows and the sum have changed already, so the server refuses all that follows, and nothing is saved of it."""
    with on_stream(0):
        server = RULES[name]()
        with pytest.raises(DeviceError, match="emulated"):
            for turn in range(24):
                server.dispatch(turn % CLIENTS)
                native.emulation.fail_launch(2)
                server.receive(turn % CLIENTS, update_of(turn))
        native.emulation.fail_launch(-1)
        for act in (lambda: server.receive(0, update_of(0)), server.state_dict, lambda: server.flat):
            with pytest.raises(DeviceError, match="state is lost"):
                act()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_does_not_touch_the_device() -> None:
    """Nor does it wait: the emulation ends a process that calls it in a child."""
    stream = native.emulation.new_stream()
    with on_stream(stream):
        server = fastagg.FADAS(model(), lr=0.1, buffer_size=2)
        for turn in range(5):
            server.dispatch(turn)
            receipt = server.receive(turn, update_of(turn))
        child = os.fork()
        if child == 0:
            refused = 0
            native.emulation.use_stream(native.emulation.new_stream())
            for act in (lambda: server.dispatch(9), lambda: server.receive(4, update_of(0)), lambda: server.flat):
                try:
                    act()
                except FastaggError:
                    refused += 1
            del server, receipt, act
            gc.collect()
            os._exit(refused)
        for _ in range(600):
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                break
            time.sleep(0.1)
        else:
            os.kill(child, signal.SIGKILL)
            pytest.fail("the child hangs")
        assert os.waitstatus_to_exitcode(status) == 3
        assert receipt.update_norm > 0 and server.flat.isfinite().all()


def test_a_folder_of_a_server_on_a_device(tmp_path: Path) -> None:
    """Its log has the statistics, too, and sends all of it to the device again."""
    rules: dict[str, Callable[[], fastagg.Server]] = {
        "FedBuff": lambda: fastagg.FedBuff(batch_norm(), buffer_size=2),
        "AsyncFedED": lambda: fastagg.AsyncFedED(batch_norm(), lam=1.0, eps=1.0),
        "ACE, encoded": lambda: fastagg.ACE({"w": torch.zeros(300)}, lr=0.1, num_clients=6, cache="int8"),
        "median": lambda: fastagg.Server({"w": torch.zeros(300)}, fastagg.Robust("median", 2), fastagg.Adam(0.1)),
        "Krum, encoded": lambda: fastagg.Server({"w": torch.zeros(300)}, fastagg.Robust("krum", 4), fastagg.Adam(0.1)),
        "AsyncFedED, encoded": lambda: fastagg.AsyncFedED({"w": torch.zeros(300)}, lam=1.0, eps=1.0),
    }
    for name, make in rules.items():
        with emulated():
            plain = make()
            for first in (0, 3):  # a folder that is opened again
                with fastagg.open(tmp_path / name, make) as server:
                    for turn in range(first, first + 3):
                        for one in (server, plain):
                            task = one.dispatch(turn)
                            sent: Any = {key: torch.full_like(value, turn % 3) for key, value in task.params.items()}
                            if name.endswith("encoded"):
                                sent = fastagg.encode({"w": update_of(turn)[:300]}, "int8", seed=turn)
                            one.receive(turn, sent)
            with fastagg.open(tmp_path / name, make) as server:
                for key, value in plain.parameters().items():
                    assert torch.equal(server.parameters()[key], value), (name, key)


def batch_norm() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.BatchNorm1d(5))


@pytest.mark.parametrize("sends", ["device", "host"])
def test_an_update_that_is_not_finite(sends: str) -> None:
    streams = [native.emulation.new_stream() for _ in range(2)]
    bad: Any = torch.full((SIZE,), float("inf"))
    bad = bad if sends == "device" else bad.numpy()
    with on_stream(streams[0]):
        server = fastagg.FedBuff(torch.zeros(SIZE), lr=1.0, buffer_size=2)
        for client in range(2):
            server.dispatch(client)
        with pytest.raises(NonFiniteUpdate, match="in the flat vector"):
            server.receive(0, bad)
        assert not server.receive(0, torch.zeros(SIZE)).applied
    with on_stream(streams[1]):
        receipt = server.receive(1, torch.full((SIZE,), 2.0))
        assert receipt.applied and receipt.step_size == 1.0
        assert receipt.update_norm == pytest.approx(2.0 * SIZE**0.5) and receipt.weight == 1.0
        flat = server.flat
        native.emulation.settle(streams[1])
        assert torch.equal(flat, torch.ones(SIZE))


def test_a_server_that_goes_with_work_in_flight() -> None:
    """Its memory is free only when kernels have done with it."""
    for _ in range(30):
        with on_stream(native.emulation.new_stream()):
            server = fastagg.FADAS(torch.zeros(SIZE), lr=0.1, buffer_size=1)
            for client in range(3):
                server.dispatch(client)
                server.receive(client, torch.ones(SIZE))
            native.emulation.take_counts()
            del server
            gc.collect()
            _ = [torch.full((SIZE,), float("nan")) for _ in range(8)]


@pytest.mark.parametrize("size", [1, 3, 4096, 4097, 100_003, 300_001])
def test_updates_from_the_host(size: int) -> None:
    """Those that kernels read where they lie, those that are copied, and those that are sent in chunks."""
    update = np.random.default_rng(size).standard_normal(size).astype(np.float32)
    found = []
    for on in (False, True):
        with emulated(on):
            server = fastagg.FADAS(torch.zeros(size), lr=0.1, buffer_size=2)
            for turn in range(6):
                server.dispatch(turn)
                mine = update * (turn + 1)
                server.receive(turn, mine if turn % 2 else [mine])
                mine[:] = np.nan  # it is the sender's again
            found.append(server.flat.clone())
    assert torch.equal(*found)
