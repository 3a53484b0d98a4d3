import pytest

from fastagg.cli import demo
from fastagg.errors import ConfigError
from fastagg.sim.recipes import load, names
from fastagg.sim.recipes.config import to_toml


def test_recipes_are_found_in_the_package():
    assert set(demo.RECIPES) < set(names())


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


def test_an_unknown_recipe_is_named_with_the_nearest_one(tmp_path, monkeypatch):
    with pytest.raises(
        ConfigError,
        match=r"no recipe 'fadas'; there are fadas-digits-cnn, fadas-digits-large, .*`fastagg recipes fadas`",
    ):
        load("fadas")
    with pytest.raises(ConfigError, match=r"no recipe 'fadas-digit-large'; did you mean 'fadas-digits-large'"):
        load("fadas-digit-large")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"cannot read the recipe none\.toml"):
        load("none.toml")


def test_the_demo_compares_methods_in_the_same_world():
    configs = demo.configs(seed=3)
    methods = ["FedAvg", "FedBuff", "FADAS", "FedAsync"]
    assert [(c.algorithm.name, c.seed) for c in configs] == [(name, seed) for name in methods for seed in (3, 4, 5)]
    for section in ("data", "model", "delay"):
        assert len({getattr(c, section).model_dump_json() for c in configs}) == 1
    assert len({c.run.uploads for c in configs}) == 1
    assert (configs[0].data.alpha, configs[0].delay.table) == (0.3, "large")
