"""Data sets read from the files people have: tiny ones are written here in every supported form."""

import gzip

import cifar
import leaf
import mnist
import npz
import numpy as np
import pytest
import shakespeare
import torch

from fastagg.errors import DataError

from .fake_data import (
    IMAGES,
    PLAY,
    TRAIN,
    arrays,
    load,
    vector_users,
    write_arrays,
    write_leaf,
    write_mnist,
    write_parquet,
)

NEEDS = {
    "npz:load": npz.NEEDS,
    "cifar:cifar10": cifar.NEEDS.format("cifar10"), "cifar:cifar100": cifar.NEEDS.format("cifar100"),
    "mnist:load": mnist.NEEDS, "leaf:femnist": leaf.NEEDS, "shakespeare:load": shakespeare.NEEDS,
}  # fmt: skip


@pytest.mark.parametrize("name", [*NEEDS])
def test_absent_data_says_which_files_go_where(tmp_path, name):
    needs = NEEDS[name]
    for folder in (None, str(tmp_path / "none")):
        with pytest.raises(DataError) as error:
            load(name, dir=folder)
        assert needs in str(error.value)
    with pytest.raises(DataError, match=str(tmp_path)):  # the folder is there, and empty
        load(name, dir=str(tmp_path))


# CIFAR -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("write", [write_arrays, write_parquet])
@pytest.mark.parametrize("classes", [10, 100])
def test_cifar_is_read_from_every_form(tmp_path, classes, write):
    labels = np.arange(TRAIN + 10) * 7 % classes
    write(tmp_path, classes, labels)
    data = load(f"cifar:cifar{classes}", dir=str(tmp_path), clients=4, alpha=1.0)
    assert (data.shape, data.classes) == ((3, 32, 32), classes)
    assert data.test.y.tolist() == labels[TRAIN:].tolist()
    assert data.test.augment is None
    assert all(c.augment is cifar.crop_and_flip for c in data.clients)
    mean, std = np.array(cifar.MEAN).reshape(3, 1, 1), np.array(cifar.DEVIATION).reshape(3, 1, 1)
    assert np.allclose(data.test.x.numpy(), (IMAGES[TRAIN:] / 255 - mean) / std, atol=1e-5)
    assert sorted(torch.cat([c.y for c in data.clients]).tolist()) == sorted(labels[:TRAIN].tolist())


# MNIST's IDX -------------------------------------------------------------------------------------------------------


def test_mnist_is_read_from_arrays(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (60, 28, 28)).astype(np.uint8)
    labels = np.arange(60) % 10
    npz_file("mnist.npz", x_train=images, y_train=labels, x_test=images[:20], y_test=labels[:20])(tmp_path)
    data = load("mnist:load", dir=str(tmp_path), clients=5)
    assert data.shape == (1, 28, 28) and sum(map(len, data.clients)) == 60
    assert data.test.y.tolist() == (np.arange(20) % 10).tolist()


@pytest.mark.parametrize(("pack", "ending"), [(lambda data: data, ""), (gzip.compress, ".gz")])
@pytest.mark.parametrize("inside", [".", "mnist", "MNIST/raw"])
def test_mnist_is_read_from_idx_files(tmp_path, inside, pack, ending):
    write_mnist(tmp_path / inside, pack, ending)
    data = load("mnist:load", dir=str(tmp_path), clients=3, alpha=1.0)
    assert data.shape == (1, 28, 28)
    assert data.test.y.tolist() == list(range(10))
    assert sum(len(c) for c in data.clients) == 30


# LEAF --------------------------------------------------------------------------------------------------------------


def test_leaf_users_are_the_clients_and_a_tenth_is_for_testing(tmp_path):
    users = vector_users(784, [20, 30, 40, 10, 2], 10)
    items = list(users.items())
    write_leaf(tmp_path / "a.json", dict(items[:2]))
    write_leaf(tmp_path / "b.json", dict(items[2:]))
    data = load("leaf:femnist", dir=str(tmp_path), clients=4)
    assert data.shape == (1, 28, 28) and data.classes == 62
    assert sorted(len(c) for c in data.clients) == [9, 18, 27, 36]  # who has 2 samples cannot train on 2
    assert len(data.test) == 10
    rows = {tuple(np.float32(row)) for x, _ in users.values() for row in x}
    held = [tuple(row.flatten().tolist()) for part in (*data.clients, data.test) for row in part.x]
    assert len(set(held)) == len(held) == 100
    assert set(held) < rows
    # Another seed draws other test samples.
    again = load("leaf:femnist", dir=str(tmp_path), clients=4, seed=1)
    assert not torch.equal(data.test.x, again.test.x)


