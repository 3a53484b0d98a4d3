"""Local training in C++ equals torch's autograd: every layer, size, loss and setting, to the bit on any processor."""

import math
import operator
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from functools import partial
from random import Random
from typing import Any

import pytest
import torch
from resnet import resnet18
from torch import Tensor, nn
from torch.nn import functional

from fastagg import build_info
from fastagg._build import native, set_isa
from fastagg.errors import ConfigError
from fastagg.sim.clients.proof import prove
from fastagg.sim.clients.translate import LayerTable, TranslationError
from fastagg.sim.models import build
from fastagg.sim.seeds import seeded

pytestmark = pytest.mark.kernel

CLASSES = 4


class Residual(nn.Module):
    """Two ways that meet, one of them by a convolution of one pixel; and a value that three layers read."""

    fused = True

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(2, 5, 3, padding=1)
        self.short = nn.Conv2d(5, 7, 1, stride=2, bias=False)
        self.long = nn.Sequential(nn.Conv2d(5, 7, 3, 2, 1), nn.BatchNorm2d(7), nn.ReLU(), nn.Conv2d(7, 7, 3, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.first(x))
        y = functional.relu(self.long(x) + self.short(x))
        return y + y.relu()


class OwnForward(nn.Module):
    """May do anything."""

    def forward(self, x: Tensor) -> Tensor:
        return x


CASES: dict[str, tuple[tuple[int, ...], list[nn.Module]]] = {
    "a vector": ((37,), [nn.Linear(37, 33), nn.ReLU()]),
    "layers of a vector": ((5,), [nn.Linear(5, 20), nn.BatchNorm1d(20), nn.ReLU(), nn.Linear(20, 17, bias=False)]),
    "many channels": ((19, 4, 4), [nn.Conv2d(19, 50, 3, padding=1), nn.ReLU()]),
    "two layers": ((3, 9, 7), [nn.Conv2d(3, 5, 3, 2, 1), nn.ReLU(), nn.Conv2d(5, 20, 3, 2, 1, bias=False)]),
    "one pixel": ((3, 5, 6), [nn.Conv2d(3, 18, 1), nn.ReLU(), nn.Conv2d(18, 4, 1, stride=2)]),
    "five by five": ((2, 8, 8), [nn.Conv2d(2, 3, 5, padding=2), nn.Conv2d(3, 3, 5, 2, 1)]),
    "padding of two": ((2, 7, 6), [nn.Conv2d(2, 3, 3, stride=3, padding=2), nn.Conv2d(3, 3, 3, padding=2)]),
    "stride over kernel": ((2, 7, 9), [nn.Conv2d(2, 3, 1), nn.Conv2d(3, 3, 2, stride=3)]),
    "sides differ": ((1, 9, 5), [nn.Conv2d(1, 3, (3, 2), (2, 1), (0, 1)), nn.Conv2d(3, 2, (1, 3), (1, 2), (0, 1))]),
    "pixels left over": ((2, 8, 8), [nn.Conv2d(2, 3, 3, stride=2), nn.ReLU(), nn.Conv2d(3, 4, 2, bias=False)]),
    "pooling of odd sizes": ((2, 7, 5), [nn.Conv2d(2, 3, 3, padding=1), nn.MaxPool2d(2), nn.ReLU()]),
    "pooling overlaps": ((2, 7, 7), [nn.Conv2d(2, 3, 3, padding=1), nn.MaxPool2d(3, 2, padding=1)]),
    "pooling of equal values": ((1, 6, 6), [nn.Conv2d(1, 3, 3), nn.ReLU(), nn.MaxPool2d(2), nn.ReLU()]),
    "pooling first": ((2, 6, 6), [nn.MaxPool2d((3, 2)), nn.ReLU(), nn.Conv2d(2, 3, 2)]),
    "means": ((2, 7, 6), [nn.Conv2d(2, 17, 3), nn.AvgPool2d(2, 1), nn.Conv2d(17, 3, 2), nn.AdaptiveAvgPool2d(1)]),
    "batchnorm": ((2, 5, 6), [nn.Conv2d(2, 19, 3), nn.BatchNorm2d(19), nn.ReLU(), nn.Conv2d(19, 3, 3, 1, 1)]),
    "batchnorm of the data": ((2, 5, 5), [nn.BatchNorm2d(2), nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3, momentum=0.3)]),
    "groupnorm": ((2, 5, 5), [nn.Conv2d(2, 6, 3), nn.GroupNorm(3, 6), nn.ReLU(),
                  nn.Conv2d(6, 4, 2), nn.GroupNorm(1, 4)]),
    "groupnorm of the data": ((2, 5, 5), [nn.GroupNorm(2, 2), nn.Conv2d(2, 3, 3), nn.Identity()]),
    "residual": ((2, 7, 6), [Residual()]),
}  # fmt: skip
BATCHES = (7, 1 + 12, 2, 7)  # the last ones of an epoch are partial


