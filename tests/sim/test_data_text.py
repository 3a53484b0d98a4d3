"""GLUE and 20 Newsgroups with tiny pretrained models that are made here: random weights, a vocabulary of words."""

import pytest
import torch

from fastagg.errors import ConfigError, DataError
from fastagg.sim.recipes.config import from_dict
from fastagg.sim.runs.build import build_model
from fastagg.sim.runs.run import run

from .fake_data import PAIRS, WORDS, load, recipe, save_pretrained, write_newsgroups, write_rte

transformers = pytest.importorskip("transformers")


def text(name, folder, **keys):
    return {"name": f"texts:{name}", "dir": str(folder), "alpha": 1.0, "pretrained": "tiny", **keys}


def glue(folder, task):
    return text("glue", folder, task=task, clients=2, max_length=12)


def transformer(data):
    return build_model(recipe(model={"name": "transformer:classifier"}, name="digits"), data)


def tokens(*words):
    return [WORDS.index(word) for word in words]


def test_rte_pairs_become_padded_tokens(tmp_path):
    save_pretrained(tmp_path / "tiny")
    write_rte(tmp_path)
    data = load(**glue(tmp_path, "rte"))
    expected = tokens("[CLS]", "the", "cat", "runs", ".", "[SEP]", "yes", "a", "dog", "[SEP]", "[PAD]", "[PAD]")
    assert data.test.x[0].tolist() == expected
    assert data.test.y.tolist() == [0, 1] * 4
    assert sum(len(c) for c in data.clients) == 16
    assert data.text.pretrained == tmp_path / "tiny"


def test_glue_saved_by_datasets_and_as_parquet_are_the_same_as_tsv(tmp_path):
    datasets = pytest.importorskip("datasets")
    rows = [{"sentence1": a, "sentence2": b, "label": y} for a, b, y in PAIRS]
    parts = {"train": datasets.Dataset.from_list(rows[:16]), "validation": datasets.Dataset.from_list(rows[16:])}
    found = []
    for form in ("tsv", "saved", "parquet"):
        folder = tmp_path / form
        save_pretrained(folder / "tiny")
        if form == "tsv":
            write_rte(folder)
        elif form == "saved":
            datasets.DatasetDict(parts).save_to_disk(str(folder / "rte"))
        else:
            for split, part in parts.items():
                (folder / "rte").mkdir(exist_ok=True)
                part.to_parquet(str(folder / "rte" / f"{split}-00000-of-00001.parquet"))
        found.append(load(**glue(folder, "rte")))
    for other in found[1:]:
        assert torch.equal(found[0].test.x, other.test.x)
        assert torch.equal(found[0].clients[0].y, other.clients[0].y)


def test_damaged_tables_name_the_file(tmp_path):
    save_pretrained(tmp_path / "tiny")
    write_rte(tmp_path)
    path = tmp_path / "RTE" / "train.tsv"
    whole = path.read_text()
    for content, message in (
        ("", "train.tsv is not a readable table"),
        ("index\tsentence1\tlabel\n0\tyes\t0\n", "lacks the column sentence2"),
        (whole.rsplit("\t", 1)[0], "unknown label"),
        (whole.replace("not_entailment", "maybe"), "unknown label 'maybe'"),
        (whole.splitlines()[0], "train.tsv is not a readable table"),
    ):
        path.write_text(content)
        with pytest.raises(DataError, match=message):
            load(**glue(tmp_path, "rte"))


def test_an_absent_or_damaged_pretrained_model_says_what_to_put_where(tmp_path):
    write_rte(tmp_path)
    with pytest.raises(DataError, match=r"no pretrained model 'tiny'.*save_pretrained"):
        load(**glue(tmp_path, "rte"))
    save_pretrained(tmp_path / "tiny")
    data = load(**glue(tmp_path, "rte"))
    weights = tmp_path / "tiny" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:100])
    with pytest.raises(DataError, match="no readable model"):
        transformer(data)
    (tmp_path / "tiny" / "config.json").write_text("{}")
    for name in ("tokenizer.json", "tokenizer_config.json", "vocab.txt"):
        (tmp_path / "tiny" / name).unlink(missing_ok=True)
    with pytest.raises(DataError, match="no readable tokenizer"):
        load(**glue(tmp_path, "rte"))


def test_newsgroups_are_read_from_their_folders(tmp_path):
    save_pretrained(tmp_path / "tiny", "distilbert")
    write_newsgroups(tmp_path)
    data = load(**text("newsgroups", tmp_path, clients=4, max_length=8))
    assert data.classes == 20
    assert sorted(data.test.y.tolist()) == sorted([*range(20), *range(20)])
    model = transformer(data)
    x = data.test.x[:3]
    assert model(x).shape == (3, 20)
    assert not torch.equal(model.train()(x), model.train()(x))  # the model's own dropout


@pytest.fixture
def rte(tmp_path):
    save_pretrained(tmp_path / "tiny")
    write_rte(tmp_path)
    return load(**glue(tmp_path, "rte"))


@pytest.mark.parametrize("algorithm", [{"name": "FADAS", "lr": 0.01, "buffer_size": 2}, {"name": "ACE", "lr": 0.01}])
def test_adapters_are_trained_through_a_whole_run(tmp_path, algorithm):
    pytest.importorskip("peft")
    save_pretrained(tmp_path / "tiny")
    write_rte(tmp_path)
    data = glue(tmp_path, "rte")
    values = {
        "name": "lora",
        "algorithm": algorithm,
        "data": data,
        "model": {"name": "transformer:classifier", "lora_rank": 1},
        "client": {"lr": 0.01, "batch_size": 4, "steps": 1},
        "delay": {"name": "exponential"},
        "run": {"uploads": 6, "evaluate_every": 2},
    }
    one, again = (run(from_dict(values, "lora")) for _ in range(2))
    assert one.summary["parameters"] == 162
    assert one.rows == again.rows
    assert one.rows[0].loss != one.rows[-1].loss


def test_text_and_models_that_do_not_go_together_are_refused(rte):
    with pytest.raises(ConfigError, match="cannot read text"):
        build_model(recipe(name="digits"), rte)
    with pytest.raises(ConfigError, match="needs data with a pretrained model"):
        transformer(load("digits"))
