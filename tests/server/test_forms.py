"""Every form of an update, every way in which it comes and every rule: the bits are those of its numbers in fp32, read
by Python and copied, with and without a folder.

The engine reads usual forms by itself, a large update once while it steps, and small and large ones into its log in
two ways; models are added without a difference in memory, up to four of one base in one loop.
"""

import math
import random
from collections import OrderedDict
from collections.abc import Callable
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support import inside
from support.models import same
from support.presets import PRESETS
from torch import Tensor, nn

import fastagg
from fastagg.errors import ConfigError, FastaggError, NonFiniteUpdate, ShapeMismatch, UnknownVersion
from fastagg.model import Layout, ModelState
from fastagg.storage import memory

pytestmark = pytest.mark.kernel

Arrays = dict[str, Tensor]
SMALL = {"scalar": (), "weight": (7, 3), "half": (7,), "deep": (2, 1, 5)}
LARGE = {**SMALL, "deep": (3, 5, 1201)}  # long enough to be read once, and no multiple of anything
STATISTICS = {"bn.running_mean": (5,), "bn.running_var": (5,), "bn.num_batches_tracked": ()}


def arrays(seed: int, shapes: dict[str, tuple[int, ...]]) -> Arrays:
    """Small changes, and statistics as clients have them."""
    g = torch.Generator().manual_seed(seed)
    found = {name: torch.randn(shape, generator=g) * 0.1 for name, shape in (shapes | STATISTICS).items()}
    found["bn.running_var"].abs_()
    found["bn.num_batches_tracked"] = torch.randint(0, 50, (), generator=g)
    return found


def strided(given: Tensor) -> Tensor:
    """The same numbers, not one after the other."""
    return torch.stack([given, given], dim=-1)[..., 0]


def parameters(given: Arrays) -> list[Tensor]:
    return [value for name, value in given.items() if not name.startswith("bn.")]


def joined(given: Arrays) -> Tensor:
    return torch.cat([value.reshape(-1) for value in parameters(given)])


def vectors(given: Arrays) -> ModelState:
    counter = given["bn.num_batches_tracked"]
    return ModelState(joined(given), torch.cat([given["bn.running_mean"], given["bn.running_var"]]), [counter])


def cast(given: Arrays, dtype: torch.dtype) -> Arrays:
    return {name: value if name.startswith("bn.") else value.to(dtype) for name, value in given.items()}


def unusual(given: Arrays) -> Arrays:
    """Statistics and counters in types that are not the model's own."""
    changed = {name: value.double() for name, value in given.items() if "running" in name}
    return {**given, **changed, "bn.num_batches_tracked": given["bn.num_batches_tracked"].int()}


def read_only(given: Tensor) -> Any:
    return np.frombuffer(given.numpy().tobytes(), given.numpy().dtype).reshape(given.shape)


# Made of an update; whether the engine reads it by itself; whether its statistics come along.
FORMS: dict[str, tuple[Callable[[Arrays], Any], bool, bool]] = {
    "dict": (lambda u: u, True, True),
    "OrderedDict": (OrderedDict, True, True),
    "another order": (lambda u: dict(reversed(u.items())), True, True),
    "list": (lambda u: list(u.values()), True, True),
    "tuple of parameters": (lambda u: tuple(parameters(u)), True, False),
    "NumPy": (lambda u: {k: v.numpy() for k, v in u.items()}, True, True),
    "both": (lambda u: [v.numpy() if i % 2 else v for i, v in enumerate(u.values())], True, True),
    "read-only": (lambda u: {k: read_only(v) for k, v in u.items()}, True, True),
    "flat": (joined, True, False),
    "flat NumPy": (lambda u: joined(u).numpy(), True, False),
    "vectors": (vectors, True, True),
    "strided": (lambda u: {k: strided(v) for k, v in u.items()}, False, True),
    "strided NumPy": (lambda u: {k: strided(v).numpy() for k, v in u.items()}, False, True),
    "requires grad": (lambda u: {k: v.requires_grad_(v.is_floating_point()) for k, v in u.items()}, True, True),
    "parameters": (lambda u: {k: nn.Parameter(v) if v.is_floating_point() else v for k, v in u.items()}, True, True),
    "fp16": (lambda u: cast(u, torch.float16), False, True),
    "bf16": (lambda u: cast(u, torch.bfloat16), False, True),
    "flat bf16": (lambda u: joined(u).bfloat16(), False, False),
    "unusual types": (unusual, False, True),
}
TYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "flat bf16": torch.bfloat16}
WIRES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)  # of trained models
WAYS = ("receive", "receive_many", "receive_model", "models", "difference", "differences")


