"""What may come in: no sequence of accepted updates makes anything non-finite, ids are what they say, and nothing that
shares memory with the server, or a process, gets a wrong number."""

import copy
import os
import pickle
import signal
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support import inside
from support.models import same
from support.operations import CHANGES, READS
from support.presets import PRESETS, SYNCHRONOUS, calls, model, update

import fastagg
from fastagg.durable import log
from fastagg.errors import CheckpointError, ConfigError, NonFiniteUpdate, UnknownVersion, UpdateTooLarge
from fastagg.storage.cache import ClientCache

pytestmark = pytest.mark.kernel

D = 300


def all_finite(value: Any) -> bool:
    """Whether every floating-point number in a nested state is."""
    if isinstance(value, torch.Tensor):
        return not value.is_floating_point() or bool(torch.isfinite(value).all())
    if isinstance(value, dict):
        return all(map(all_finite, value.values()))
    if isinstance(value, (list, tuple)):
        return all(map(all_finite, value))
    return not isinstance(value, float) or (value == value and abs(value) != float("inf"))


def rows_finite(server: fastagg.Server) -> bool:
    state = server.state_dict(copy=False)["direction"]
    cache = getattr(inside.direction(server), "cache", None)
    if cache is None:
        return True
    assert isinstance(cache, ClientCache)
    return all(bool(torch.isfinite(inside.row_in(cache, slot)).all()) for slot in state["cache"]["slots"])


def push(server: fastagg.Server, name: str, updates: Callable[[int], torch.Tensor], samples: float, turns: int) -> int:
    """Play `turns` arrivals; each is refused by name with nothing changed, or leaves everything finite. Returns how
    many were refused."""
    refused, open_versions = 0, dict[int, int]()
    for call in calls(name, turns):
        if call.number is None:
            open_versions[call.client] = server.dispatch(call.client).version
            continue
        before = server.state_dict()
        try:
            server.receive(call.client, updates(call.number), open_versions[call.client], samples)
        except UpdateTooLarge:
            refused += 1
            assert same(server.state_dict(), before)
            server.forget(call.client, open_versions[call.client])
        except UnknownVersion:
            assert name.startswith(SYNCHRONOUS)  # its round went on without it
        else:
            assert all_finite(server.state_dict(copy=False)) and rows_finite(server), call
    return refused


ADAPTIVE = {
    "momentum": fastagg.Momentum(1.0, beta=0.999),
    "adam": fastagg.Adam(1.0, eps=1e-30),
    "yogi": fastagg.Yogi(1e6, betas=(0.999, 0.9)),
    "adagrad": fastagg.Adagrad(1.0),
    "amsgrad": fastagg.AMSGrad(1.0, bias_correction=True),
    "lookahead": fastagg.Lookahead(1.0),
    "nesterov": fastagg.Nesterov(1.0, 0.999),
    "delayed": fastagg.DelayedNesterov(1.0, 0.999, 2),
}
MORE: dict[str, Any] = {
    **{f"Single, {name}": lambda x, o=o, **k: fastagg.Server(x, fastagg.Single(), o, **k)
       for name, o in ADAPTIVE.items()},
    **{f"ACE, {name}": lambda x, o=o, **k: fastagg.ACE(x, lr=1.0, num_clients=3, optimizer=o, **k)
       for name, o in ADAPTIVE.items()},
    "Single, lr 1e30": lambda x, **k: fastagg.Server(x, fastagg.Single(), fastagg.SGD(1e30), **k),
}  # fmt: skip
ALL = {**PRESETS, **MORE}


@pytest.mark.parametrize("size", [1e15, 1e27, 3e38], ids=str)
@pytest.mark.parametrize("name", ALL)
def test_huge_updates_are_refused_or_harmless(name: str, size: float) -> None:
    length = 9001 if size == 3e38 else D  # long enough to be read once, while it steps
    server = ALL[name](model(length))
    signs = torch.where(torch.arange(length) % 3 == 0, -1.0, 1.0)
    refused = push(server, name, lambda number: signs * (size if number % 4 else size / 7), 2.0, 24)
    if size > 2.0**60 and "clipped" not in name:
        assert refused > 0
    # It still works: nothing that was let in keeps later updates out for ever.
    before = server.version
    assert push(server, name, lambda number: update(number, length), 2.0, 12) == 0
    assert server.version > before


@pytest.mark.parametrize("samples", [1e-30, 1e10, 1e30])
@pytest.mark.parametrize("name", PRESETS)
def test_huge_weights(name: str, samples: float) -> None:
    try:
        server = ALL[name](model(D), weighting="samples")
    except (ConfigError, TypeError):
        return
    push(server, name, lambda number: update(number, D) * 1e6, samples, 15)
    before = server.version
    push(server, name, lambda number: update(number, D), 1.0, 15)
    push(server, name, lambda number: update(number, D), 1e-30, 15)
    assert server.version > before