def test_leaf_folders_train_and_test_are_kept(tmp_path):
    train, test = vector_users(784, [5, 6, 7], 10), vector_users(784, [1, 2, 0], 10)
    write_leaf(tmp_path / "train" / "all.json", train)
    write_leaf(tmp_path / "test" / "all.json", test)
    data = load("leaf:femnist", dir=str(tmp_path), clients=3)
    assert sorted(len(c) for c in data.clients) == [5, 6, 7]
    assert len(data.test) == 3


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
    data = load("shakespeare:load", dir=str(tmp_path), clients=2, length=8)
    assert data.classes == data.text.vocabulary == 26 + 2  # the letters, the line break, and "other"
    assert sorted(len(c) for c in data.clients) == [90 - 8, 90 - 8]
    assert len(data.test) == (101 - 90 - 8) + (100 - 90 - 8)
    # The speech goes round the alphabet, so the next character's token follows the last one's.
    for client in data.clients:
        for x, y in zip(client.x.tolist(), client.y.tolist(), strict=True):
            if 1 not in (*x, y):  # no line break inside
                assert y == (x[-1] - 2 + 1) % 26 + 2


def test_leaf_shakespeare_is_read_and_checked(tmp_path):
    text = "to be or not to be that is the question"
    samples = [(text[i : i + 10], text[i + 10]) for i in range(len(text) - 10)]
    users = {name: ([x for x, _ in samples], [y for _, y in samples]) for name in ("HAMLET", "GHOST")}
    write_leaf(tmp_path / "shakespeare" / "all.json", users)
    data = load("shakespeare:load", dir=str(tmp_path), clients=2, length=10)
    letters = sorted(set(text))
    assert data.classes == len(letters) + 1
    x, y = data.clients[0].x[3].tolist(), int(data.clients[0].y[3])
    assert "".join(letters[t - 1] for t in x) == samples[3][0]
    assert letters[y - 1] == samples[3][1]
    assert [len(c) for c in data.clients] == [26, 26]


# Files of another form -----------------------------------------------------------------------------------------------


def npz_file(name="data.npz", **changes):
    """Write arrays with these changes; None: without it."""
    kept = {key: array for key, array in {**arrays(), **changes}.items() if array is not None}
    return lambda folder: np.savez(folder / name, **kept)


def raw(name, content):
    return lambda folder: (folder / name).write_bytes(content)


def after(write, name, change):
    """Write, and change the bytes of one of the files."""

    def written(folder):
        write(folder)
        (folder / name).write_bytes(change((folder / name).read_bytes()))

    return written


def ten(**changes):
    return npz_file("cifar10.npz", **{
        "x_train": IMAGES[:TRAIN].transpose(0, 2, 3, 1), "y_train": np.arange(TRAIN) % 10,
        "x_test": IMAGES[TRAIN:].transpose(0, 2, 3, 1), "y_test": np.arange(10), **changes,
    })  # fmt: skip


def leaf_file(**users):
    return lambda folder: write_leaf(folder / "a.json", {**vector_users(784, [10, 10], 10), **users})


def zipped(folder):
    write_mnist(folder, gzip.compress, ".gz")