def model(shapes: dict[str, tuple[int, ...]]) -> Arrays:
    """The large one is in fp32, so that models are added without their differences; of the small one a part is not."""
    dtype = torch.float16 if shapes is SMALL else torch.float32
    return {name: value.to(dtype) if name == "half" else value for name, value in arrays(99, shapes).items()}


class Lanes:
    """Three servers of a rule: `plain` reads by Python and copies, `free` has no log, and `kept` has a folder."""

    def __init__(self, name: str, shapes: dict[str, tuple[int, ...]], buffers: str, path: Path, draw: random.Random):
        self.draw, self.shapes, self.number = draw, shapes, 0
        how = {"buffers": buffers}
        self.make = lambda: PRESETS[name](model(shapes), **how)
        try:
            self.plain = PRESETS[name](model(shapes), clip_norm=1e30, **how)  # so that its norm must be known first
        except (ConfigError, TypeError):  # a rule that never clips, or has a clip_norm of its own
            self.plain = self.make()
        self.open = lambda: fastagg.open(path, self.make, durability="none")
        self.free, self.kept = self.make(), self.open()
        self.trains = self.plain.update_kind == "delta" and "client" not in name

    def servers(self) -> list[fastagg.Server]:
        return [self.plain, self.free, self.kept]

    def play(self, forms: list[str], way: str) -> None:
        """One answer of each of these forms, in one call where there is one for several."""
        tasks = [[server.dispatch(client) for client in range(len(forms))] for server in self.servers()]
        given: list[list[Any]] = [[], []]
        expected = []
        for k, form in enumerate(forms):
            self.number += 1
            task, samples = tasks[0][k], self.draw.choice([0, 1, 2.5, 7])
            sent = arrays(self.number, self.shapes)
            if self.draw.random() < 0.1:
                sent["deep"].view(-1)[self.draw.choice([0, -1])] = self.draw.choice([math.nan, -math.inf])
            if "model" in way:
                base = cast(task.params, torch.float32)
                trained = {n: v + base[n] if n in self.shapes else v for n, v in sent.items()}
                wire = cast(trained, self.draw.choice(WIRES))
                expected.append((task, task.delta(wire), samples, None))
                answers = [wire, {n: v.clone() for n, v in wire.items()}]
            else:
                make, _, statistics = FORMS[form]
                numbers = cast(cast(sent, TYPES.get(form, torch.float32)), torch.float32)
                if not statistics:
                    numbers = {n: numbers[n] for n in self.shapes}
                expected.append((task, numbers, samples, self.plain.update_kind))
                answers = [make({n: v.clone() for n, v in sent.items()}) for _ in range(2)]
            for held, answer in zip(given, answers, strict=True):
                held.append((answer, samples))
        order = list(range(len(forms)))
        if self.draw.random() < 0.2:  # one comes twice
            order.append(self.draw.choice(order))
        wanted = [
            outcome(self.plain.receive, task.client, numbers, task.version, samples, kind=kind, task=task.id)
            for task, numbers, samples, kind in (expected[k] for k in order)
        ]
        for server, mine, held in zip(self.servers()[1:], tasks[1:], given, strict=True):
            found = answered(server, way, [(mine[k], *held[k]) for k in order])
            both = [[told(one, "model" not in way) for one in outcomes] for outcomes in (found, wanted)]
            assert both[0] == both[1], (way, forms)
            for answer, _ in held:
                overwrite(answer)
        self.agree()

    def agree(self) -> None:
        states = [server.state_dict() for server in self.servers()]
        for state in states:
            del state["config"]
            state.pop("round", None)  # what waits for its turn has the type in which it came,
            state["direction"].pop("held", None)  # for its step, too
        assert same(states[0], states[1]) and same(states[0], states[2])

    def restart(self) -> None:
        self.kept.close()
        self.kept = self.open()


def outcome(call: Callable[..., Any], *given: Any, **more: Any) -> Any:
    try:
        return call(*given, **more)
    except FastaggError as error:  # spoiled, or of a round that is over
        return error


def answered(server: fastagg.Server, way: str, answers: list[tuple[fastagg.Dispatch, Any, float]]) -> list[Any]:
    if way == "receive_many":
        return server.receive_many([(t.client, u, t.version, n, t.id) for t, u, n in answers])
    if way in ("models", "differences"):
        kind = server.update_kind if way == "differences" else "model"
        return server.receive_many([fastagg.Answer.to(*answer, kind=kind) for answer in answers])
    one = {
        "receive": lambda t, u, n: server.receive(t.client, u, t.version, n, task=t.id),
        "receive_model": server.receive_model,
        "difference": lambda t, u, n: server.receive_model(t, u, n, difference=True),
    }[way]
    return [outcome(one, *answer) for answer in answers]