def network(case: str) -> tuple[nn.Module, tuple[int, ...]]:
    torch.manual_seed(0)
    shape, layers = CASES[case]
    body = nn.Sequential(*layers, nn.Flatten())
    width = body(torch.randn(3, *shape)).shape[1]
    module = nn.Sequential(*deepcopy(layers), nn.Flatten(), nn.Linear(width, CLASSES))
    for layer in module.modules():  # the layers of the table were drawn when this file was imported, from any seed
        if hasattr(layer, "reset_parameters"):
            layer.reset_parameters()
    for p in module.parameters():
        p.data += 0.1 * torch.randn_like(p)
    return module.train(), shape


def flat(tensors: Any) -> Tensor:
    return torch.cat([torch.zeros(0), *(t.detach().flatten() for t in tensors)])


def statistics(module: nn.Module) -> Tensor:
    return flat(b for b in module.buffers() if b.is_floating_point())


class Client:
    """Data, batches, and the table of a module that stays as it is."""

    def __init__(self, module: nn.Module, shape: tuple[int, ...], lengths: Any = BATCHES) -> None:
        torch.manual_seed(1)
        self.module, self.lengths = module, list(lengths)
        self.x = torch.randn(30, *shape)
        self.y = torch.randint(CLASSES, (30,))
        self.index = torch.randint(30, (sum(lengths),))
        layers = LayerTable(module, shape)
        self.start, self.buffers = flat(module.parameters()), statistics(module)
        self.table = native.Table(
            shape=layers.shape, layers=layers.layers, batch=max(lengths), parameters=len(self.start),
            buffers=len(self.buffers),
        )  # fmt: skip

    def train(self, gradient: bool = False, **settings: float) -> tuple[Tensor, Tensor]:
        return self.begin(None, gradient, **settings)[:2]

    def begin(self, crew: Any, gradient: bool = False, **settings: float) -> tuple[Tensor, Tensor, Any]:
        buffers, out = self.buffers.clone(), torch.full_like(self.start, torch.nan)
        numbers = {"lr": 0.1, "momentum": 0.0, "weight_decay": 0.0, "mu": 0.0, **settings}
        training = self.table.train(
            start=self.start.data_ptr(), buffers=buffers.data_ptr(), x=self.x.data_ptr(), y=self.y.data_ptr(),
            samples=30, order=(self.index.data_ptr(), self.lengths), gradient=gradient, out=out.data_ptr(),
            crew=crew, kept=(self, buffers, out), **numbers,
        )  # fmt: skip
        return out, buffers, training

    def outputs(self, x: Tensor) -> Tensor:
        found = torch.full((len(x), CLASSES), torch.nan)
        self.table.evaluate(
            start=self.start.data_ptr(), buffers=self.buffers.data_ptr(), x=x.data_ptr(), samples=len(x),
            outputs=found.data_ptr(),
        )  # fmt: skip
        return found

    def exactly(
        self, lr: float = 0.1, momentum: float = 0.0, weight_decay: float = 0.0, mu: float = 0.0
    ) -> tuple[Tensor, Tensor]:
        """What :meth:`train` returns, by autograd in double."""
        module = deepcopy(self.module).double()
        start = [p.detach().clone() for p in module.parameters()]
        optimizer = torch.optim.SGD(module.parameters(), lr=lr, momentum=momentum, weight_decay=weight_decay)
        for index in self.index.split(self.lengths):
            optimizer.zero_grad()
            functional.cross_entropy(module(self.x[index].double()), self.y[index]).backward()
            for p, old in zip(module.parameters(), start, strict=True):
                assert p.grad is not None
                p.grad += mu * (p.detach() - old)
            optimizer.step()
        return flat(module.parameters()) - flat(start), statistics(module)


