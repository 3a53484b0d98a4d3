"""A server's guarantees: updates count once and completely, only versions in flight are kept, errors are named."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pytest
import torch
from support import inside
from support.models import Residual, same

import fastagg
from fastagg import errors

pytestmark = pytest.mark.kernel

SERVERS = {
    "FADAS": lambda x, **k: fastagg.FADAS(x, buffer_size=3, **k),
    "FedBuff": lambda x, **k: fastagg.FedBuff(x, buffer_size=2, **k),
    "FedAsync": lambda x, **k: fastagg.FedAsync(x, policy="hinge", **k),
    "AsyncFedED": lambda x, **k: fastagg.AsyncFedED(x, lam=1.0, eps=1.0, **k),
    "ACE": lambda x, **k: fastagg.ACE(x, lr=0.1, num_clients=3, cache="int8", warmup="partial", **k),
    "ACED": lambda x, **k: fastagg.ACED(x, lr=0.1, num_clients=3, max_delay=1, warmup="partial", **k),
    "CA2FL": lambda x, **k: fastagg.CA2FL(x, num_clients=3, buffer_size=2, cache="int4", **k),
    "FedAC": lambda x, **k: fastagg.FedAC(x, lr=0.1, buffer_size=2, **k),
    "FedAvg": lambda x, **k: fastagg.FedAvg(x, clients_per_round=2, weighting="uniform", **k),
}
D = 300


def running(name: str) -> fastagg.Server:
    """A server during a run: a half-full buffer, and a client in flight."""
    server = SERVERS[name](torch.linspace(-1, 1, D))
    for client in range(3):
        server.dispatch(client)
    server.receive(0, torch.full((D,), 0.5))
    return server


def nan_at(position: int, value: float = math.nan, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    update = torch.zeros(D, dtype=dtype)
    update[position] = value
    return update


BAD: dict[str, tuple[dict[str, Any], tuple[type[Exception], ...]]] = {
    "length": ({"update": torch.zeros(D - 1)}, (errors.ShapeMismatch, ValueError)),
    "shape": ({"update": torch.zeros(D, 1)}, (errors.ShapeMismatch, ValueError)),
    "arrays": ({"update": [torch.zeros(D), torch.zeros(1)]}, (errors.ShapeMismatch, ValueError)),
    "float64": ({"update": torch.zeros(D, dtype=torch.float64)}, (errors.DTypeMismatch, TypeError, ValueError)),
    "integers": ({"update": np.zeros(D, dtype=np.int32)}, (errors.DTypeMismatch, TypeError)),
    "NaN first": ({"update": nan_at(0)}, (errors.NonFiniteUpdate, ValueError)),
    "NaN last": ({"update": nan_at(D - 1)}, (errors.NonFiniteUpdate, ValueError)),
    "Inf": ({"update": nan_at(7, math.inf)}, (errors.NonFiniteUpdate, ValueError)),
    "fp16 -Inf": ({"update": nan_at(7, -math.inf, torch.float16)}, (errors.NonFiniteUpdate, ValueError)),
    "unknown client": ({"client": 99}, (errors.UnknownClient, KeyError)),
    "strange client": ({"client": 1.5}, (errors.UnknownClient, KeyError)),
    "version never sent": ({"version": 17}, (errors.UnknownVersion, KeyError)),
    "answered already": ({"client": 0}, (errors.UnknownVersion, KeyError)),
    "negative samples": ({"num_samples": -1}, (errors.ConfigError, ValueError)),
    "NaN samples": ({"num_samples": math.nan}, (errors.ConfigError, ValueError)),
    "other kind": ({"kind": "nothing"}, (errors.ConfigError, ValueError)),
}


@pytest.mark.parametrize("what", BAD)
@pytest.mark.parametrize("name", SERVERS)
def test_bad_input_is_named_and_changes_nothing(name: str, what: str) -> None:
    change, kinds = BAD[what]
    server, untouched = running(name), running(name)
    before, live = server.state_dict(), server.flat.clone()
    for kind in (*kinds, errors.FastaggError):
        with pytest.raises(kind) as caught:
            server.receive(**{"client": 1, "update": torch.zeros(D), **change})
        assert len(str(caught.value)) > 10
    assert same(server.state_dict(), before) and torch.equal(server.flat, live)
    if name != "FedAvg":  # and what follows is as if it had never come
        good = torch.linspace(0, 1, D)
        assert server.receive(1, good) == untouched.receive(1, good)
        assert torch.equal(server.flat, untouched.flat)


def test_bad_buffers_change_nothing() -> None:
    model = Residual()
    server = fastagg.FedBuff(model, buffer_size=1)
    task = server.dispatch(0)
    update = task.delta(model)
    update["stem.1.running_var"][2] = math.nan
    before = server.state_dict()
    with pytest.raises(errors.NonFiniteUpdate, match="buffers"):
        server.receive(0, update)
    assert same(server.state_dict(), before)


@pytest.mark.parametrize(
    "build",
    [
        lambda x: fastagg.FADAS(x, lr=-1e-3),
        lambda x: fastagg.FADAS(x, lr=math.nan),
        lambda x: fastagg.FADAS(x, buffer_size=0),
        lambda x: fastagg.FADAS(x, buffer_size=1.5),
        lambda x: fastagg.FADAS(x, buffer_size=True),
        lambda x: fastagg.FADAS(x, betas=(1.0, 0.9)),
        lambda x: fastagg.FADAS(x, betas=(0.9,)),
        lambda x: fastagg.FADAS(x, eps=0.0),
        lambda x: fastagg.FADAS(x, eps=1e-60),
        lambda x: fastagg.FADAS(x, delay_threshold=-1),
        lambda x: fastagg.FADAS(x, delay_rule="other"),
        lambda x: fastagg.FADAS(x, delay_rule="drop"),  # another rule's
        lambda x: fastagg.FADAS(x, learning_rate=0.1),
        lambda x: fastagg.FedBuff(x, lr="fast"),
        lambda x: fastagg.FedAsync(x, alpha=0.0),
        lambda x: fastagg.FedAsync(x, alpha=1.5),
        lambda x: fastagg.FedAsync(x, policy="other"),
        lambda x: fastagg.FedAsync(x, policy="hinge", a=0.0),
        lambda x: fastagg.FedAsync(x, policy="constant", a=1.0),
        lambda x: fastagg.FedBuff(x, clip_norm=0),
        lambda x: fastagg.FedBuff(x, weighting="other"),
        lambda x: fastagg.FedBuff(x, buffers="other"),
        lambda x: fastagg.FedBuff(x, num_clients=0),
        lambda x: fastagg.FedBuff(x, seed=-1),
        lambda x: fastagg.FedBuff(x, device="nowhere"),
        lambda x: fastagg.ACE(x, lr=0.1, num_clients=0),
        lambda x: fastagg.ACE(x, lr=0.1, num_clients=2, cache="int3"),
        lambda x: fastagg.ACED(x, lr=0.1, num_clients=2, max_delay=-1),
        lambda x: fastagg.AsyncFedED(x, lam=0.0, eps=1.0),
        lambda x: fastagg.AsyncFedED(x, lam=1.0, eps=1.0, local_steps=0),
        lambda x: fastagg.ACE(x, lr=0.1, num_clients=2, mode="clients"),
        lambda x: fastagg.Server(x, optimizer="adam"),
        lambda x: fastagg.Server(x, learning_rate=0.1),
        lambda x: fastagg.set_num_threads(0),
        lambda x: fastagg.set_isa("mmx"),
    ],
)
def test_settings_out_of_range(build: Any) -> None:
    with pytest.raises(errors.ConfigError) as caught:
        build(torch.zeros(4))
    assert isinstance(caught.value, ValueError)


@pytest.mark.skipif(torch.cuda.is_available(), reason="asks for a device that is not there")
def test_cuda_without_a_device_says_so() -> None:
    with pytest.raises(errors.ConfigError, match="no CUDA device"):
        fastagg.FedBuff(torch.zeros(4), device="cuda")


def test_ids_outside_the_range_are_unknown() -> None:
    server = fastagg.FedBuff(torch.zeros(4), num_clients=3)
    for client in (-1, 3, "0"):
        with pytest.raises(errors.UnknownClient):
            server.dispatch(client)
    assert server.dispatch(np.int64(2)).client == 2


def test_exactly_once_and_the_last_dispatched() -> None:
    server = fastagg.FedBuff(torch.zeros(4), buffer_size=1)
    one = torch.ones(4)
    server.dispatch("a")  # version 0
    server.dispatch("b")
    server.receive("b", one)
    server.dispatch("a")  # version 1: a holds two tasks
    server.dispatch("a")  # the same task again
    assert server.receive("a", one).delay == 0
    with pytest.raises(errors.UnknownVersion, match=r"owes versions \[0\]"):
        server.receive("a", one)
    assert server.receive("a", one, version=0).delay == 2
    with pytest.raises(errors.UnknownVersion, match="everything"):
        server.receive("a", one, version=0)


def test_only_versions_in_flight_are_kept() -> None:
    server = fastagg.FedAsync(torch.zeros(100))
    for client in range(4):
        server.dispatch(client)
        server.dispatch("other")
        server.receive("other", torch.ones(100))
    assert sorted(server.state_dict()["tasks"]["versions"]) == [0, 1, 2, 3] and server.memory()["versions"] == 4 * 400
    server.receive(1, torch.ones(100))
    assert sorted(server.state_dict()["tasks"]["versions"]) == [0, 2, 3]
    server.forget(0)
    assert sorted(server.state_dict()["tasks"]["versions"]) == [2, 3]
    with pytest.raises(errors.UnknownClient):
        server.receive(0, torch.ones(100))
    server.forget(2, version=2)
    server.forget(3)
    assert server.memory()["versions"] == 0


def test_memory_is_what_it_says() -> None:
    server = fastagg.ACE(torch.zeros(1000), lr=0.1, num_clients=5, cache="int8", optimizer=fastagg.AMSGrad())
    rows = 5 * (1024 + 4 * 4)
    assert server.memory() == {
        "model": 4000, "moments": 12000, "direction": rows + 4000 + 8 * 5, "versions": 0, "clients": 5 * 8,
        "buffers": 0,
        "total": 16000 + rows + 4000 + 40 + 40,
    }  # fmt: skip


@pytest.mark.parametrize("name", SERVERS)
@pytest.mark.parametrize("form", ["module", "list", "flat"])
def test_a_saved_server_goes_on_bit_for_bit(name: str, form: str, tmp_path: Any) -> None:
    torch.manual_seed(0)
    model = Residual()
    params = {"module": model, "list": [p.detach() for p in model.parameters()], "flat": torch.randn(D)}[form]
    server = SERVERS[name](params)
    d = server.flat.numel()
    updates = torch.randn(6, d) * 0.1
    for client in range(3):
        server.dispatch(client)
    server.receive(0, updates[0])
    server.save(tmp_path / "s.pt")
    other = fastagg.load(tmp_path / "s.pt")
    for s in (server, other):
        for client in (1, 2):
            if name != "FedAvg" or client == 1:
                s.receive(client, updates[client])
        s.dispatch(0)
        s.receive(0, updates[3])
    assert same(server.state_dict(), other.state_dict())
    assert [p.name for p in tmp_path.iterdir()] == ["s.pt"]


def test_checkpoints_that_are_damaged_or_of_another_server(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    server, path = running("FADAS"), tmp_path / "s.pt"
    server.save(path)
    whole = path.read_bytes()
    for cut in (0, 1, 100, len(whole) // 2, len(whole) - 1):
        (tmp_path / "cut.pt").write_bytes(whole[:cut])
        with pytest.raises(errors.CheckpointError):
            fastagg.load(tmp_path / "cut.pt")
    with pytest.raises(errors.CheckpointError, match="no such"):
        fastagg.load(tmp_path / "absent.pt")
    state = server.state_dict()
    for other in (running("FedBuff"), fastagg.FADAS(torch.zeros(5)), SERVERS["FADAS"]({"w": torch.zeros(D)})):
        before = other.state_dict()
        with pytest.raises(errors.CheckpointError):
            other.load_state_dict(state)
        assert same(other.state_dict(), before)
    for key in ("flat", "moments", "direction", "tasks", "buffers"):
        broken = {**state, key: None}
        with pytest.raises(errors.CheckpointError):
            server.load_state_dict(broken)
    assert same(server.state_dict(), state)

    def refuse(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(errors.CheckpointError, match="disk full"):
        server.save(path)
    assert path.read_bytes() == whole and sorted(p.name for p in tmp_path.iterdir()) == ["cut.pt", "s.pt"]


def test_loading_runs_no_code(tmp_path: Any) -> None:
    class Payload:
        def __reduce__(self) -> Any:
            return (os.mkdir, (str(tmp_path / "ran"),))

    torch.save({"format": 1, "x": Payload()}, tmp_path / "evil.pt")
    with pytest.raises(errors.CheckpointError):
        fastagg.load(tmp_path / "evil.pt")
    assert not (tmp_path / "ran").exists()


def test_many_threads_lose_nothing() -> None:
    size, workers, turns = 20_000, 8, 30
    server = fastagg.FedBuff(torch.zeros(size), buffer_size=4)

    def work(worker: int) -> None:
        for turn in range(turns):
            task = server.dispatch(f"{worker}")
            assert float(task.flat[0]) == float(task.flat[-1])  # never half a step
            server.receive(f"{worker}", torch.full((size,), float(4 * (worker + turn))))

    threads = [threading.Thread(target=work, args=(w,)) for w in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert server.version == workers * turns // 4
    total = sum(w + t for w in range(workers) for t in range(turns))  # small whole numbers: exact in fp32
    assert torch.equal(server.flat, torch.full((size,), float(total)))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_computes() -> None:
    x, update = torch.zeros(500_000), torch.ones(500_000)
    fastagg.ops.sgd_(x, update, lr=1.0)  # the pool runs
    child = os.fork()
    if child == 0:
        fastagg.ops.sgd_(x, update, lr=1.0)
        # Not torch's sum: OpenMP, which torch uses, hangs in a forked child. That is why we do not.
        os._exit(0 if x.numpy().sum() == 1_000_000 and fastagg.ops.inspect(update).finite else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    fastagg.ops.sgd_(x, update, lr=1.0)
    assert float(x.sum()) == 1_000_000  # the child's memory is its own


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"FASTAGG_ISA": "baseline"}, "isa=baseline"),
        ({"FASTAGG_NUM_THREADS": "3"}, "threads=3"),
        ({"FASTAGG_ISA": "mmx"}, "not available here"),
        ({"FASTAGG_NUM_THREADS": "none"}, "FASTAGG_NUM_THREADS"),
    ],
)
def test_environment_variables(environment: dict[str, str], words: str, tmp_path: Any) -> None:
    code = "import fastagg; i = fastagg.build_info(); print(f\"isa={i['isa']} threads={i['threads']}\")"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environment},
        cwd=tmp_path,  # elsewhere, or python -c would find the checkout's unbuilt package
        capture_output=True,
        text=True,
        check=False,
    )
    assert words in done.stdout + done.stderr


@pytest.mark.parametrize("name", ["SGD", "AMSGrad"])
def test_a_learning_rate_that_follows_a_schedule(name: str) -> None:
    make = {"SGD": fastagg.SGD, "AMSGrad": fastagg.AMSGrad}[name]
    first, second = torch.randn(300), torch.randn(300)

    def stepped(server: fastagg.Server, update: torch.Tensor) -> fastagg.Receipt:
        return server.receive(0, update, server.dispatch(0).version)

    server = fastagg.Server(torch.zeros(300), optimizer=make(0.5))
    stepped(server, first)
    server.lr = 0.125
    before = server.state_dict()
    other = fastagg.Server(torch.zeros(300), optimizer=make(0.125))
    other.load_state_dict(before)
    assert stepped(server, second).step_size == stepped(other, second).step_size == 0.125
    assert torch.equal(server.flat, other.flat) and server.lr == 0.125
    assert server.config()["optimizer"]["lr"] == 0.125
    for bad in (-1.0, float("nan"), "slow"):
        with pytest.raises(fastagg.ConfigError, match="lr"):
            server.lr = bad  # type: ignore[assignment]
    assert server.lr == 0.125 and stepped(server, first).step_size == 0.125


def test_a_model_that_was_read_and_dropped_costs_later_updates_nothing() -> None:
    """A version that somebody holds stays, and the next step writes to other memory; all later ones are in place."""
    server = fastagg.ASGD(torch.nn.Linear(3, 2), lr=0.5)
    for client in range(4):
        server.dispatch(client)
    for held in (server.flat, server.parameters()["bias"], server.snapshot()["weight"]):
        before, at = held.clone(), server.flat.data_ptr()
        del at
    places = []
    for client in range(4):
        server.receive(client, torch.ones(8))
        places.append(inside.engine(server).model.data_ptr())
    assert torch.equal(held, before) and held.data_ptr() != places[0] and len(set(places)) == 1


@pytest.mark.parametrize("name", ["FedAsync", "ASGD"])
def test_memory_has_every_version_that_somebody_holds(name: str) -> None:
    """Also the first one, which is torch's memory, and one of which only a view is left; each once."""
    server = getattr(fastagg, name)({"w": torch.zeros(100)}, **({"lr": 0.1} if name == "ASGD" else {}))
    server.dispatch("late")  # FedAsync keeps version 0 for it
    held = []
    for version in range(20):
        held.append(server.parameters()["w"][:1] if version % 2 else server.flat)
        server.dispatch("ann")
        server.receive("ann", torch.ones(100))
        assert server.memory()["versions"] == 400 * len(held)
    keeps = 400 * (name == "FedAsync")
    del held[:10]
    assert server.memory()["versions"] == 4000 + keeps
    held.clear()
    assert server.memory()["versions"] == keeps
    server.forget("late")
    assert server.memory()["versions"] == 0
