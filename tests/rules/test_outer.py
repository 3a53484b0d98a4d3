"""The rules of asynchronous large-model training: beside a public implementation, by parts, and across restarts."""

import importlib
import math
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import pytest
import torch
from support import inside
from support.presets import update

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


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: fastagg.Nesterov(look_ahead=True, moments="8bit"), "moments: look_ahead"),
        (lambda: fastagg.Nesterov(momentum=1.0), "momentum: "),
        (lambda: fastagg.Nesterov(dampening=-0.1), "dampening: "),
        (lambda: fastagg.DelayedNesterov(period=0), "period: "),
        (lambda: fastagg.Aligned(c_ok=1.5), "c_ok: "),
        (lambda: fastagg.Aligned(rho=0.0), "rho: "),
        (lambda: fastagg.CosineGate(cutoff=0.0), "cutoff: "),
        (lambda: fastagg.Cutoff(delay=0), "delay: "),
        (lambda: fastagg.Server(torch.zeros(2), fastagg.Aligned(), fastagg.SGD()), "optimizer: Aligned turns"),
        (
            lambda: fastagg.Server(torch.zeros(2), fastagg.Aligned(), fastagg.Momentum(moments="8bit")),
            "optimizer: Aligned turns",
        ),
        (
            lambda: fastagg.Server(torch.zeros(2), fastagg.Mixing(), fastagg.Nesterov(look_ahead=True)),
            "look_ahead: clients are sent another model",
        ),
        (lambda: fastagg.FedBuff(torch.zeros(2)).dispatch(0, speed=1.0), "speed: .*fastest_steps="),
        (lambda: fastagg.FedBuff(torch.zeros(2), fastest_steps=9).dispatch(0, speed=-1.0), "speed: "),
        (lambda: fastagg.FedBuff(torch.zeros(2), fastest_steps=0), "fastest_steps: "),
    ],
)
def test_what_cannot_be_is_refused_by_name(make: Callable[[], Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make()


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


def fragments(count: int, **how: Any) -> tuple[Any, list[fastagg.Server]]:
    cut = fastagg.parts(network(), count)
    return cut, [fastagg.DecoupledDiLoCo(part, buffer_size=4, at_least=2, grace=5.0, lr=0.5, **how) for part in cut]


def learner(cut: Any, servers: list[fastagg.Server], number: int, turns: int, at: int) -> None:
    """Answer the fragments in turn, one at a time."""
    for turn in range(turns):
        place = (at + turn) % len(servers)
        task = servers[place].dispatch(number)
        delta = torch.full((servers[place].layout.size,), float(turn + 1))
        servers[place].receive(number, delta, num_samples=(100.0 * (number + 1), 4), task=task.id)


def test_every_fragment_has_its_version_delay_quorum_and_window() -> None:
    cut, servers = fragments(3)
    late = servers[1].dispatch("late")
    for number in range(2):
        learner(cut, servers, number, 1, at=1)  # two have sent the second fragment: its window begins
    inside.pass_time(servers[1], 4.0)
    assert not any(server.close_round(if_due=True) for server in servers)
    inside.pass_time(servers[1], 2.0)
    assert [server.dispatch("c").version for server in servers] == [0, 1, 0]
    # w = tokens*tokens/steps: 2,500 and 10,000 of the same delta, and then one that is a version late
    assert servers[1].receive("late", late.flat * 0.0, num_samples=(1, 1)).delay == 1
    moved = servers[1].flat - fastagg.DecoupledDiLoCo(cut[1], buffer_size=4).flat
    torch.testing.assert_close(moved, torch.full_like(moved, 0.5 * (1.0 + 0.9)))


def test_fragments_on_threads_are_each_a_server_of_its_own() -> None:
    """Learners on threads at once; each fragment is what one server makes of the answers in the order that it took."""
    cut, servers = fragments(4, answers_per_step=None)
    taken: list[list[tuple[int, torch.Tensor, Any]]] = [[] for _ in servers]
    locks = [threading.Lock() for _ in servers]
    start = threading.Barrier(4)

    def work(number: int) -> None:
        start.wait()
        for turn in range(24):
            place = (number + turn) % 4
            task = servers[place].dispatch(number)
            delta = update(number * 100 + turn, servers[place].layout.size).float()
            pair = (10.0 + number, 1 + turn % 3)
            with locks[place]:  # only so that the test knows the order
                servers[place].receive(number, delta, num_samples=pair, task=task.id)
                taken[place].append((number, delta, pair))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    for place, part in enumerate(cut):
        alone = fastagg.DecoupledDiLoCo(part, buffer_size=4, at_least=2, grace=5.0, lr=0.5, answers_per_step=None)
        for number, delta, pair in taken[place]:
            alone.dispatch(number)
            alone.receive(number, delta, num_samples=pair)
        assert alone.version == servers[place].version == 6
        assert torch.equal(alone.flat, servers[place].flat)


def test_parts_of_heloco_turn_their_tensors_as_the_whole_does() -> None:
    whole, cut = fastagg.HeLoCo(network()), fastagg.parts(network(), 3)
    servers = [fastagg.HeLoCo(part) for part in cut]
    torch.manual_seed(3)
    for _ in range(20):
        task, tasks = whole.dispatch(0), [server.dispatch(0) for server in servers]
        delta = {name: torch.randn(shape) for name, shape in SHAPES.items()}
        whole.receive(0, delta, task=task.id)
        for server, task, piece in zip(servers, tasks, cut.split(delta), strict=True):
            server.receive(0, piece, task=task.id)
    joined, one = cut.join(server.parameters() for server in servers), whole.parameters()
    for name in SHAPES:
        torch.testing.assert_close(joined[name], one[name], rtol=0, atol=1e-5)
