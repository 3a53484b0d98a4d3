"""Tables: how a file of methods and settings becomes recipes, and that those in the package are sound."""

from importlib.resources import files

import pytest

from fastagg.cli.runs import catalogue
from fastagg.errors import ConfigError
from fastagg.registry import presets
from fastagg.sim import recipes
from fastagg.sim.clients.own import UserFunctions
from fastagg.sim.recipes import names as recipe_names
from fastagg.sim.recipes import tables
from fastagg.sim.recipes.tables import Table, load, merge
from fastagg.sim.runs.build import build_distillation, build_server, check_clients

BASE = """
title = "A table"
source = "Nobody, Table 1"

[base]
data = { name = "digits", clients = 12 }
client = { lr = 0.1, steps = 1 }
delay = { name = "three-class" }
participation = { rule = "concurrency", concurrency = 6 }
run = { uploads = 30 }

[methods.FedBuff]
algorithm = { name = "FedBuff", lr = 1.0, buffer_size = 3 }
at."Dir(1)" = { client = { lr = 0.3 }, algorithm = { lr = 0.5 } }

[methods.FedAvg]
algorithm = { name = "FedAvg", clients_per_round = 5 }
participation = { rule = "round" }

[settings."Dir(0.1)"]
data = { alpha = 0.1 }

[settings."Dir(1)"]
data = { alpha = 1.0 }

[paper.values.FedAvg]
"Dir(1)" = [50.0, 1.5]
"""


def methods(table: Table) -> list[str]:
    return list(dict.fromkeys(cell.method for cell in table.cells))


def settings(table: Table) -> list[str]:
    return list(dict.fromkeys(cell.setting for cell in table.cells))


@pytest.fixture
def base(tmp_path):
    path = tmp_path / "base.toml"
    path.write_text(BASE)
    return str(path)


def test_cells_are_methods_by_settings(base):
    table = load(base)
    assert (methods(table), settings(table)) == (["FedBuff", "FedAvg"], ["Dir(0.1)", "Dir(1)"])
    assert [cell.config.label for cell in table.cells] == [
        "FedBuff, Dir(0.1)", "FedBuff, Dir(1)", "FedAvg, Dir(0.1)", "FedAvg, Dir(1)",
    ]  # fmt: skip
    configs = [cell.config for cell in table.cells]
    assert [c.data.alpha for c in configs] == [0.1, 1.0, 0.1, 1.0]
    assert [c.client.lr for c in configs] == [0.1, 0.3, 0.1, 0.1]
    assert configs[1].algorithm.keywords == {"lr": 0.5, "buffer_size": 3}
    assert configs[2].participation.concurrency is None
    assert [c.name for c in configs] == [
        "base.fedbuff.dir-0.1", "base.fedbuff.dir-1", "base.fedavg.dir-0.1", "base.fedavg.dir-1",
    ]  # fmt: skip


def test_a_section_that_says_its_name_replaces_and_others_are_merged():
    below = {"data": {"name": "digits", "alpha": 0.1}, "client": {"lr": 0.1, "steps": 2}, "seed": 1}
    above = {"data": {"name": "synthetic"}, "client": {"lr": 0.3}, "seed": 2}
    merged = merge(below, above)
    assert merged == {"data": {"name": "synthetic"}, "client": {"lr": 0.3, "steps": 2}, "seed": 2}
    assert below["client"] == {"lr": 0.1, "steps": 2}


def test_a_grid_is_every_combination(tmp_path):
    text = BASE.split("[settings")[0].replace('at."Dir(1)"', 'at."alpha=1.0, buffer_size=2"')
    (tmp_path / "grid.toml").write_text(
        text.split("[methods.FedAvg]")[0] + '[grid]\n"data.alpha" = [0.1, 1.0]\n"algorithm.buffer_size" = [2, 4]\n'
    )
    table = load(str(tmp_path / "grid.toml"))
    assert settings(table) == [f"alpha={a}, buffer_size={m}" for a in (0.1, 1.0) for m in (2, 4)]
    found = [(c.config.data.alpha, c.config.algorithm.keywords["buffer_size"]) for c in table.cells]
    assert found == [(0.1, 2), (0.1, 4), (1.0, 2), (1.0, 4)]
    assert [c.config.client.lr for c in table.cells] == [0.1, 0.1, 0.3, 0.1]


def test_a_table_can_extend_another(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "names", lambda: [])
    (tmp_path / "base.toml").write_text(BASE)
    child = f"""
    title = "Another"
    source = "Nobody, Table 2"
    extends = "{tmp_path / "base.toml"}"
    only = ["FedBuff", "FADAS"]
    [base]
    data = {{ name = "synthetic:load", clients = 12 }}
    [methods.FADAS]
    algorithm = {{ name = "FADAS" }}
    [settings."Dir(1)"]
    data = {{ alpha = 2.0 }}
    """
    (tmp_path / "child.toml").write_text(child)
    table = load(str(tmp_path / "child.toml"))
    assert (table.title, methods(table), settings(table)) == ("Another", ["FedBuff", "FADAS"], ["Dir(0.1)", "Dir(1)"])
    data, client = [c.config.data for c in table.cells[:2]], table.cells[1].config.client
    assert [(one.name, one.clients, one.keywords["alpha"]) for one in data] == [
        ("synthetic:load", 12, 0.1),
        ("synthetic:load", 12, 2.0),
    ]
    assert (client.lr, client.steps) == (0.3, 1)  # the method came with its changes


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("[base]", "[base]\nmethod = 1"), "unknown key method"),
        (('title = "A table"', "titel = 1"), "titel"),
        (("alpha = 0.1", "alpha = -0.1"), "FedBuff, Dir(0.1): data.alpha"),
        (('at."Dir(1)"', 'at."Dir(2)"'), "FedBuff has changes at Dir(2), which is no setting"),
        (('at."Dir(1)"', 'not_at = ["Dir(3)"]\nat."Dir(1)"'), "FedBuff has changes at Dir(3)"),
        (("[settings", 'only = ["FedAsync"]\n[settings'), "only"),
        (("[paper.values.FedAvg]", '[grid]\n"data.alpha" = [1.0]\n[paper.values.FedAvg]'), "settings or grid"),
        (("[base]", "[base"), "not valid TOML"),
    ],
)
def test_a_wrong_table_is_one_line_that_names_the_place(tmp_path, change, message):
    path = tmp_path / "wrong.toml"
    path.write_text(BASE.replace(*change, 1))
    with pytest.raises(ConfigError) as error:
        load(str(path))
    assert message in str(error.value)
    assert "wrong" in str(error.value)


