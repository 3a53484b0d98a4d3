"""Data sets read from the files people have: tiny ones are written here in every supported form."""

import gzip

import cifar
import leaf
import mnist
import numpy as np
import pytest
import shakespeare
import torch

from fastagg.errors import DataError
from fastagg.sim.data.sections import SECTIONS, Function, named_function
from fastagg.sim.one.build import LOADERS, build_data

from .fake_data import (
    IMAGES,
    PLAY,
    TRAIN,
    vector_users,
    write_arrays,
    write_leaf,
    write_mnist,
    write_parquet,
)

NEEDS = {
    "cifar:cifar10": cifar.NEEDS.format("cifar10"), "cifar:cifar100": cifar.NEEDS.format("cifar100"),
    "mnist:load": mnist.NEEDS, "leaf:femnist": leaf.NEEDS, "shakespeare:load": shakespeare.NEEDS,
}  # fmt: skip


def section(name, **keys):
    if ":" in name:
        return SECTIONS["function"].model_validate(named_function({"name": name, **keys}, Function.model_fields))
    return SECTIONS[name](name=name, **keys)


def test_every_section_has_a_loader_of_the_same_name():
    assert set(SECTIONS) == set(LOADERS) | {"function", "given"}  # those have code of their own


@pytest.mark.parametrize("name", [*(name for name, kind in SECTIONS.items() if kind.needs), *NEEDS])
def test_absent_data_says_which_files_go_where(tmp_path, name):
    needs = NEEDS.get(name) or SECTIONS[name].needs
    for folder in (None, str(tmp_path / "none")):
        with pytest.raises(DataError) as error:
            build_data(section(name, dir=folder), seed=0)
        assert needs in str(error.value)
    with pytest.raises(DataError, match=str(tmp_path)):  # the folder is there, and empty
        build_data(section(name, dir=str(tmp_path)), seed=0)


# CIFAR -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("write", [write_arrays, write_parquet])
@pytest.mark.parametrize("classes", [10, 100])
def test_cifar_is_read_from_every_form(tmp_path, classes, write):
    labels = np.arange(TRAIN + 10) * 7 % classes
    write(tmp_path, classes, labels)
    data = build_data(section(f"cifar:cifar{classes}", dir=str(tmp_path), clients=4, alpha=1.0), seed=0)
    assert (data.shape, data.classes) == ((3, 32, 32), classes)
    assert data.test.y.tolist() == labels[TRAIN:].tolist()
    assert data.test.augment is None
    assert all(c.augment is cifar.crop_and_flip for c in data.clients)
    mean, std = np.array(cifar.MEAN).reshape(3, 1, 1), np.array(cifar.DEVIATION).reshape(3, 1, 1)
    assert np.allclose(data.test.x.numpy(), (IMAGES[TRAIN:] / 255 - mean) / std, atol=1e-5)
    assert sorted(torch.cat([c.y for c in data.clients]).tolist()) == sorted(labels[:TRAIN].tolist())


def test_cifar_arrays_of_another_kind_are_a_data_error(tmp_path):
    load = {"clients": 3, "alpha": 1.0, "seed": 0, "min_samples": 1, "augment": True}
    labels = np.arange(TRAIN + 10) % 10
    write_arrays(tmp_path, 10, labels)
    path = tmp_path / "cifar10.npz"
    arrays = dict(np.load(path))
    for changes, message in (
        ({"x_train": arrays["x_train"][:, :16]}, "a sample of x_train"),
        (
            {"x_train": arrays["x_train"][:, :16], "x_test": arrays["x_test"][:, :16]},
            r"expected uint8 \[N, 32, 32, 3\]",
        ),
        ({"y_train": arrays["y_train"] + 1, "y_test": arrays["y_test"] + 1}, r"labels must be 0\.\.9"),
    ):
        np.savez(path, **{**arrays, **changes})
        with pytest.raises(DataError, match=message):
            cifar.load(10, str(tmp_path), **load)
    path.write_bytes(path.read_bytes()[:500])
    with pytest.raises(DataError, match="not a readable npz"):
        cifar.load(10, str(tmp_path), **load)


