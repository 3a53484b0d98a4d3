"""Data of the package and arrays of one's own: what is read, how it is scaled, and how it is split over clients."""

import npz
import numpy as np
import pytest
import synthetic
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.properties import examples

from fastagg.errors import DataError
from fastagg.sim.data import digits
from fastagg.sim.data.federated import FederatedData, Samples, dirichlet_split

from .fake_data import arrays

sklearn = pytest.importorskip("sklearn")


def samples(count: int) -> Samples:
    return Samples(torch.zeros(count, 2), torch.zeros(count, dtype=torch.int64))


def rows(parts) -> set[bytes]:
    return {row.numpy().tobytes() for part in parts for row in part.x}


def test_digits_are_split_without_loss_stratified_and_standardised_by_the_training_set():
    data = digits.load(clients=50, alpha=0.3, seed=0)
    assert data.shape == (1, 8, 8)
    assert data.classes == 10
    assert sum(len(c) for c in data.clients) + len(data.test) == 1797
    assert min(len(c) for c in data.clients) >= 2
    assert abs(len(data.test) - 0.2 * 1797) <= 1
    per_class = torch.bincount(data.test.y)
    assert per_class.min() >= 34
    assert per_class.max() <= 38
    assert not rows([data.test]) & rows(data.clients)  # nothing trains on the test set
    train = torch.cat([c.x for c in data.clients])
    assert train.dtype == torch.float32
    assert abs(train.mean()) < 1e-5
    assert abs(train.std() - 1) < 1e-3
    assert abs(data.test.x.mean()) < 0.1
    same, other = (digits.load(clients=50, alpha=0.3, seed=s) for s in (0, 1))
    assert torch.equal(data.test.x, same.test.x)
    assert all(torch.equal(a.y, b.y) for a, b in zip(data.clients, same.clients, strict=True))
    assert not torch.equal(data.test.x, other.test.x)


def test_synthetic_is_its_formula():
    """Sizes are lognormal, labels linear in inputs whose variances fall; beta moves clients apart, alpha nothing."""
    sizes = np.array([len(synthetic.client_samples(0.0, 0.0, k, seed=0)[1]) for k in range(600)])
    drawn = np.log(sizes - 50 + 0.5)  # int() took half a sample on average; small sizes feel it
    assert sizes.min() >= 50 and abs(np.median(drawn) - 4.0) < 5 * 2.0 * 1.2533 / np.sqrt(600)
    assert abs(np.quantile(drawn, 0.84) - np.median(drawn) - 2.0) < 0.5
    drawn = (synthetic.client_samples(1.0, 1.0, client, seed=0) for client in range(10))
    x, y = next((x, y) for x, y in drawn if len(set(y)) > 1)
    assert x.shape == (len(y), 60) and set(y) <= set(range(10))
    from sklearn.linear_model import LogisticRegression

    assert LogisticRegression(C=1e6, max_iter=5_000).fit(x, y).score(x, y) > 0.99
    x = max((synthetic.client_samples(0.0, 0.0, k, seed=1)[0] for k in range(20)), key=len)
    assert np.abs(x.var(axis=0) / np.arange(1, 61) ** -1.2 - 1).max() < 8 * np.sqrt(2 / len(x))
    spread = [np.std([synthetic.client_samples(0.0, beta, k, 0)[0].mean() for k in range(40)]) for beta in (0.0, 10.0)]
    assert spread[1] > 5 * spread[0]
    plain, shifted = (synthetic.client_samples(alpha, 1.0, client=2, seed=0) for alpha in (0.0, 5.0))
    assert np.array_equal(plain[0], shifted[0]) and np.array_equal(plain[1], shifted[1])
    data = synthetic.load(clients=5, seed=0)
    sizes = [len(synthetic.client_samples(1.0, 1.0, k, 0)[1]) for k in range(5)]
    assert [len(c) for c in data.clients] == [int(0.9 * n) for n in sizes]
    assert len(data.test) == sum(sizes) - sum(int(0.9 * n) for n in sizes)
    assert data.shape == (60,) and data.test.x.dtype == torch.float32


def test_a_client_without_data_is_named():
    with pytest.raises(DataError, match="client 1 has no samples"):
        FederatedData([samples(3), samples(0)], samples(2), classes=2)
    with pytest.raises(DataError, match="no clients"):
        FederatedData([], samples(2), classes=2)
    with pytest.raises(DataError, match="test set"):
        FederatedData([samples(3)], samples(0), classes=2)