def close(found: Tensor, expected: Tensor, to: float = 1e-5) -> None:
    if len(expected):
        assert float((found - expected).abs().max()) <= to * float(expected.abs().max())


@pytest.mark.parametrize("case", CASES)
def test_steps_equal_autograd_s(case: str) -> None:
    client = Client(*network(case))
    update, buffers = client.train()
    expected, expected_buffers = client.exactly()
    close(update, expected)
    close(buffers, expected_buffers)


@pytest.mark.parametrize("case", CASES)
def test_a_gradient_equals_autograd_s_in_double(case: str) -> None:
    client = Client(*network(case), lengths=[11])
    gradient, buffers = client.train(gradient=True)
    change, expected_buffers = client.exactly(lr=1.0)
    close(gradient, -change, 3e-6)
    close(buffers, expected_buffers)


@pytest.mark.parametrize("case", CASES)
def test_outputs_are_those_of_the_module_in_evaluation(case: str) -> None:
    module, shape = network(case)
    for buffer in module.buffers():  # as after some training
        buffer.copy_(buffer + torch.rand_like(buffer.float()))
    client = Client(module, shape)
    client.train()  # what it leaves behind changes nothing
    before = client.buffers.clone()
    close(client.outputs(client.x), deepcopy(module).double().eval()(client.x.double()).detach(), 3e-6)
    assert torch.equal(client.outputs(client.x[7:9]), client.outputs(client.x)[7:9])  # whoever is beside it
    assert torch.equal(client.buffers, before)


SETTINGS: list[dict[str, float]] = [
    {"momentum": 0.9}, {"weight_decay": 0.1}, {"mu": 0.5}, {"momentum": 0.5, "weight_decay": 0.01, "mu": 0.1},
]  # fmt: skip


@pytest.mark.parametrize("settings", SETTINGS)
def test_settings_are_those_of_sgd(settings: dict[str, float]) -> None:
    client = Client(*network("batchnorm"))
    update, _ = client.train(**settings)
    close(update, client.exactly(**settings)[0])
    assert not torch.equal(client.train(gradient=True, **settings)[0], update)


@pytest.mark.parametrize(
    ("name", "shape", "widths", "norm"),
    [
        ("mlp", (1, 8, 8), (64,), "batch"),
        ("cnn", (3, 12, 12), (16, 32), "batch"),
        ("cnn", (1, 8, 8), (8, 16, 32), "group"),
        ("resnet18", (3, 8, 8), (4, 6, 8, 17), "batch"),
    ],
)  # fmt: skip
def test_the_simulators_and_papers_models_agree_after_steps(name: str, shape: Any, widths: Any, norm: str) -> None:
    with seeded(0, "model"):
        make = partial(build, name, seed=0, norm=norm) if name != "resnet18" else resnet18
        client = Client(make(shape, CLASSES, widths), shape, [20, 20, 9])
    update, buffers = client.train(momentum=0.9)
    expected, expected_buffers = client.exactly(momentum=0.9)
    close(update, expected, 2e-5)
    close(buffers, expected_buffers)


@pytest.mark.parametrize("case", ["layers of a vector", "many channels", "groupnorm", "pooling overlaps", "residual"])
def test_every_instruction_set_gives_the_same_bits(case: str) -> None:
    client = Client(*network(case))
    found = []
    used = build_info()["isa"]
    try:
        for isa, supported in native.cpu_isas().items():
            if supported:
                set_isa(isa)
                found.append((*client.train(momentum=0.9, mu=0.1, weight_decay=0.1), client.outputs(client.x)))
    finally:
        set_isa(used)
    for results in found[1:]:
        assert all(map(torch.equal, results, found[0]))


