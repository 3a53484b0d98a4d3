"""Writes tiny data sets in every supported form, and tiny pretrained models, for the tests in this folder."""

import io
import json
import struct

import cifar
import mnist
import numpy as np
import pytest
import torch

from fastagg.sim.recipes.config import Config, from_toml
from fastagg.sim.runs.build import build_data

from .conftest import TINY

RNG = np.random.default_rng(0)
TRAIN = 250
IMAGES = RNG.integers(0, 256, (TRAIN + 10, 3, 32, 32)).astype(np.uint8)  # the last 10 are the test set


def recipe(seed=0, model=None, **data) -> Config:
    """Return the tiny recipe with other data."""
    more = {} if model is None else {"model": model}
    return from_toml(TINY, "tiny", {"data": data, "participation": {"rule": "all"}, "seed": seed, **more})


def load(name, **keys):
    return build_data(recipe(name=name, **keys))


def arrays(**changes: np.ndarray) -> dict[str, np.ndarray]:
    """Return a data set of one's own: images of 8 x 8 pixels, 4 classes."""
    rng = np.random.default_rng(0)
    found = {
        "x_train": rng.integers(0, 256, (60, 8, 8, 3), dtype=np.uint8),
        "y_train": np.arange(60) % 4,
        "x_test": rng.integers(0, 256, (20, 8, 8, 3), dtype=np.uint8),
        "y_test": np.arange(20) % 4,
    }
    return {**found, **changes}


def write_arrays(folder, classes, labels):
    x, y = IMAGES.transpose(0, 2, 3, 1), labels
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(folder / f"cifar{classes}.npz", x_train=x[:TRAIN], y_train=y[:TRAIN], x_test=x[TRAIN:], y_test=y[TRAIN:])


def write_parquet(folder, classes, labels):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    image = pytest.importorskip("PIL.Image")
    pytest.importorskip("datasets")  # reads them

    def png(pixels):
        stream = io.BytesIO()
        image.fromarray(pixels.transpose(1, 2, 0)).save(stream, "PNG")
        return {"bytes": stream.getvalue(), "path": None}

    for split, part in (("train", range(TRAIN)), ("test", range(TRAIN, TRAIN + 10))):
        names = [names[0] for names in cifar.COLUMNS[classes]]
        table = {names[0]: [png(IMAGES[i]) for i in part], names[1]: [int(labels[i]) for i in part]}
        parquet.write_table(arrow.table(table), folder / f"{split}-00000-of-00001.parquet")