@pytest.mark.parametrize("name", ["FedBuff", "FADAS, corrected", "FedAvg"])
def test_trained_models_with_huge_weights_or_elements(name: str) -> None:
    """Folding assumes the largest possible updates. Models that it cannot take with this bound are added one by one."""
    server = PRESETS[name](model(D), weighting="samples")
    for round in range(3):
        tasks = [server.dispatch(client) for client in range(3)]
        answers = [(task, task.flat + update(task.client + round, D).float(), 1e25) for task in tasks]
        outcomes = server.receive_many(
            [fastagg.Answer.to(*answer) for answer in answers[: 2 if name.startswith("FADAS") else None]]
        )
        assert all(isinstance(outcome, fastagg.Receipt) for outcome in outcomes), outcomes
    tasks = [server.dispatch(client) for client in range(3)]
    before = server.state_dict()
    (outcome,) = server.receive_many([fastagg.Answer.to(tasks[0], torch.full((D,), 3e38), 1.0)])
    assert isinstance(outcome, UpdateTooLarge) and same(server.state_dict(), before)


@pytest.mark.parametrize(
    "name", ["FedBuff", "FADAS, corrected", "FedAvg", "FedAvg, deterministic", "ASGD", "ACE, fp32"]
)
@pytest.mark.parametrize("size", [1e15, 1e27, 3e38], ids=str)
def test_huge_updates_pass_where_they_are_clipped(name: str, size: float) -> None:
    server = PRESETS[name](model(D), clip_norm=1.0)
    assert push(server, name, lambda number: torch.full((D,), size), 1.0, 24) == 0
    assert float((server.flat - model(D)).norm()) < 100


def test_huge_control_variates() -> None:
    server = fastagg.FedAC(model(D), lr=0.01, buffer_size=2)
    for client in range(12):
        server.dispatch(client)
        before = server.state_dict()
        try:
            server.receive(client, update(client, D), control=torch.full((D,), 3e38))
        except UpdateTooLarge:
            assert same(server.state_dict(), before)
        assert all_finite(server.state_dict())


def test_huge_running_statistics() -> None:
    params = {"w": model(20), "bn.running_mean": torch.zeros(4), "bn.running_var": torch.ones(4)}
    server = fastagg.FedBuff(params, buffer_size=3)
    for client in range(9):
        server.dispatch(client)
        before = server.state_dict()
        given = {**params, "bn.running_mean": torch.full((4,), 3e38), "bn.running_var": torch.full((4,), 3e38)}
        try:
            server.receive(client, given)
        except (UpdateTooLarge, NonFiniteUpdate):
            assert same(server.state_dict(), before)
        assert all_finite(server.state_dict())


@pytest.mark.parametrize("name", ["FADAS, corrected", "ACE, int8, by samples", "ACE, fp32", "CA2FL, fp32", "FedAC",
                                  "FedAsync, hinge", "FedBuff"])  # fmt: skip
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_state_that_is_not_finite_is_not_loaded(name: str, value: float) -> None:
    server = {**PRESETS, "ACE, int8, by samples": PRESETS["ACE, partial, int8, by samples"]}[name](model(D))
    push(server, name, lambda number: update(number, D), 2.0, 5)
    good = server.state_dict()

    def vectors(held: Any) -> list[torch.Tensor]:
        if isinstance(held, torch.Tensor):
            return [held] if held.is_floating_point() and held.numel() else []
        items = held.values() if isinstance(held, dict) else held if isinstance(held, (list, tuple)) else ()
        return [vector for item in items for vector in vectors(item)]

    count = len(vectors(good))
    assert count >= 2
    for which in range(count):
        bad = copy.deepcopy(good)
        vectors(bad)[which].reshape(-1)[0] = value
        with pytest.raises(CheckpointError, match=r"NaN or infinity|not finite|damaged"):
            server.load_state_dict(bad)
        assert same(server.state_dict(), good)


# -- ids ---------------------------------------------------------------------------------------------------------


def test_ids_that_are() -> None:
    server = fastagg.FedBuff(model(D), buffer_size=100)
    ids = [2**64 - 1, -(2**63), np.int64(7), np.uint8(8), np.str_("n"), "", "é" * 256, "\0", "1", 1]
    for client in ids:
        task = server.dispatch(client)
        assert task.client == client and type(task.client) in (int, str)
        assert server.receive(client, update(0, D)).client == client
    numbered = fastagg.FedBuff(model(D), num_clients=3)
    assert numbered.dispatch(np.int64(2)).client == 2
    assert len(server.state_dict()["tasks"]["clients"]) == len(set(ids)) == len(ids)


# -- memory of the server's own -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["FedBuff, one", "ASGD", "FedBuff", "FedAvg", "ACE, fp32", "CA2FL, one",
                                  "FedAsync, hinge", "FADAS, corrected", "AsyncFedED"])  # fmt: skip