def test_no_bit_depends_on_who_trains_beside_or_before() -> None:
    clients = [Client(*network(case)) for case in ("batchnorm", "groupnorm", "two layers")]
    alone = [client.train(momentum=0.5) for client in clients]
    with ThreadPoolExecutor(4) as pool:
        beside = list(pool.map(lambda client: client.train(momentum=0.5), clients * 20))
    for (update, buffers), (again, buffers_again) in zip(beside, alone * 20, strict=True):
        assert torch.equal(update, again) and torch.equal(buffers, buffers_again)
    clients[0].start.fill_(torch.nan)
    assert clients[0].train()[0].isnan().all()
    clients[0].start.copy_(flat(clients[0].module.parameters()))
    assert torch.equal(clients[0].train(momentum=0.5)[0], alone[0][0])


@pytest.mark.parametrize("threads", [0, 1, 3])
def test_a_crew_gives_the_same_bits_whoever_trains(threads: int) -> None:
    clients = [Client(*network(case)) for case in ("batchnorm", "groupnorm", "two layers")] * 8
    alone = [client.train(momentum=0.5) for client in clients]
    crew = native.Crew(threads)
    begun = [client.begin(crew, momentum=0.5) for client in clients]
    for place in torch.randperm(len(begun)).tolist():
        update, buffers, training = begun[place]
        training.wait()
        training.wait()
        assert torch.equal(update, alone[place][0]) and torch.equal(buffers, alone[place][1])


@pytest.mark.parametrize("threads", [0, 1])
def test_a_program_that_flushes_the_smallest_numbers_to_zero_changes_no_bit(threads: int) -> None:
    client = Client(*network("a vector"))
    client.x = 1e-38 * client.x
    plain = client.train(gradient=True)[0]
    tiny = (plain != 0) & (plain.abs() < torch.finfo(torch.float32).tiny)
    torch.set_flush_denormal(True)
    try:
        update, _, training = client.begin(native.Crew(threads) if threads else None, gradient=True)
        if threads:
            training.wait()
    finally:
        torch.set_flush_denormal(False)
    assert tiny.any() and torch.equal(update, plain)


def test_a_training_that_nobody_waits_for_ends_with_its_memory() -> None:
    client = Client(*network("batchnorm"), lengths=[13] * 40)
    for _ in range(20):
        crew = native.Crew(2)
        begun = [client.begin(crew) for _ in range(6)]
        del begun[::2], crew
        begun[0][2].wait()
        assert torch.equal(begun[0][0], client.train()[0])
        begun.clear()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_forked_child_has_no_crew_and_ends() -> None:
    client = Client(*network("batchnorm"), lengths=[13] * 200)
    crew = native.Crew(1)
    begun = [client.begin(crew) for _ in range(3)]
    child = os.fork()
    if child == 0:
        try:
            begun[1][2].wait()
        except ConfigError as error:
            begun.clear()
            del crew
            os._exit(7 if "forked" in str(error) else 1)
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    for update, _, training in begun:
        training.wait()
        assert torch.equal(update, client.train()[0])


def test_what_is_not_finite_shows() -> None:
    client = Client(*network("pooling of equal values"))
    client.x[client.index[3], 0, 2, 2] = torch.nan
    assert not client.train()[0].isfinite().all()


def test_bad_numbers_are_refused_before_anything_is_read() -> None:
    client = Client(*network("a vector"))
    client.index[4] = 30
    with pytest.raises(ConfigError, match="a sample that is not there"):
        client.train()
    client.index[4] = 0
    client.y[0] = CLASSES
    with pytest.raises(ConfigError, match="label 4 is not one of the model's 4 classes"):
        client.train()
    client.y[0] = 0
    client.lengths = [14]
    with pytest.raises(ConfigError, match="larger than the table's"):
        client.train()
    for layer, message in (
        ({"kind": "what"}, "unknown layer 'what'"),
        ({"kind": "sum", "input": 3}, "no such input"),
        ({"kind": "convolution", "channels": 2, "kernel": (9, 9), "weight": 0}, "does not fit"),
        ({"kind": "convolution", "channels": 2, "kernel": (4, 4), "weight": 99}, "outside the model"),
    ):
        with pytest.raises(ConfigError, match=message):
            native.Table(
                shape=(1, 4, 4) if "kernel" in layer else (1, 1, 1),
                layers=[layer],
                batch=2,
                parameters=100,
                buffers=0,
            )