def told(one: Any, norm: bool) -> Any:
    """What both say. Models are added without their norms."""
    if isinstance(one, fastagg.Receipt):
        facts = (one.client, one.applied, one.version, one.delay, one.step_size, one.weight)
        return (*facts, one.update_norm) if norm else facts
    return type(one)


def overwrite(answer: Any) -> None:
    """The sender's memory is its own again."""
    if isinstance(answer, (Tensor, np.ndarray)):
        if isinstance(answer, Tensor) or answer.flags.writeable:
            (answer.detach() if isinstance(answer, Tensor) else answer)[...] = 7
    elif answer is not None:
        for one in answer.values() if isinstance(answer, dict) else answer:
            overwrite(one)


@pytest.mark.parametrize("name", PRESETS)
def test_every_form_and_every_way_have_the_same_bits(name: str, tmp_path: Path) -> None:
    draw = random.Random(name)
    pairs = [(form, way) for form in FORMS for way in WAYS]
    pairs = draw.sample(pairs, 64)
    for number, buffers in enumerate(("mean", "latest", "keep", "weighted")):
        shapes = LARGE if number % 2 else SMALL
        lanes = Lanes(name, shapes, buffers, tmp_path / buffers, draw)
        for at, (form, way) in enumerate(pairs[number::4]):
            if not lanes.trains and way not in ("receive", "receive_many"):
                way = WAYS[at % 2]
            lanes.play([form, *draw.sample(list(FORMS), draw.randrange(3))], way)
            if at % 8 == 5:
                lanes.restart()
        for server in lanes.servers():
            with suppress(fastagg.ConfigError) if isinstance(server.direction, fastagg.Robust) else nullcontext():
                server.close_round()  # which a rule may refuse to so few updates
        lanes.agree()
        assert lanes.plain.version > 0
        lanes.kept.close()