@pytest.mark.parametrize("view", ["whole", "as lists"])
def test_an_update_that_is_the_servers_own_memory(name: str, view: str) -> None:
    """The same as a copy of it, where the step is in place too, and where it is read once."""
    size = 8192
    params: Any = [model(size)[: size // 2], model(size)[size // 2 :]] if view == "as lists" else model(size)
    servers = [PRESETS[name](params) for _ in range(2)]
    for server in servers:
        for client in range(3):  # later versions are sent to nobody, so that the step is in place
            server.dispatch(client)
    for turn in range(3):
        for own, server in enumerate(servers):
            flat = server.flat
            given: Any = [flat[size // 2 :], flat[: size // 2]] if view == "as lists" else flat
            if own:
                given = [one.clone() for one in given] if isinstance(given, list) else given.clone()
            server.receive(turn, given, num_samples=1.0)
        assert torch.equal(servers[0].flat, servers[1].flat), turn


@pytest.mark.parametrize("shift", [1, 3, 64, 1023])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_an_update_that_is_the_servers_own_memory_shifted(optimizer: str, shift: int) -> None:
    """Two pieces, the first of which begins a few elements into the model, and the other way round."""
    size = 8192
    how = fastagg.SGD(1.0) if optimizer == "sgd" else fastagg.Adam(0.1)
    for pieces in (lambda x: [x[shift:], x[:shift]], lambda x: [x[: size - shift], x[size - shift :]]):
        flat = model(size)
        x0 = [piece.clone() for piece in pieces(flat)]
        servers = [fastagg.Server(x0, fastagg.Single(), how) for _ in range(2)]
        for server in servers:
            server.dispatch("a")
            server.dispatch("b")
            server.receive("b", [torch.ones_like(piece) for piece in x0])
        first, second = servers
        n = x0[0].numel()
        other = second.flat.clone()
        first.receive("a", [first.flat[size - n :], first.flat[: size - n]])
        second.receive("a", [other[size - n :], other[: size - n]])
        assert torch.equal(first.flat, second.flat)


# -- processes, copies --------------------------------------------------------------------------------------------


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_is_told_whose_server_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "SMALL", 0)  # its upload goes to a file
    opened = fastagg.open(tmp_path / "state", lambda: fastagg.ASGD(torch.zeros(D), lr=1.0), durability="none")
    asked = opened.dispatch("a")
    upload = opened.receiving("a", task=asked.id)
    upload.write(bytes(2 * D))  # the child ends it
    server = fastagg.FedBuff(model(D), buffer_size=1)
    server.dispatch(1)
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with inside.engine(server).locked:
            held.set()
            done.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()

    def called(name: str) -> None:
        """Raise what the operation raises, or the error among its outcomes."""
        outcome = {**CHANGES, **READS}[name](server, 1, 0)
        for error in outcome if isinstance(outcome, list) else []:
            raise error

    unlocked = ("version", "config", "lr")  # which take no lock
    calls: list[Callable[[], Any]] = [partial(called, name) for name in {**CHANGES, **READS} if name not in unlocked]
    calls += [lambda: server.save("/dev/null"), opened.flush, opened.checkpoint]
    child = os.fork()
    if child == 0:
        signal.alarm(120)
        wrong = 0
        upload.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
        for number, call in enumerate(calls):
            try:
                call()
                wrong = wrong or 100 + number
            except ConfigError as error:
                wrong = wrong or (0 if "belongs to the process" in str(error) else 50 + number)
            except BaseException:
                wrong = wrong or 1 + number
        os._exit(wrong)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    done.set()
    thread.join()
    assert code == 0, code  # a signal's number, negated: it hung
    with upload:
        upload.write(bytes(2 * D))
    assert upload.receipt.applied
    opened.close()
    assert server.receive(1, update(0, D)).applied


@pytest.mark.parametrize("name", PRESETS)
def test_copies_are_independent(name: str) -> None:
    server = PRESETS[name](model(D))
    push(server, name, lambda number: update(number, D), 2.0, 7)
    before = server.state_dict()
    other = copy.deepcopy(server)
    assert type(other) is type(server) and same(other.state_dict(), before) and repr(other) == repr(server)
    for one in (other, server):
        if not name.startswith(SYNCHRONOUS):
            push(one, name, lambda number: update(number + 3, D), 2.0, 7)
            assert not same(one.state_dict(), before)
    if not name.startswith(SYNCHRONOUS):
        assert same(other.state_dict(), server.state_dict())
    with pytest.raises(TypeError, match=r"server\.save"):
        pickle.dumps(server)
    assert type(server.direction).__name__ in repr(server) and f"{D} parameters" in repr(server)
    assert f"version {server.version}" in repr(server)