def test_what_has_no_layer_is_left_to_torch() -> None:
    two = nn.Linear(4, 4)
    for module, shape, word in (
        (nn.Sequential(nn.Linear(4, 2), nn.Dropout(0.5)), (4,), "Dropout"),
        (nn.Sequential(nn.LSTM(4, 2)), (4,), "LSTM"),
        (nn.Sequential(nn.Conv2d(2, 2, 3, groups=2)), (2, 3, 3), "groups"),
        (nn.Sequential(nn.Conv2d(2, 2, 3, padding="same")), (2, 3, 3), "padding"),
        (nn.Sequential(nn.MaxPool2d(2, ceil_mode=True)), (2, 3, 3), "pooling"),
        (nn.Sequential(nn.AvgPool2d(2, padding=1)), (2, 3, 3), "pooling"),
        (nn.Sequential(nn.BatchNorm2d(2, track_running_stats=False)), (2, 3, 3), "BatchNorm"),
        (nn.Sequential(nn.GroupNorm(1, 2, affine=False)), (2, 3, 3), "GroupNorm"),
        (nn.Sequential(nn.Linear(4, 2).requires_grad_(False)), (4,), "train"),
        (nn.Sequential(two, nn.ReLU(), two), (4,), "twice"),
        (nn.Sequential(nn.Linear(3, 2)), (2, 3, 3), "vector"),
        (nn.Sequential(nn.Conv2d(2, 2, 2)), (2, 3, 3), "output"),
        (nn.Linear(4, 2), (4, 4), "dimensions"),
        (nn.Sequential(OwnForward()), (4,), "OwnForward"),
    ):
        with pytest.raises(TranslationError, match=word):
            LayerTable(module, shape)