def written(folder, x, labels=None, **settings):
    """What a file of these training inputs, which are the test set, too, is loaded as."""
    y = np.arange(len(x)) % 2 if labels is None else labels
    np.savez(folder / "data.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    return npz.load(dir=str(folder), clients=1, alpha=1.0, seed=0, **settings).clients[0].x.numpy()


@pytest.mark.parametrize("kind", [np.float64, np.int64])
@pytest.mark.parametrize("pool", [1, 2])
def test_numbers_lose_their_digits_after_they_are_standardised(kind, pool, tmp_path):
    shape = (1000, 1) if pool == 1 else (1000, 2, 2)
    x = np.broadcast_to((1.7e9 + np.arange(1000)).reshape(-1, *[1] * (len(shape) - 1)), shape).astype(kind)
    found = written(tmp_path, x, pool=pool)
    assert len(np.unique(found)) == 1000 and found.dtype == np.float32
    assert np.allclose(np.sort(found.reshape(-1)), (np.arange(1000) - 499.5) / np.arange(1000).std(), atol=1e-4)


SHAPES = [
    ((8, 8, 2), None, (2, 8, 8)), ((2, 8, 8), None, (2, 8, 8)), ((8, 8, 3), None, (3, 8, 8)), ((8, 8), None, (1, 8, 8)),
    ((8, 8, 8), "last", (8, 8, 8)), ((3, 5, 6), "last", (6, 3, 5)), ((6, 5, 3), "first", (6, 5, 3)),
    ((8, 8, 8), None, "set data.channels"), ((3, 8, 3), None, "set data.channels"), ((5,), None, (5,)),
]  # fmt: skip


@pytest.mark.parametrize(("shape", "channels", "expected"), SHAPES)
def test_channels_are_last_unless_the_shape_or_the_key_says_first(shape, channels, expected, tmp_path):
    x = np.random.default_rng(0).random((6, *shape)).astype(np.float32)
    if isinstance(expected, str):
        with pytest.raises(DataError, match=expected):
            written(tmp_path, x, channels=channels)
        return
    found = written(tmp_path, x, channels=channels)
    assert found.shape[1:] == expected
    where = (0, 3, 1, 2) if channels == "last" or expected != shape else (0, 1, 2, 3)
    first = x.transpose(where) if len(shape) == 3 else x
    assert np.allclose(found.reshape(first.shape), (first - x.mean()) / x.std(), atol=1e-5)


def test_arrays_are_standardised_pooled_and_split(tmp_path):
    (tmp_path / "mine").mkdir()
    np.savez(tmp_path / "mine" / "mine.npz", **arrays())
    data = npz.load(dir=str(tmp_path), clients=5, alpha=0.5, seed=0, file="mine.npz", pool=2)
    assert data.shape == (3, 4, 4) and data.classes == 4 and sum(map(len, data.clients)) == 60
    x = torch.cat([samples.x for samples in data.clients])
    assert abs(float(x.mean())) < 1e-5 and float(x.std()) == pytest.approx(1, abs=1e-3)
    # What pooling does to one pixel, by another route.
    raw = arrays()
    pooled = raw["x_train"].astype(np.float64).reshape(60, 4, 2, 4, 2, 3).mean(axis=(2, 4))
    test = raw["x_test"].astype(np.float64).reshape(20, 4, 2, 4, 2, 3).mean(axis=(2, 4)).transpose(0, 3, 1, 2)
    expected = (test - pooled.mean()) / pooled.std()
    np.testing.assert_allclose(data.test.x.numpy(), expected, atol=1e-4)


def test_an_npz_may_say_whose_samples_they_are(tmp_path):
    held = arrays()
    owners = np.arange(len(held["y_train"])) % 4
    np.savez(tmp_path / "data.npz", **held, client_train=owners)
    data = npz.load(dir=str(tmp_path), clients=4, alpha=0.5, seed=0)
    for client, samples in enumerate(data.clients):
        assert samples.y.tolist() == held["y_train"][owners == client].tolist()


# How labels are split over clients


@examples(60)
@given(
    samples=st.integers(40, 300),
    classes=st.integers(1, 6),
    clients=st.integers(1, 20),
    alpha=st.sampled_from([0.01, 0.1, 0.3, 1.0, 100.0]),
    min_samples=st.integers(1, 2),
    seed=st.integers(0, 9),
)
def test_every_sample_goes_to_exactly_one_client_and_none_is_empty(samples, classes, clients, alpha, min_samples, seed):
    labels = np.random.default_rng(seed).integers(classes, size=samples)
    parts = dirichlet_split(labels, clients, alpha, seed, min_samples)
    assert len(parts) == clients
    assert min(len(part) for part in parts) >= min_samples
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(samples))


def test_the_share_of_a_class_follows_the_dirichlet_law():
    # With one class, client 0's share is Beta(alpha, (n - 1) alpha): mean 1/n, variance (n-1) / (n^2 (n alpha + 1)).
    labels, clients, alpha = np.zeros(2_000, dtype=int), 5, 0.5
    shares = np.array([len(dirichlet_split(labels, clients, alpha, seed)[0]) / 2_000 for seed in range(400)])
    variance = 4 / (25 * 3.5)
    assert abs(shares.mean() - 0.2) < 5 * np.sqrt(variance / 400)
    assert abs(shares.var() / variance - 1) < 0.35