def idx(array):
    return struct.pack(">HBB", 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def write_mnist(folder, pack=lambda data: data, ending=""):
    folder.mkdir(parents=True, exist_ok=True)
    images, labels = RNG.integers(0, 256, (40, 28, 28)).astype(np.uint8), (np.arange(40) % 10).astype(np.uint8)
    for key, part in (("train", slice(30)), ("test", slice(30, 40))):
        (folder / (mnist.IDX[f"x_{key}"] + ending)).write_bytes(pack(idx(images[part])))
        (folder / (mnist.IDX[f"y_{key}"] + ending)).write_bytes(pack(idx(labels[part])))


def write_leaf(path, users):
    path.parent.mkdir(parents=True, exist_ok=True)
    data = {user: {"x": x, "y": y} for user, (x, y) in users.items()}
    path.write_text(
        json.dumps({"users": list(users), "num_samples": [len(y) for _, y in users.values()], "user_data": data})
    )


def vector_users(width, counts, classes):
    return {
        f"f_{k:05}": (RNG.random((n, width)).round(3).tolist(), [float(i % classes) for i in range(n)])
        for k, n in enumerate(counts)
    }


PLAY = "First Citizen:\n{}\n\nAll:\n{}\n\nFirst Citizen:\n{}\n"


WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "yes", "no", "a", "cat", "dog", "the", "runs", '"quoted', "."]
SIZES = {"vocab_size": len(WORDS), "max_position_embeddings": 128}
BERT = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24, **SIZES}
DISTILBERT = {"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 24, **SIZES}


def save_pretrained(folder, kind="bert"):
    transformers = pytest.importorskip("transformers")
    folder.mkdir(parents=True)
    (folder / "vocab.txt").write_text("\n".join(WORDS))
    transformers.BertTokenizerFast(
        vocab_file=str(folder / "vocab.txt"), vocab={w: i for i, w in enumerate(WORDS)}
    ).save_pretrained(folder)
    torch.manual_seed(0)
    if kind == "bert":
        transformers.BertModel(transformers.BertConfig(**BERT)).save_pretrained(folder)
    else:
        transformers.DistilBertModel(transformers.DistilBertConfig(**DISTILBERT)).save_pretrained(folder)


PAIRS = [("the cat runs .", "yes a dog", i % 2) for i in range(24)]  # 16 to train on, 8 to test


def write_rte(folder, rows=PAIRS):
    (folder / "RTE").mkdir(parents=True, exist_ok=True)
    label = ("entailment", "not_entailment")
    for file, part in (("train.tsv", rows[:-8]), ("dev.tsv", rows[-8:])):
        lines = [f"{i}\t{a}\t{b}\t{label[y]}" for i, (a, b, y) in enumerate(part)]
        (folder / "RTE" / file).write_text("\n".join(["index\tsentence1\tsentence2\tlabel", *lines]) + "\n")


def write_mrpc(folder):
    (folder / "MRPC").mkdir()
    for file in ("train.tsv", "dev.tsv"):
        lines = [f'{y}\t1\t2\t{a}\t"quoted {b}' for a, b, y in PAIRS]
        text = "\n".join(["Quality\t#1 ID\t#2 ID\t#1 String\t#2 String", *lines])
        (folder / "MRPC" / file).write_text(text, encoding="utf-8-sig")


def write_sst2(folder):
    (folder / "SST-2").mkdir()
    for file in ("train.tsv", "dev.tsv"):
        (folder / "SST-2" / file).write_text("\n".join(["sentence\tlabel", *(f"{a}\t{y}" for a, _, y in PAIRS)]))


def write_newsgroups(folder):
    for split in ("train", "test"):
        for group in range(20):
            place = folder / f"20news-bydate-{split}" / f"group.{group:02}"
            place.mkdir(parents=True)
            for message in range(2):
                (place / str(message)).write_bytes("the cat runs \xe9".encode("latin-1"))


def write_math(folder, rows=150, words=24):
    """Write MathInstruct with three collections, and GSM8K: sums, in questions of ``words`` words."""
    for name in ("MathInstruct", "gsm8k"):
        (folder / name).mkdir(parents=True)
    zeros = "0 plus " * (words // 2 - 2)
    questions = [(f"{i % 9} plus {i % 7} plus {zeros}0", i % 9 + i % 7) for i in range(rows)]
    train = [
        {"source": f"collection/{i % 3}.json", "instruction": q, "output": f"the answer is {a}"}
        for i, (q, a) in enumerate(questions)
    ]
    (folder / "MathInstruct" / "MathInstruct.json").write_text(json.dumps(train))
    test = [json.dumps({"question": q, "answer": f"the answer #### {a}"}) for q, a in questions[:12]]
    (folder / "gsm8k" / "test.jsonl").write_text("\n".join(test) + "\n")


def save_writer(folder):
    """Save a tiny Qwen2 with random weights. Its tokenizer has one token for each byte."""
    transformers, tokenizers = pytest.importorskip("transformers"), pytest.importorskip("tokenizers")
    folder.mkdir(parents=True)
    letters = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: i for i, letter in enumerate(letters)} | {"<|endoftext|>": len(letters)}
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    files = {"vocab_file": str(folder / "vocab.json"), "merges_file": str(folder / "merges.txt")}
    tokenizer = transformers.Qwen2TokenizerFast(**files, vocab=vocabulary, merges=[])
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = transformers.Qwen2Config(
        vocab_size=len(tokenizer), hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=600, eos_token_id=len(letters), bos_token_id=None,
    )  # fmt: skip
    transformers.Qwen2ForCausalLM(config).save_pretrained(folder)


def write_everything(folder):
    """Write one form of every data set that is read from files, for up to 100 clients, and the pretrained models."""
    write_arrays(folder, 10, np.arange(TRAIN + 10) % 10)
    write_arrays(folder, 100, np.arange(TRAIN + 10) % 100)
    images = RNG.integers(0, 256, (600, 16, 16, 3)).astype(np.uint8)
    y = np.arange(600) % 10
    np.savez(folder / "cifar10_16x16.npz", x_train=images, y_train=y, x_test=images[:20], y_test=y[:20])
    images, labels = RNG.integers(0, 256, (TRAIN, 28, 28)).astype(np.uint8), np.arange(TRAIN, dtype=np.uint8) % 10
    arrays = {"x_train": images, "y_train": labels, "x_test": images[:10], "y_test": labels[:10]}
    np.savez(folder / "mnist.npz", **arrays)
    write_leaf(folder / "femnist" / "all.json", vector_users(784, [20] * 12, 62))
    text = "to be or not to be that is the question " * 4
    samples = [(text[i : i + 80], text[i + 80]) for i in range(len(text) - 80)]
    roles = {f"ROLE_{k}": ([x for x, _ in samples], [y for _, y in samples]) for k in range(12)}
    write_leaf(folder / "shakespeare" / "all.json", roles)
    rows = PAIRS * 4
    write_rte(folder, rows)
    write_mrpc(folder)
    write_sst2(folder)
    write_newsgroups(folder)


def write_models(folder):
    """Write tiny models under the names the recipes ask for."""
    save_pretrained(folder / "bert-base-uncased")
    save_pretrained(folder / "distilbert-base-uncased", "distilbert")