class Drawn(nn.Module):
    """A random network: a list of what happens to a value ``x``, and to one ``kept`` from before."""

    fused = True

    def __init__(self, seed: int, tricks: bool) -> None:
        super().__init__()
        draw = Random(seed)
        torch.manual_seed(seed)
        self.shape: tuple[int, ...] = draw.choice([(2, 6, 5), (1, 4, 4), (3, 5, 5), (19, 3, 3), (7,), (20,)])
        self.layers, self.steps = nn.ModuleList(), list[Any]()
        shape, kept = self.shape, self.shape
        image = len(shape) == 3
        for _ in range(draw.randint(1, 7)):
            steps = ["relu", "layer", "layer", "layer", "keep", "add"] + (["flatten"] if image else [])
            step = draw.choice(steps + (["alpha", "iadd", "relu in place", "alias", "mode"] if tricks else []))
            if step in ("add", "alpha", "iadd", "alias") and kept != shape:
                continue
            if step == "layer":
                width = draw.choice([2, 4, 6, 18])
                layers: list[nn.Module] = [nn.ReLU(inplace=tricks and draw.random() < 0.5), nn.Identity()]
                if image:
                    small = min(shape[1:])
                    layers += [nn.Conv2d(shape[0], width, 3, draw.choice([1, 2]), 1, bias=draw.random() < 0.5)]
                    layers += [nn.BatchNorm2d(shape[0]), nn.GroupNorm(1, shape[0]), nn.Conv2d(shape[0], shape[0], 1)]
                    layers += [nn.MaxPool2d(2), nn.AvgPool2d(2, 1)] if small > 1 else []
                else:
                    layers += [nn.Linear(shape[0], width), nn.BatchNorm1d(shape[0]), nn.GroupNorm(1, shape[0])]
                    layers += [nn.Linear(shape[0], shape[0], bias=False)]
                self.steps.append(len(self.layers))
                self.layers.append(draw.choice(layers))
                shape = tuple(self.layers[-1].eval()(torch.zeros(2, *shape)).shape[1:])
                continue
            if step == "flatten":
                shape, image = (math.prod(shape),), False
            elif step == "keep":
                kept = shape
            self.steps.append(step)
        self.last = nn.Linear(math.prod(shape), CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        kept = x
        for step in self.steps:
            if isinstance(step, int):
                x = self.layers[step](x)
            elif step == "keep":
                kept = x
            elif step == "add":
                x = x + kept
            elif step == "alpha":
                x = torch.add(x, kept, alpha=0.1)
            elif step == "iadd":
                x = operator.iadd(x, kept)
            elif step == "alias":
                same = x = x * 1.0 if x is kept else x
                x += kept
                x = x + same
            elif step == "mode":
                x = x if self.training else torch.relu(x)
            elif step == "flatten":
                x = x.flatten(1)
            else:
                x = functional.relu(x, inplace=step != "relu")
        return self.last(x.flatten(1))


def drawn(seed: int) -> tuple[nn.Module, tuple[int, ...], bool]:
    """A network, the shape of its inputs, and whether all that it does can be read from its graph. A third is nested
    nn.Sequential alone; a third has functions, hooks and changes in place that a table cannot have."""
    module: nn.Module = Drawn(seed, tricks=seed % 3 == 2).train()
    if seed % 3 == 0:
        layers = {"relu": nn.ReLU, "flatten": nn.Flatten}
        chain = [layers[step]() if step in layers else module.layers[step] for step in module.steps
                 if step in layers or isinstance(step, int)]  # fmt: skip
        half = len(chain) // 2
        return nn.Sequential(nn.Sequential(*chain[:half]), *chain[half:], nn.Flatten(), module.last), module.shape, True
    if seed % 9 == 8:
        module.last.register_forward_pre_hook(lambda layer, given: (given[0] * 1.1,))
    return module, module.shape, seed % 3 != 2


@pytest.fixture
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # hundreds of small networks: threads that wait for each other take all the time
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("layer", "change"),
    [
        (0, {"bias": -1}), (1, {"eps": 0.1}), (1, {"momentum": 0.5}), (2, {"relu": False}), (3, {"kind": "mean_pool"}),
        (4, {"groups": 1}), (4, {"weight": 0}), (5, {"kind": "max_pool"}), (6, {"bias": -1}),
    ],
)  # fmt: skip
def test_a_proof_finds_what_a_table_has_wrong(layer: int, change: dict[str, Any], one_thread: None) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Conv2d(2, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(2), nn.GroupNorm(2, 6),
        nn.AvgPool2d(3), nn.Flatten(), nn.Linear(6, CLASSES),
    )  # fmt: skip
    client = Client(module, (2, 6, 6), [11])
    x, y, layers = client.x[:11], client.y[:11], LayerTable(module, (2, 6, 6))
    prove(module, client.table, x, y)
    place = layer - (layer > 1)  # the ReLU is its BatchNorm's
    layers.layers[place].update(change)
    wrong = native.Table(
        shape=layers.shape, layers=layers.layers, batch=11, parameters=len(client.start),
        buffers=len(client.buffers),
    )  # fmt: skip
    named = "1.running_mean" if "momentum" in change else "its outputs"
    with pytest.raises(TranslationError, match=named):
        prove(module, wrong, x, y)


def test_random_networks_equal_autograd_s_or_are_left_to_torch(one_thread: None) -> None:
    translated, proved = 0, 0
    for seed in range(300):
        module, shape, plain = drawn(seed)
        try:
            client = Client(module, shape, [5, 6])
            exact, exact_buffers = client.exactly()
        except (TranslationError, RuntimeError) as error:  # autograd cannot have some changes in place
            assert not plain, (seed, error)
            continue
        translated += 1
        update, buffers = client.train()
        ends = [p.numel() for p in module.parameters()]
        pairs = zip([*update.split(ends), buffers], [*exact.split(ends), exact_buffers], strict=True)
        right = all(float((a - b).norm()) <= 1e-3 * float(b.norm()) + 1e-6 for a, b in pairs)
        before = [value.clone() for value in (*module.parameters(), *module.buffers())]
        try:
            prove(module, client.table, client.x[:5], client.y[:5])
            proved += 1
        except TranslationError:
            assert not plain, seed
            continue
        assert right, (seed, module)
        assert all(map(torch.equal, before, (*module.parameters(), *module.buffers())))
    assert translated > 220 and translated - proved > 5, (translated, proved)
