"""Data and models of one's own: from Python, from an .npz file, from a function that a recipe names."""

import json
from dataclasses import replace
from pathlib import Path

import leaf
import pytest
import resnet
import shakespeare
import torch
from torch import nn

import fastagg.sim
from fastagg.errors import ConfigError, DataError
from fastagg.sim.data.federated import FederatedData, Samples
from fastagg.sim.models import build
from fastagg.sim.recipes.config import from_toml, to_toml
from fastagg.sim.runs.simulation import Simulation


def federation(clients: int = 12, seed: int = 0) -> FederatedData:
    rng = torch.Generator().manual_seed(seed)

    def samples(count: int) -> Samples:
        x = torch.randn(count, 5, generator=rng)
        return Samples(x, (x.sum(dim=1) > 0).long())

    return FederatedData([samples(20) for _ in range(clients)], samples(50), 2)


def linear(shape, classes, hidden=4):
    return nn.Sequential(nn.Linear(shape[0], hidden), nn.ReLU(), nn.Linear(hidden, classes))


class Network(nn.Linear):
    def __init__(self, shape, classes):
        super().__init__(shape[0], classes)


def test_what_is_passed_anew_takes_the_place_of_all_that_its_section_had(tiny):
    first = fastagg.sim.run(tiny(), data=federation(12), model=Network)
    again = fastagg.sim.run(first.config, {"data": {"name": lambda clients, seed: federation(clients), "clients": 8}})
    assert (first.config.data.clients, len({row.client for row in again.clients})) == (12, 8)


def test_a_program_s_data_and_model_are_trained(tiny, tmp_path):
    result = fastagg.sim.run(tiny(), data=federation(), model=linear, out=tmp_path / "run")
    assert result.summary["fused"] is True and result.summary["parameters"] == 5 * 4 + 4 + 4 * 2 + 2
    assert result.rows[-1].loss < result.rows[0].loss
    assert result.config.data.name == "given" and result.config.model.name == "given"
    again = fastagg.sim.run(tiny(), data=federation(), model=linear)
    assert again.rows == result.rows
    with pytest.raises(ConfigError, match="given"):  # the folder's recipe cannot know them
        fastagg.sim.run(str(tmp_path / "run" / "config.toml"))


BAD = {
    "labels out of range": (lambda d: replace(d, classes=1), "labels from 0 to 1, expected 0..0"),
    "labels of another type": (
        lambda d: replace(d, test=Samples(d.test.x, d.test.y.float())),
        "int64, the test set has torch.float32",
    ),
    "other shapes": (lambda d: replace(d, clients=[Samples(torch.zeros(3, 4), torch.zeros(3).long())]), "client 0"),
    "lengths differ": (lambda d: replace(d, test=Samples(d.test.x[:-1], d.test.y)), "the test set has inputs"),
    "not finite": (lambda d: replace(d, test=Samples(d.test.x * float("nan"), d.test.y)), "finite"),
    "no tensors": (lambda d: replace(d, test=Samples(d.test.x.numpy(), d.test.y)), "tensors"),
    "no function": (lambda d: replace(d, clients=[replace(d.clients[0], augment="flip")]), "augment 'flip', expected"),
    "not a federation": (lambda d: d.test, "expected a FederatedData, got a Samples"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_data_is_refused_in_one_line_and_nothing_is_written(case, tiny, tmp_path):
    change, words = BAD[case]
    with pytest.raises(DataError) as error:
        fastagg.sim.run(tiny(), data=change(federation()), out=tmp_path / "run")
    assert words in str(error.value) and "\n" not in str(error.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (lambda shape, classes: "a network", "returned a str"),
        (lambda shape, classes: nn.Linear(7, classes), "cannot read inputs of shape"),
        (lambda shape, classes: nn.Linear(5, 9), r"returns \(2, 9\) for two inputs, expected \(2, 2\)"),
        (lambda shape: nn.Linear(5, 2), "does not take"),
        (lambda shape, classes: nn.Linear(5, 2).requires_grad_(False), "has no parameter that trains"),
    ],
)
def test_a_factory_that_makes_no_fitting_network_is_refused(model, words, tiny, tmp_path):
    with pytest.raises(ConfigError, match=words):
        fastagg.sim.run(tiny(), data=federation(), model=model, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


MODULE = """
import torch
from torch import nn
from fastagg.sim.data.federated import FederatedData, Samples

def data(clients, seed, samples=10):
    rng = torch.Generator().manual_seed(seed)
    make = lambda n: Samples(torch.randn(n, 3, generator=rng), torch.arange(n) % 2)
    return FederatedData([make(samples) for _ in range(clients)], make(8), 2)

def few(clients, seed):
    return data(clients - 1, seed)

def none(clients, seed):
    return data(clients, seed, samples=0)

def model(shape, classes, hidden=3):
    return nn.Sequential(nn.Linear(shape[0], hidden), nn.ReLU(), nn.Linear(hidden, classes))

number = 3
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module in the current folder, one of its own in every test: imports are remembered."""
    name = f"own_{abs(hash(str(tmp_path))) % 10**9}"
    (tmp_path / f"{name}.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    return name


def by_function(tiny_toml: str, module: str, **changes: object):
    return from_toml(
        tiny_toml,
        "tiny",
        {
            "data": {"name": f"{module}:data", "clients": 12, "samples": 6},
            "model": {"name": f"{module}:model", "hidden": 5},
            **changes,
        },
    )


def test_a_recipe_names_functions(tiny_toml, module):
    config = by_function(tiny_toml, module)
    assert from_toml(to_toml(config), "again") == config
    simulation = Simulation(config)
    assert [len(samples) for samples in simulation.data.clients] == [6] * 12
    assert simulation.module[0].out_features == 5 and simulation.by_torch is None


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"data.name": "nowhere:data"}, ConfigError, "data.name: 'nowhere:data' cannot be found"),
        ({"data.name": "{}:number"}, ConfigError, "is a int, expected a function"),
        ({"data.name": "{}:few"}, ConfigError, "does not take"),
        ({"model.name": "{}:missing"}, ConfigError, "model.name: .* cannot be found"),
        ({"model.depth": 3}, ConfigError, "model.name: the function does not take"),
        ({"data": {"name": "{}:few", "clients": 12}}, DataError, r"returned 11 clients, data\.clients is 12"),
        ({"data": {"name": "{}:none", "clients": 12}}, DataError, "data function {}:none: client 0 has no samples"),
    ],
)
def test_functions_that_do_not_fit_are_refused(tiny_toml, module, changes, error, words):
    changes = json.loads(json.dumps(changes).replace("{}", module))
    config = from_toml(to_toml(by_function(tiny_toml, module)), "tiny", changes)
    with pytest.raises(error, match=words.format(module)):
        Simulation(config)