# MNIST's IDX -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("pack", "ending"), [(lambda data: data, ""), (gzip.compress, ".gz")])
@pytest.mark.parametrize("inside", [".", "mnist", "MNIST/raw"])
def test_mnist_is_read_from_idx_files(tmp_path, inside, pack, ending):
    write_mnist(tmp_path / inside, pack, ending)
    data = build_data(section("mnist:load", dir=str(tmp_path), clients=3, alpha=1.0), seed=0)
    assert data.shape == (1, 28, 28)
    assert data.test.y.tolist() == list(range(10))
    assert sum(len(c) for c in data.clients) == 30


@pytest.mark.parametrize("key", ["x_train", "y_test"])
def test_idx_files_that_are_cut_off_or_missing_are_data_errors(tmp_path, key):
    write_mnist(tmp_path)
    path = tmp_path / mnist.IDX[key]
    whole = path.read_bytes()
    for content in (whole[:-1], whole[:6], b"", b"\0\0\x0d" + whole[3:], whole + b"\0"):
        path.write_bytes(content)
        with pytest.raises(DataError, match="ubyte"):
            mnist.load(str(tmp_path), clients=3, alpha=1.0, seed=0)
    path.unlink()
    with pytest.raises(DataError, match="IDX"):
        build_data(section("mnist:load", dir=str(tmp_path), clients=3), seed=0)
    write_mnist(tmp_path, gzip.compress, ".gz")
    packed = tmp_path / f"{mnist.IDX[key]}.gz"
    packed.write_bytes(packed.read_bytes()[:-9])
    with pytest.raises(DataError, match="gzip"):
        mnist.load(str(tmp_path), clients=3, alpha=1.0, seed=0)


# LEAF --------------------------------------------------------------------------------------------------------------


def test_leaf_users_are_the_clients_and_a_tenth_is_for_testing(tmp_path):
    users = vector_users(784, [20, 30, 40, 10, 2], 10)
    items = list(users.items())
    write_leaf(tmp_path / "a.json", dict(items[:2]))
    write_leaf(tmp_path / "b.json", dict(items[2:]))
    data = build_data(section("leaf:femnist", dir=str(tmp_path), clients=4), seed=0)
    assert data.shape == (1, 28, 28) and data.classes == 62
    assert sorted(len(c) for c in data.clients) == [9, 18, 27, 36]  # who has 2 samples cannot train on 2
    assert len(data.test) == 10
    rows = {tuple(np.float32(row)) for x, _ in users.values() for row in x}
    held = [tuple(row.flatten().tolist()) for part in (*data.clients, data.test) for row in part.x]
    assert len(set(held)) == len(held) == 100
    assert set(held) < rows
    # Another seed draws other test samples.
    again = build_data(section("leaf:femnist", dir=str(tmp_path), clients=4), seed=1)
    assert not torch.equal(data.test.x, again.test.x)


def test_leaf_folders_train_and_test_are_kept(tmp_path):
    train, test = vector_users(784, [5, 6, 7], 10), vector_users(784, [1, 2, 0], 10)
    write_leaf(tmp_path / "train" / "all.json", train)
    write_leaf(tmp_path / "test" / "all.json", test)
    data = build_data(section("leaf:femnist", dir=str(tmp_path), clients=3), seed=0)
    assert sorted(len(c) for c in data.clients) == [5, 6, 7]
    assert len(data.test) == 3


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "not LEAF's JSON"),
        ("[1]", "not LEAF's JSON"),
        ('{"user_data": {"a": {"x": [[1]]}}}', "not LEAF's JSON"),
        ('{"user_data": {"a": {"x": [[1, 2], [3, 4], [3, 4]], "y": [0, 1, 1]}}}', "user a: x is not a list of inputs"),
    ],
)
def test_leaf_files_in_another_format_are_data_errors(tmp_path, content, message):
    (tmp_path / "a.json").write_text(content)
    with pytest.raises(DataError, match=message):
        build_data(section("leaf:femnist", dir=str(tmp_path), clients=1), seed=0)