def test_a_table_needs_no_source_and_a_method_may_be_left_out_of_a_setting(tmp_path):
    path, text = tmp_path / "small.toml", BASE.replace('source = "Nobody, Table 1"\n', "")
    path.write_text(text.replace('at."Dir(1)"', 'not_at = ["Dir(0.1)"]\nat."Dir(1)"'))
    found = [(cell.method, cell.setting) for cell in load(str(path)).cells]
    assert found == [("FedBuff", "Dir(1)"), ("FedAvg", "Dir(0.1)"), ("FedAvg", "Dir(1)")]


def test_an_unknown_or_unreadable_table_is_a_config_error(tmp_path):
    with pytest.raises(ConfigError, match=r"no recipe 'fadas'.*fastagg recipes"):
        load("fadas")
    with pytest.raises(ConfigError, match="cannot read the table"):
        load(str(tmp_path / "none.toml"))


def test_files_and_names_of_tables_are_told_from_recipes(base, tmp_path, tiny_toml):
    (tmp_path / "tiny.toml").write_text(tiny_toml)
    assert tables.is_table(base)
    assert tables.is_table("fadas-table2")
    assert not tables.is_table(str(tmp_path / "tiny.toml"))
    assert not tables.is_table("fadas-digits-large")
    assert not set(tables.names()) & set(recipe_names())


@pytest.mark.parametrize("name", tables.names())
def test_every_cell_of_every_table_is_a_recipe_with_a_server(name):
    import torch

    table = load(name)
    assert table.title
    assert len({cell.config.name for cell in table.cells}) == len(table.cells)
    for cell in table.cells:
        config = cell.config
        assert config.algorithm.name in presets() or ":" in config.algorithm.name
        module = torch.nn.Linear(2, 2)
        if distill := build_distillation(config, module, torch.zeros(3, 2)):
            theirs = config.data.name == "solutions:load" or "unlabelled" in config.data.model_dump()
            assert config.unlabelled.share or theirs
        server = build_server(config, module, config.data.clients, distill)
        check_clients(config, server, UserFunctions())


@pytest.mark.parametrize("name", [n for n in tables.names() if not n.endswith("-small") and "fedecho" not in n])
def test_every_table_has_a_small_twin_that_needs_no_files(name):
    data = [cell.config.data for cell in load(name).cells]
    small = {"npz:load", "lora:modules", "synthetic:load"}
    if not any("dir" in one.model_dump() for one in data) or {one.name for one in data} <= small:
        return  # its own data is always there, or it is of the size of a desk itself
    assert f"{name}-small" in tables.names()


@pytest.mark.parametrize("name", [name for name in tables.names() if name.endswith("-small")])
def test_small_twins_need_no_files(name):
    assert not {c.config.data.name for c in load(name).cells} - {"digits", "synthetic:load"}


def test_the_packages_own_tables_need_no_files_and_no_checkout(monkeypatch):
    monkeypatch.setattr(recipes, "_places", lambda folder: iter([files(recipes.__name__).joinpath(folder)]))
    assert "fedecho-table2-small" in tables.names() and "fadas-table2" not in tables.names()
    assert all(not hasattr(cell.config.data, "dir") for name in tables.names() for cell in load(name).cells)
    with pytest.raises(ConfigError, match=r"no recipe 'fadas-table2'.*reproduction/ of fastagg's repository"):
        load("fadas-table2")


def test_the_current_folders_checkout_has_its_tables(tmp_path, monkeypatch):
    (tmp_path / "fastagg" / "sim").mkdir(parents=True)
    (tmp_path / "reproduction").mkdir()
    (tmp_path / "reproduction" / "mine.toml").write_text(BASE)
    monkeypatch.setattr(recipes, "__file__", str(tmp_path / "site-packages" / "fastagg" / "sim" / "recipes" / "a.py"))
    assert "mine" not in tables.names()
    monkeypatch.chdir(tmp_path)
    assert "mine" in tables.names() and methods(load("mine")) == ["FedBuff", "FedAvg"]


def test_the_catalogue_has_every_recipe_and_table_in_one_line_each():
    entries = {name: entry for name, *entry in catalogue()}
    assert list(entries) == [*recipe_names(), *tables.names()]
    assert entries["fadas-digits-large"][::2] == ["1 run on digits", "FADAS"]
    assert entries["fadas-table2"][0].startswith("8 runs on ") and entries["fadas-table2"][0].endswith(" in files")
    assert "on cifar:cifar10, cifar:cifar100, texts:glue in files" in entries["fadas-table7"][0]
    assert all(load(name).title.rstrip(".") == entries[name][1] for name in tables.names())
    assert not any("\n" in purpose for _, purpose, _ in entries.values())


def test_running_a_table_as_one_recipe_says_what_to_do():
    from fastagg.sim.recipes import load as load_recipe

    with pytest.raises(ConfigError, match="fastagg compare fadas-table2"):
        load_recipe("fadas-table2")
