import pytest
import torch

from fastagg.cli import demo
from fastagg.sim import recipes
from fastagg.sim.recipes import load, names, tables
from fastagg.sim.recipes.config import to_toml
from fastagg.sim.runs.build import build_data, build_model
from fastagg.sim.runs.passed import configured

from .fake_data import write_everything, write_models


@pytest.mark.parametrize("name", names())
def test_every_recipe_is_valid_and_says_what_it_is(name):
    config = load(name)
    assert config.name == name
    assert config.label
    assert config.about.endswith(".")


def test_changes_reach_a_recipe_by_name_and_by_path(tmp_path):
    changes = {"seed": 7, "client.lr": 0.25}
    by_name = load(demo.RECIPES[0], changes)
    assert (by_name.seed, by_name.client.lr) == (7, 0.25)
    path = tmp_path / "mine.toml"
    path.write_text(to_toml(load(demo.RECIPES[0])))
    assert load(str(path), changes) == by_name


def test_the_demo_compares_methods_in_the_same_world():
    configs = demo.configs(seed=3)
    methods = ["FedAvg", "FedBuff", "FADAS", "FedAsync"]
    assert [(c.algorithm.name, c.seed) for c in configs] == [(name, seed) for name in methods for seed in (3, 4, 5)]
    for section in ("data", "model", "delay"):
        assert len({getattr(c, section).model_dump_json() for c in configs}) == 1
    assert len({c.run.uploads for c in configs}) == 1
    assert (configs[0].data.alpha, configs[0].delay.table) == (0.3, "large")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    write_everything(folder)
    return folder


def worlds():
    """Return the distinct pairs of data and model over all recipes and tables, each with one that has it.

    Slow are those that differ from an earlier one in numbers alone: how many clients, how they split the data.
    """
    found, kinds = {}, set()
    for name in recipes.names():
        config = recipes.load(name)
        found.setdefault((config.data.model_dump_json(), config.model.model_dump_json()), (name, config))
    for name in tables.names():
        for cell in tables.load(name).cells:
            config = cell.config
            if config.data.name.startswith("solutions:"):
                continue  # test_solutions.py has a tiny model for it
            key = config.data.model_dump_json(), config.model.model_dump_json()
            found.setdefault(key, (f"{name}: {config.label}", config))
    worlds = []
    for (_, model), (where, config) in found.items():
        kind = (model, *(word for word in config.data.model_dump().values() if isinstance(word, str)))
        worlds.append(pytest.param(config, id=where, marks=[pytest.mark.slow] if kind in kinds else []))
        kinds.add(kind)
    return worlds


@pytest.mark.parametrize("config", worlds())
def test_data_and_model_go_together(folder, config):
    if config.data.name.startswith("texts:"):
        pytest.importorskip("transformers")
        pytest.importorskip("peft")
        if not (folder / "bert-base-uncased").is_dir():
            write_models(folder)
    changes = {"data.dir": str(folder)} if hasattr(config.data, "dir") else {}
    if config.data.name == "lora:modules":  # Python's own files, and a base that was trained before
        from lora import Writer

        torch.save(Writer().state_dict(), folder / "base.pt")
        changes = {"model.pretrained": str(folder / "base.pt")}
    elif config.data.name == "synthetic:load":
        changes = {}
    config = configured(config, changes)
    federation = build_data(config)
    assert len(federation.clients) == config.data.clients
    module = build_model(config, federation)
    logits, labels = module(federation.clients[0].x[:2]), federation.clients[0].y[:2]
    assert logits.shape == (*labels.shape, federation.classes)
    torch.nn.functional.cross_entropy(logits.flatten(0, -2), labels.flatten()).backward()
    assert all(p.grad is not None for p in module.parameters() if p.requires_grad)