def test_leaf_labels_outside_the_classes_and_too_few_users_are_data_errors(tmp_path):
    users = vector_users(784, [10, 10], 10)
    users["f_00001"][1][3] = 62.0
    write_leaf(tmp_path / "a.json", users)
    with pytest.raises(DataError, match=r"user f_00001: labels must be 0\.\.61, got 0 to 62"):
        build_data(section("leaf:femnist", dir=str(tmp_path), clients=2), seed=0)
    with pytest.raises(DataError, match="3 clients are asked for, but only 2 of 2 users"):
        build_data(section("leaf:femnist", dir=str(tmp_path), clients=3), seed=0)


# Shakespeare -------------------------------------------------------------------------------------------------------


def test_roles_are_who_speaks_in_a_play():
    text = PLAY.format("Before we proceed any further: hear me.\nNow.", "Speak, speak.", "You are resolved?")
    assert shakespeare.roles(text) == {
        "First Citizen": "Before we proceed any further: hear me.\nNow.\nYou are resolved?",
        "All": "Speak, speak.",
    }


def test_plays_become_windows_with_their_next_character_and_the_end_is_for_testing(tmp_path):
    speech = "".join(chr(ord("a") + i % 26) for i in range(100))
    (tmp_path / "play.txt").write_text(PLAY.format(speech[:50], speech, speech[50:]))
    data = build_data(section("shakespeare:load", dir=str(tmp_path), clients=2, length=8), seed=0)
    assert data.classes == data.text.vocabulary == 26 + 2  # the letters, the line break, and "other"
    assert sorted(len(c) for c in data.clients) == [90 - 8, 90 - 8]
    assert len(data.test) == (101 - 90 - 8) + (100 - 90 - 8)
    # The speech goes round the alphabet, so the next character's token follows the last one's.
    for client in data.clients:
        for x, y in zip(client.x.tolist(), client.y.tolist(), strict=True):
            if 1 not in (*x, y):  # no line break inside
                assert y == (x[-1] - 2 + 1) % 26 + 2
    with pytest.raises(DataError, match="3 clients are asked for, but only 2 of 2 users"):
        build_data(section("shakespeare:load", dir=str(tmp_path), clients=3, length=8), seed=0)


def test_leaf_shakespeare_is_read_and_checked(tmp_path):
    text = "to be or not to be that is the question"
    samples = [(text[i : i + 10], text[i + 10]) for i in range(len(text) - 10)]
    users = {name: ([x for x, _ in samples], [y for _, y in samples]) for name in ("HAMLET", "GHOST")}
    write_leaf(tmp_path / "shakespeare" / "all.json", users)
    data = build_data(section("shakespeare:load", dir=str(tmp_path), clients=2, length=10), seed=0)
    letters = sorted(set(text))
    assert data.classes == len(letters) + 1
    x, y = data.clients[0].x[3].tolist(), int(data.clients[0].y[3])
    assert "".join(letters[t - 1] for t in x) == samples[3][0]
    assert letters[y - 1] == samples[3][1]
    assert [len(c) for c in data.clients] == [26, 26]
    with pytest.raises(DataError, match="expected inputs of 80 characters"):
        build_data(section("shakespeare:load", dir=str(tmp_path), clients=2), seed=0)
    write_leaf(tmp_path / "shakespeare" / "all.json", {"A": ([[1.0]], [1])})
    with pytest.raises(DataError, match="is it Shakespeare"):
        build_data(section("shakespeare:load", dir=str(tmp_path), clients=1), seed=0)


def test_a_file_that_is_not_text_is_a_data_error(tmp_path):
    (tmp_path / "play.txt").write_bytes(b"\xff\xfe\x00A:\n")
    with pytest.raises(DataError, match=r"cannot read .*play\.txt"):
        build_data(section("shakespeare:load", dir=str(tmp_path)), seed=0)
    (tmp_path / "a.json").write_bytes(b"\xff\xfe")
    with pytest.raises(DataError, match=r"cannot read .*a\.json"):
        leaf.read(tmp_path)