@pytest.mark.parametrize("form", FORMS)
def test_the_engine_reads_usual_forms_by_itself(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make, by_itself, _ = FORMS[form]
    server = fastagg.FADAS(model(SMALL), lr=0.1, buffer_size=2)
    server.dispatch(0)
    monkeypatch.setattr(Layout, "parse", None)
    assert (inside.engine(server).receive(0, make(arrays(1, SMALL)), *[None] * 5) is not None) == by_itself


def test_names_whose_comparison_changes_the_update() -> None:
    """A name that runs Python while the engine looks for the next array."""
    update: dict[Any, Any] = dict(arrays(1, SMALL))

    class Name(str):
        def __eq__(self, other: object) -> bool:
            update.clear()
            return str.__eq__(self, other)

        __hash__ = str.__hash__

    update[Name("weight")] = update.pop("weight")
    server = fastagg.FedBuff(model(SMALL))
    server.dispatch(0)
    with pytest.raises(ShapeMismatch):
        server.receive(0, update)


def test_a_model_in_place_of_a_difference_is_noticed() -> None:
    server = fastagg.FedBuff({"w": torch.linspace(1, 2, 30)})
    server.dispatch(0)
    with pytest.warns(UserWarning, match="nearly the model"):
        server.receive(0, {name: value * 1.01 for name, value in server.parameters().items()})


# -- trained models ----------------------------------------------------------------------------------------------------


def test_models_of_a_gradient_rule_and_of_nobody() -> None:
    server = fastagg.ASGD(model(SMALL), lr=0.1)
    with pytest.raises(ConfigError, match="gradient"):
        server.receive_model(server.dispatch(1), model(SMALL))
    assert server.receive_many([]) == []


def test_finite_models_may_be_an_infinite_way_apart(isa: str) -> None:
    server = fastagg.FedAvg({"a": torch.ones(3), "b": torch.full((3,), -3e38)}, clients_per_round=3)
    task = server.dispatch(0)
    before = server.state_dict()
    far = {**task.params, "b": torch.full((3,), 3e38)}
    with pytest.raises(NonFiniteUpdate):
        server.receive_model(task, far, 1)
    (refused,) = server.receive_many([fastagg.Answer.to(task, {**far, "a": torch.full((3,), math.nan)}, 1)])
    assert isinstance(refused, NonFiniteUpdate) and "'a'" in str(refused)
    assert same(before, server.state_dict())
    server.receive_model(task, task.params, 1)
    with pytest.raises(UnknownVersion):
        server.receive_model(task, task.params, 1)


def test_two_reserved_vectors_serve_every_round() -> None:
    """One vector is the sum, and the next sum goes to the other. A step frees the model that it replaces."""
    size = 600_000
    server = fastagg.FedAvg(torch.zeros(size), clients_per_round=4, weighting="uniform")
    memory.trim()
    memory.reserve(size, 2)
    seen = set()
    for turn in range(24):
        server.receive_model(server.dispatch(turn % 4), torch.full((size,), float(turn)))
        seen.add(server.flat.data_ptr())
    assert server.version == 6 and len(seen) <= 4  # new memory would be at other places


@pytest.mark.parametrize("differences", [False, True])
@pytest.mark.parametrize("stream_from", [0, 1])
def test_groups_of_models_in_one_loop(stream_from: int, differences: bool, tuning: Any, isa: str) -> None:
    """Up to four models with one base are read at once, over runs that end with the shortest array of any. A refused
    one is not in the sum, and its client sends another one. What a client holds is not written over."""
    tuning(stream_from=stream_from)
    start = {str(i): torch.linspace(-1.0, 1.0, n) for i, n in enumerate((5000, 1, 1024, 70_001, 37))}

    def trained(task: fastagg.Dispatch, seed: int) -> Arrays:
        g = torch.Generator().manual_seed(seed)
        return {name: value + torch.randn(value.shape, generator=g) * 0.1 for name, value in task.params.items()}

    for count in (1, 2, 3, 4, 5, 7):
        ours, plain = servers = [fastagg.FedBuff(start, buffer_size=50) for _ in range(2)]
        tasks = [[server.dispatch(client) for server in servers] for client in range(count - 4)]
        for server in servers:  # a step: the others begin with another base
            server.receive_model(server.dispatch("z"), {name: value + 0.5 for name, value in start.items()})
            server.close_round()
        tasks += [[server.dispatch(client) for server in servers] for client in range(len(tasks), count)]
        held = [(task, {name: value.clone() for name, value in task.params.items()}) for task, _ in tasks]
        answers = []
        for client, (task, other) in enumerate(tasks):
            good = cast(trained(task, client), WIRES[client % 3])
            plain.receive(client, task.delta(good), other.version)
            answers.append((task, task.delta(good) if differences else good, None))
        bad = {**answers[-1][1], "3": answers[-1][1]["3"].clone()}
        bad["3"][(-1, 0, 35_000)[count % 3]] = (math.inf, math.nan, -math.inf)[count % 3]
        kind = "delta" if differences else "model"
        sent = [*answers[:-1], (tasks[-1][0], bad, None)]
        outcomes = ours.receive_many([fastagg.Answer.to(*answer, kind=kind) for answer in sent])
        assert [type(one) for one in outcomes] == [fastagg.Receipt] * (count - 1) + [NonFiniteUpdate]
        ours.receive_model(answers[-1][0], answers[-1][1], difference=differences)
        for server in servers:
            server.close_round()
        assert ours.version == plain.version == 2 and torch.equal(ours.flat, plain.flat)
        assert all(same(task.params, kept) for task, kept in held)


@pytest.mark.parametrize("stream_from", [0, 1])
def test_groups_of_updates_in_one_loop(stream_from: int, tuning: Any, isa: str) -> None:
    """Several are added in one pass: receipts with norms, refusals, sums and the signs of zeros are those of one after
    the other, also where a round ends, or an encoded one, one of another type or one too large comes between."""
    tuning(stream_from=stream_from)
    size, chance = 70_003, random.Random(isa)
    staleness, optimizer = fastagg.Polynomial(0.5), fastagg.Adagrad(0.1)

    def bits(server: fastagg.Server) -> list[Any]:
        vectors = server.flat, server.state_dict()["direction"].get("acc")
        return [one.view(torch.int32).clone() for one in vectors if one is not None]

    def drawn(seed: int) -> Any:
        found = torch.randn(size, generator=torch.Generator().manual_seed(seed))
        found[:: 2 + seed % 3] = -0.0
        if (kind := chance.random()) < 0.1:
            found[-1 - seed] = chance.choice((math.nan, -math.inf, 3e38))
        elif kind < 0.3:
            return found.to(chance.choice((torch.float16, torch.bfloat16)))
        return fastagg.encode(found, "int8", seed=seed) if kind > 0.95 else found

    for capacity in (4, 50):
        ours, plain = (
            fastagg.Server(torch.zeros(size), fastagg.Buffer(capacity), optimizer, staleness) for _ in range(2)
        )
        for turn in range(8):
            count = chance.randint(1, 9)
            clients = [client for client in range(count) if client != turn % 5]  # that one has an older version
            for server in (ours, plain):
                for client in clients:
                    server.dispatch(client)
            answers = [(client, drawn(100 * turn + client)) for client in (*clients, turn % 5)]
            found = ours.receive_many(answers)
            for outcome, answer in zip(found, answers, strict=True):
                (other,) = plain.receive_many([answer])
                assert repr(outcome) == repr(other)
            assert same(bits(ours), bits(plain))
        assert ours.close_round() == plain.close_round()
        assert same(bits(ours), bits(plain)) and ours.version > 0
