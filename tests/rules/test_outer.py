"""The rules of asynchronous large-model training: beside a public implementation, by parts, and across restarts."""

import importlib
import math
import os
import sys
import threading
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import pytest
import torch

import fastagg
from fastagg.errors import ConfigError

SHAPES = {"embed": (40, 16), "norm": (16,), "up": (16, 48), "down": (48, 16), "bias": (1,)}


def network(seed: int = 0) -> dict[str, torch.Tensor]:
    torch.manual_seed(seed)
    return {name: torch.randn(shape) for name, shape in SHAPES.items()}


# -- a public implementation -------------------------------------------------------------------------------------------


def public() -> tuple[ModuleType, ModuleType]:
    """PanocularAI/torchft's torchft/heloco.py and torchft/async_diloco.py, without what their network needs."""
    folder = os.environ.get("FASTAGG_HELOCO")
    if folder is None or not (Path(folder) / "torchft" / "heloco.py").exists():
        pytest.skip(
            "clone github.com/PanocularAI/torchft, and set FASTAGG_HELOCO to the folder that has torchft/heloco.py"
        )
    package = ModuleType("torchft")
    package.__path__ = [str(Path(folder) / "torchft")]
    network = {name: mock.MagicMock() for name in ("torchft.http", "torchft.parameter_server")}
    with mock.patch.dict(sys.modules, {"torchft": package, **network}):
        return importlib.import_module("torchft.heloco"), importlib.import_module("torchft.async_diloco")


def theirs(kind: type, optimizer: type, how: dict[str, Any], **correction: float) -> Any:
    """Their server of these parameters, without its socket."""
    parameters = {name: torch.nn.Parameter(tensor) for name, tensor in network().items()}
    server = kind.__new__(kind)
    server._lock = threading.RLock()
    server._params_by_name, server._snapshot_cache = parameters, {}
    server._outer_optimizer = optimizer(parameters.values(), **how)
    server._revision = server._applied_pushes = 0
    usual = {"rho": 1.0, "c_ok": 0.2, "k_s": 0.5, "k_d": 1.0, "kappa": 3.0, "beta_max": 0.5, "eps": 1e-8}
    for name, value in {**usual, **correction}.items():
        setattr(server, f"_{name}", value)
    return server


@pytest.mark.parametrize("rule", ["HeLoCo", "HeLoCo, weighed", "AsyncDiLoCo", "AsyncDiLoCo, every push"])
def test_fifty_pushes_are_those_of_the_public_implementation(rule: str) -> None:
    heloco, diloco = public()
    if rule.startswith("HeLoCo"):
        weight = {"rho": 1 / math.sqrt(3)} if "weighed" in rule else {}
        ours = fastagg.HeLoCo(network(), lr=0.7, momentum=0.9, **weight)
        other = theirs(heloco.HeLoCoServer, heloco.HeLoCoOptimizer, {"lr": 0.7, "momentum": 0.9}, **weight)
    else:
        period = 1 if "every" in rule else 4
        how = {"lr": 0.7, "momentum": 0.9, "nesterov_period": period}
        ours = fastagg.AsyncDiLoCo(network(), lr=0.7, momentum=0.9, period=period)
        other = theirs(diloco.AsyncDiLoCoServer, diloco.DelayedNesterovOptimizer, how)
    names = list(SHAPES)
    target = network(1)
    open_tasks: dict[int, tuple[Any, dict[str, torch.Tensor]]] = {}
    apart = 0.0
    for turn in range(50 + 3):
        worker = (0, 1, 0, 2, 0, 1)[turn % 6] if turn >= 3 else turn
        if turn >= 3:
            task, sent = open_tasks.pop(worker)
            pull = {name: 0.1 * (target[name] - sent[name]) + 0.05 * torch.randn(SHAPES[name]) for name in names}
            ours.receive(worker, pull, task.version)
            other._apply_one({name: -tensor for name, tensor in pull.items()})
        sent = {name: tensor.clone() for name, tensor in other._build_snapshot_locked(names).items()}
        open_tasks[worker] = ours.dispatch(worker), sent
        apart = max(apart, *(float((open_tasks[worker][0].params[n] - sent[n]).abs().max()) for n in names))
    found = ours.parameters()
    apart = max(apart, *(float((found[name] - other._params_by_name[name].detach()).abs().max()) for name in names))
    print(f"{rule}: largest difference {apart:.1e}")
    assert ours.version == other._revision == 50 and apart < 1e-5


# -- the look-ahead ----------------------------------------------------------------------------------------------------


