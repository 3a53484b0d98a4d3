"""Every recipe and every cell of every table, built on tiny files in the formats their data is read from."""

import pytest
import torch

from fastagg.sim import recipes
from fastagg.sim.one.build import build_data, build_model
from fastagg.sim.recipes import tables

from .fake_data import write_everything, write_models


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
        found.setdefault((config.data.model_dump_json(), config.model.model_dump_json()), (name, config.data))
    for name in tables.names():
        for cell in tables.load(name).cells:
            config = cell.config
            if config.data.shown.startswith("solutions:"):
                continue  # test_solutions.py has a tiny model for it
            key = config.data.model_dump_json(), config.model.model_dump_json()
            found.setdefault(key, (f"{name}: {config.label}", config.data))
    worlds = []
    for (_, model), (where, data) in found.items():
        kind = (model, *(word for word in data.model_dump().values() if isinstance(word, str)))
        worlds.append(pytest.param(data, model, id=where, marks=[pytest.mark.slow] if kind in kinds else []))
        kinds.add(kind)
    return worlds


@pytest.mark.parametrize(("data", "model"), worlds())
def test_data_and_model_go_together(folder, data, model):
    from fastagg.sim.recipes.sections import Model

    if data.shown.startswith("texts:"):
        pytest.importorskip("transformers")
        pytest.importorskip("peft")
        if not (folder / "bert-base-uncased").is_dir():
            write_models(folder)
    if data.shown == "lora:modules":  # Python's own files, and a base that was trained before
        from lora import Writer

        torch.save(Writer().state_dict(), folder / "base.pt")
        model = model.replace("base.pt", str(folder / "base.pt"))
    elif hasattr(data, "dir"):
        data = data.model_copy(update={"dir": str(folder)})
    federation = build_data(data, seed=0)
    assert len(federation.clients) == data.clients
    module = build_model(Model.model_validate_json(model), federation, seed=0)
    logits, labels = module(federation.clients[0].x[:2]), federation.clients[0].y[:2]
    assert logits.shape == (*labels.shape, federation.classes)
    torch.nn.functional.cross_entropy(logits.flatten(0, -2), labels.flatten()).backward()
    assert all(p.grad is not None for p in module.parameters() if p.requires_grad)