@pytest.mark.parametrize(
    ("name", "shape", "parameters"),
    [
        ("logistic", (60,), 60 * 10 + 10),
        ("mlp", (1, 8, 8), 64 * 5 + 5 + 5 * 7 + 7 + 7 * 10 + 10),
        # Two convolutions without bias, their BatchNorms, then 7 channels of 4x4.
        ("cnn", (1, 8, 8), 9 * 5 + 2 * 5 + 9 * 5 * 7 + 2 * 7 + 7 * 16 * 10 + 10),
        ("cnn", (1, 28, 28), 9 * 5 + 2 * 5 + 9 * 5 * 7 + 2 * 7 + 7 * 196 * 10 + 10),
    ],
)
def test_models_map_inputs_to_logits_with_the_expected_parameters(name, shape, parameters):
    model = build(name, shape, classes=10, widths=[5, 7], seed=0)
    assert model(torch.zeros(3, *shape)).shape == (3, 10)
    assert sum(p.numel() for p in model.parameters()) == parameters


@pytest.mark.parametrize(
    ("network", "shape", "classes", "parameters"),
    [
        (resnet.resnet18, (3, 32, 32), 10, 11_173_962), (resnet.resnet18, (3, 32, 32), 100, 11_220_132),
        # 3x3 convolutions to 32 and 64 channels, a linear layer on 64 channels of 14x14.
        (leaf.cnn, (1, 28, 28), 62, 9 * 32 + 32 + 9 * 32 * 64 + 64 + 64 * 14 * 14 * 62 + 62),
    ],
)  # fmt: skip
def test_the_papers_networks_have_their_sizes(network, shape, classes, parameters):
    model = network(shape, classes)
    assert sum(p.numel() for p in model.parameters()) == parameters
    assert model(torch.zeros(2, *shape)).shape == (2, classes)
    with pytest.raises(ConfigError, match=r"takes \d widths"):
        network(shape, classes, [4, 4, 4])


def test_the_lstm_predicts_from_the_whole_text_and_has_its_size():
    model = shakespeare.NextCharacter((80,), 80)
    first, second = (4 * 256 * (before + 256) + 2 * 4 * 256 for before in (8, 256))
    assert sum(p.numel() for p in model.parameters()) == 80 * 8 + first + second + 256 * 80 + 80
    tokens = torch.arange(80).repeat(3, 1).int()
    tokens[1, 0] = 5  # the first character
    tokens[2, -1] = 5  # the last one
    logits = model(tokens)
    assert logits.shape == (3, 80)
    assert not torch.equal(logits[0], logits[1])
    assert not torch.allclose(logits[0], logits[2])


def test_the_weights_depend_on_the_seed_alone_and_torch_is_left_as_it_was():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    models = [build("mlp", (4,), 2, [3], seed) for seed in (0, 0, 1)]
    assert torch.equal(torch.rand(3), expected)
    flat = [torch.nn.utils.parameters_to_vector(model.parameters()) for model in models]
    assert torch.equal(flat[0], flat[1])
    assert not torch.equal(flat[0], flat[2])
