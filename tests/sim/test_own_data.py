"""Data and models of one's own: from Python, from an .npz file, from a function that a recipe names."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import fastagg.sim
from fastagg.errors import ConfigError, DataError
from fastagg.sim.data.federated import FederatedData, Samples
from fastagg.sim.one.simulation import Simulation
from fastagg.sim.recipes.config import from_toml, to_toml


def federation(clients: int = 12, seed: int = 0) -> FederatedData:
    rng = torch.Generator().manual_seed(seed)

    def samples(count: int) -> Samples:
        x = torch.randn(count, 5, generator=rng)
        return Samples(x, (x.sum(dim=1) > 0).long())

    return FederatedData([samples(20) for _ in range(clients)], samples(50), 2)


def linear(shape, classes, hidden=4):
    return nn.Sequential(nn.Linear(shape[0], hidden), nn.ReLU(), nn.Linear(hidden, classes))


def test_a_program_s_data_and_model_are_trained(tiny, tmp_path):
    result = fastagg.sim.run(tiny(), data=federation(), model=linear, out=tmp_path / "run")
    assert result.summary["fused"] is True and result.summary["parameters"] == 5 * 4 + 4 + 4 * 2 + 2
    assert result.rows[-1].loss < result.rows[0].loss
    assert result.config.data.name == "given" and result.config.model.name == "given"
    again = fastagg.sim.run(tiny(), data=federation(), model=linear)
    assert again.rows == result.rows
    with pytest.raises(ConfigError, match="given"):  # the folder's recipe cannot know them
        fastagg.sim.run(str(tmp_path / "run" / "config.toml"))


def test_a_model_that_torch_trains_says_why(tiny):
    result = fastagg.sim.run(
        tiny(),
        data=federation(),
        model=lambda shape, classes: nn.Sequential(nn.Linear(5, 4), nn.GELU(), nn.Linear(4, 2)),
    )
    assert "GELU" in result.summary["fused"]


def test_recipes_by_name_and_dict(tiny):
    changes = {"run.uploads": 10, "data.clients": 12, "participation.concurrency": 6, "seed": 3}
    result = fastagg.sim.run("fedbuff-digits-large", changes)
    assert result.summary["uploads"] == 10 and result.config.seed == 3
    assert fastagg.sim.run(tiny().model_dump(), {"run.uploads": 5}).summary["uploads"] == 5


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
            "data": {"name": f"{module}:data", "clients": 12, "keywords": {"samples": 6}},
            "model": {"name": f"{module}:model", "keywords": {"hidden": 5}},
            **changes,
        },
    )


def test_a_recipe_names_functions(tiny_toml, module):
    config = by_function(tiny_toml, module)
    assert from_toml(to_toml(config), "again") == config
    simulation = Simulation(config)
    assert [len(samples) for samples in simulation.data.clients] == [6] * 12
    assert simulation.module[0].out_features == 5 and simulation.by_torch is None


def test_keys_of_a_functions_own_are_its_arguments(tiny_toml, module):
    beside = {"data": {"name": f"{module}:data", "clients": 12, "samples": 6}, "model": {"name": f"{module}:model"}}
    config = from_toml(tiny_toml, "tiny", {**beside, "model.hidden": 5})
    assert config == by_function(tiny_toml, module)
    changed = from_toml(to_toml(config), "tiny", {"data.samples": 7})
    assert (changed.data.keywords, changed.model.keywords) == ({"samples": 7}, {"hidden": 5})


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"data.call": "nowhere:data"}, ConfigError, "data.name: 'nowhere:data' cannot be found"),
        ({"data.call": "{}:number"}, ConfigError, "is a int, expected a function"),
        ({"data.call": "{}:few"}, ConfigError, "does not take"),
        ({"model.call": "{}:missing"}, ConfigError, "model.name: .* cannot be found"),
        ({"model.keywords": {"depth": 3}}, ConfigError, "model.name: the function does not take"),
        ({"data.call": "{}:few", "data.keywords": {}}, DataError, r"returned 11 clients, data\.clients is 12"),
        ({"data.call": "{}:none", "data.keywords": {}}, DataError, "data function {}:none: client 0 has no samples"),
    ],
)
def test_functions_that_do_not_fit_are_refused(tiny_toml, module, changes, error, words):
    changes = {key: value.format(module) if isinstance(value, str) else value for key, value in changes.items()}
    config = from_toml(to_toml(by_function(tiny_toml, module)), "tiny", changes)
    with pytest.raises(error, match=words.format(module)):
        Simulation(config)


def test_an_unknown_name_is_answered_with_what_a_recipe_may_say(tiny_toml):
    with pytest.raises(ConfigError, match=r"unknown name 'nothing' \(known: .*'module:function'\)"):
        from_toml(tiny_toml, "tiny", {"data": {"name": "nothing", "clients": 12}})