def test_a_version_is_sent_as_one_vector_and_the_model_steps_in_place() -> None:
    server = fastagg.HeLoCo(torch.zeros(5000), lr=1.0, momentum=0.5)
    receipt = server.receive_model(server.dispatch(0), torch.ones(5000))
    first, second = server.dispatch(0), server.dispatch(1)
    assert receipt.version == first.version == 1 and first.flat.data_ptr() == second.flat.data_ptr()
    assert float(first.flat[0]) == 1.5 and float(server.flat[0]) == 1.25
    assert server.memory()["versions"] == 20_000  # what is sent; the model is not kept
    server.receive(0, torch.zeros(5000))
    assert float(first.flat[0]) == 1.5 and server.dispatch(0).version == 2
    server.lr = 0.0
    assert torch.equal(server.dispatch(2).flat, server.flat)


def test_a_look_ahead_that_could_leave_its_range_is_refused_and_nothing_is_sent() -> None:
    server = fastagg.HeLoCo(torch.zeros(4), lr=1.0, momentum=0.5)
    server.receive_model(server.dispatch(0), torch.full((4,), 1e15))
    server.lr = 1e30
    before = server.state_dict()["tasks"]
    with pytest.raises(fastagg.UpdateTooLarge, match="look_ahead"):
        server.dispatch(1)
    assert str(server.state_dict()["tasks"]) == str(before)
    server.lr = 1.0
    assert server.dispatch(1).version == 1


# -- ages, tokens, speeds ----------------------------------------------------------------------------------------------


def test_pairs_that_say_nothing_are_refused() -> None:
    server = fastagg.DecoupledDiLoCo(torch.zeros(2), buffer_size=2)
    server.dispatch(0)
    for pair in ((1.0,), (1.0, 0), (-1.0, 2), (1.0, 2, 3), (math.nan, 1)):
        with pytest.raises(ConfigError, match=r"num_samples|tokens|steps"):
            server.receive(0, torch.ones(2), num_samples=pair)
    with pytest.raises(ConfigError, match="num_samples: needed"):
        server.receive(0, torch.ones(2))
    other = fastagg.FedBuff(torch.zeros(2), weighting="samples")
    other.dispatch(0)
    with pytest.raises(ConfigError, match='belongs to weighting="tokens"'):
        other.receive(0, torch.ones(2), num_samples=(1.0, 2))  # type: ignore[arg-type]
    assert server.receive(0, torch.ones(2), num_samples=(8, 2)).version == 0


def test_local_steps_follow_the_speeds_that_were_told() -> None:
    server = fastagg.AsyncDiLoCo(torch.zeros(2), fastest_steps=50)
    assert server.dispatch("new").local_steps == 50
    assert server.dispatch("a", speed=10.0).local_steps == 50
    assert server.dispatch("b", speed=3.0).local_steps == 15
    assert server.dispatch("c", speed=0.01).local_steps == 1
    assert server.dispatch("d", speed=20).local_steps == 50
    task = server.dispatch("b")  # told before
    assert task.local_steps == 7 and server.receive("b", torch.ones(2), task=task.id).applied
    server.forget("d")
    assert server.dispatch("b").local_steps == 15
    for client, speed in ((0.5, 100.0), ("e", -1.0)):  # what is refused is not told
        with pytest.raises(fastagg.FastaggError):
            server.dispatch(client, speed=speed)  # type: ignore[arg-type]
    assert server.dispatch("b").local_steps == 15


@pytest.mark.parametrize("wrong", [1e30, 3e38, 1e-38])
@pytest.mark.parametrize("first", [True, False])
def test_one_wrong_speed_leaves_the_others_at_least_a_tenth_of_the_steps(wrong: float, first: bool) -> None:
    server = fastagg.AsyncDiLoCo(torch.zeros(2), fastest_steps=1000)
    if first:
        server.dispatch("wrong", speed=wrong)
    speeds = {"a": 2.0, "b": 4.0, "c": 8.0, "d": 4.0, "e": 2.5}
    for client, speed in speeds.items():
        server.dispatch(client, speed=speed)
    assert 1 <= server.dispatch("wrong", speed=wrong).local_steps <= 1000
    for client, speed in speeds.items():
        steps = server.dispatch(client).local_steps
        # a median of others' speeds stays between theirs; without the wrong one it would be speed/8
        assert 1000 * speed / 40 - 1 <= steps <= 1000 * speed / 8


def test_speeds_take_no_memory_when_their_lease_is_over() -> None:
    server = fastagg.AsyncDiLoCo(torch.zeros(2), fastest_steps=50, lease=1e-9)
    for client in range(100):
        server.dispatch(client, speed=1.0)
    assert server._pace is not None and len(server._pace.speeds) < 3


# -- fragments ---------------------------------------------------------------------------------------------------------