X, LABELS = mnist.IDX["x_train"], mnist.IDX["y_test"]
OWNERS = np.arange(60) % 4
HAMLET = ["to be or n"] * 9, ["o"] * 9
IMAGE = [0.5] * 784
NPZ = "npz:load"
REFUSED = [
    (NPZ, lambda folder: None, "neither data.npz nor data/data.npz"),
    (NPZ, raw("data.npz", b"PK\x03\x04 cut off"), "not a readable npz file"),
    *((NPZ, after(npz_file(), "data.npz", lambda whole, n=n: whole[: n * len(whole) // 2]), "not a readable npz file")
      for n in (0, 1)),
    (NPZ, npz_file(y_test=None), "lacks y_test"),
    (NPZ, npz_file(y_test=np.full(20, 4)), r"y_test must be labels 0\.\.3"),
    (NPZ, npz_file(y_train=np.arange(60) - 1), r"y_train must be labels 0\.\.58, .*got -1 to 58"),
    (NPZ, npz_file(y_train=np.arange(60) % 4 + 1, y_test=np.arange(20) % 4 + 1), "1 to 4: they must count from 0"),
    (NPZ, npz_file(y_train=np.zeros(60)), "y_train must be whole numbers"),
    (NPZ, npz_file(y_test=np.zeros(20)), "y_test must be whole numbers"),
    (NPZ, npz_file(x_train=np.zeros((59, 8, 8, 3))), r"x_train \(59, 8, 8, 3\) and y_train \(60,\)"),
    (NPZ, npz_file(x_test=np.zeros((20, 9, 9, 3))), r"a sample of x_train is \(8, 8, 3\), one of x_test \(9, 9, 3\)"),
    (NPZ, npz_file(x_test=np.full((20, 8, 8, 3), np.nan)), "finite"),
    (NPZ, npz_file(x_train=np.zeros((60, 8, 8, 3))), r"data\.npz: all training inputs are equal.*nothing to learn"),
    *((NPZ, npz_file(client_train=wrong), "client_train must be the client")
      for wrong in (OWNERS[1:], OWNERS - 1, OWNERS + 0.5)),
    (NPZ, npz_file(client_train=OWNERS), r"client_train names the clients 0\.\.3, and data\.clients is 2"),
    ("npz:load, pooled", npz_file(), "cannot be pooled 3 by 3"),
    ("cifar:cifar10", ten(x_train=IMAGES[:TRAIN, :, :16].transpose(0, 2, 3, 1)), "a sample of x_train"),
    ("cifar:cifar10", ten(x_train=IMAGES[:TRAIN], x_test=IMAGES[TRAIN:]), r"expected uint8 \[N, 32, 32, 3\]"),
    ("cifar:cifar10", ten(y_train=np.arange(TRAIN) % 10 + 1, y_test=np.arange(10) + 1), r"labels must be 0\.\.9"),
    ("cifar:cifar10", after(ten(), "cifar10.npz", lambda whole: whole[:500]), "not a readable npz"),
    ("mnist:load", npz_file("mnist.npz"), r"expected \[N, 28, 28\]"),
    ("mnist:load", npz_file("mnist.npz", y_test=None), "lacks y_test"),
    *(("mnist:load", after(write_mnist, name, change), "ubyte") for name in (X, LABELS) for change in (
        lambda whole: whole[:-1], lambda whole: whole[:6], lambda whole: b"", lambda whole: b"\0\0\x0d" + whole[3:],
        lambda whole: whole + b"\0")),
    *(("mnist:load", after(zipped, f"{name}.gz", lambda whole: whole[:-9]), "gzip") for name in (X, LABELS)),
    ("mnist:load", lambda folder: (write_mnist(folder), (folder / X).unlink()), "IDX"),
    ("mnist:load", lambda folder: (write_mnist(folder), (folder / LABELS).unlink()), "IDX"),
    ("leaf:femnist", raw("a.json", b"{"), "not LEAF's JSON"),
    ("leaf:femnist", raw("a.json", b"[1]"), "not LEAF's JSON"),
    ("leaf:femnist", raw("a.json", b"\xff\xfe"), r"cannot read .*a\.json"),
    ("leaf:femnist", raw("a.json", b'{"user_data": {"a": {"x": [[1]]}}}'), "not LEAF's JSON"),
    ("leaf:femnist", leaf_file(f_00000=([[1, 2]] * 9, [0, 1, 1] * 3)), "f_00000: x is not a list of inputs"),
    ("leaf:femnist", leaf_file(f_00001=([IMAGE] * 10, [62.0] + [0.0] * 9)), r"f_00001: labels must be .* 0 to 62"),
    ("leaf:femnist", lambda folder: write_leaf(folder / "a.json", vector_users(784, [10], 10)),
     "2 clients are asked for, but only 1 of 1 users"),
    ("shakespeare:load", raw("play.txt", b"\xff\xfe\x00A:\n"), r"cannot read .*play\.txt"),
    ("shakespeare:load", raw("play.txt", PLAY.format("ab" * 999, "b", "c").encode()), "but only 1 of 1 users"),
    ("shakespeare:load", lambda folder: write_leaf(folder / "a.json", {name: HAMLET for name in "AB"}),
     "expected inputs of 80 characters"),
    ("shakespeare:load", lambda folder: write_leaf(folder / "a.json", {"A": ([[1.0]], [1])}), "is it Shakespeare"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "write", "message"), REFUSED)
def test_files_of_another_form_are_data_errors_that_say_what_is_wrong(tmp_path, name, write, message):
    write(tmp_path)
    name, _, pooled = name.partition(", ")
    keys = {"pool": 3} if pooled else {}
    with pytest.raises(DataError, match=message) as error:
        load(name, dir=str(tmp_path), clients=2, **keys)
    assert "\n" not in str(error.value)
