import mnist
import numpy as np
import pytest
import torch

from fastagg.errors import DataError
from fastagg.sim.data import digits, npz, synthetic
from fastagg.sim.data.federated import FederatedData, Samples

sklearn = pytest.importorskip("sklearn")


def samples(count: int) -> Samples:
    return Samples(torch.zeros(count, 2), torch.zeros(count, dtype=torch.int64))


def rows(parts) -> set[bytes]:
    return {row.numpy().tobytes() for part in parts for row in part.x}


def test_digits_are_split_without_loss_and_the_test_set_is_stratified():
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


def test_digits_are_standardised_by_the_training_set():
    data = digits.load(clients=4, alpha=1.0, seed=0)
    train = torch.cat([c.x for c in data.clients])
    assert train.dtype == torch.float32
    assert abs(train.mean()) < 1e-5
    assert abs(train.std() - 1) < 1e-3
    assert abs(data.test.x.mean()) < 0.1


def test_another_seed_is_another_split():
    one, same, other = (digits.load(clients=10, alpha=0.3, seed=s) for s in (0, 0, 1))
    assert torch.equal(one.test.x, same.test.x)
    assert all(torch.equal(a.y, b.y) for a, b in zip(one.clients, same.clients, strict=True))
    assert not torch.equal(one.test.x, other.test.x)


def test_synthetic_sizes_follow_the_law_of_the_generator():
    sizes = np.array([len(synthetic.client_samples(0.0, 0.0, k, seed=0)[1]) for k in range(600)])
    assert sizes.min() >= 50
    drawn = np.log(sizes - 50 + 0.5)  # int() took half a sample on average; small sizes feel it
    assert abs(np.median(drawn) - 4.0) < 5 * 2.0 * 1.2533 / np.sqrt(600)
    upper = np.quantile(drawn, 0.84) - np.median(drawn)
    assert abs(upper - 2.0) < 0.5


def test_synthetic_labels_are_the_clients_own_linear_model():
    x, y = synthetic.client_samples(1.0, 1.0, client=3, seed=0)
    assert x.shape == (len(y), 60)
    assert set(np.unique(y)) <= set(range(10))
    # Separable by construction: a linear classifier fits every training label.
    from sklearn.linear_model import LogisticRegression

    if len(np.unique(y)) > 1:
        assert LogisticRegression(C=1e6, max_iter=5_000).fit(x, y).score(x, y) > 0.99


def test_synthetic_inputs_have_the_falling_variances():
    x = max((synthetic.client_samples(0.0, 0.0, k, seed=1)[0] for k in range(20)), key=len)
    expected = np.arange(1, 61) ** -1.2
    assert np.abs(x.var(axis=0) / expected - 1).max() < 8 * np.sqrt(2 / len(x))


def test_synthetic_beta_moves_the_clients_inputs_apart():
    def spread(beta):
        return np.std([synthetic.client_samples(0.0, beta, k, seed=0)[0].mean() for k in range(40)])

    assert spread(10.0) > 5 * spread(0.0)


def test_synthetic_alpha_is_drawn_but_cannot_change_a_label():
    # u_k shifts every class's score of a sample by the same amount: see the module's docstring.
    plain, shifted = (synthetic.client_samples(alpha, 1.0, client=2, seed=0) for alpha in (0.0, 5.0))
    assert np.array_equal(plain[0], shifted[0])
    assert np.array_equal(plain[1], shifted[1])


def test_synthetic_keeps_a_tenth_of_every_client_for_testing():
    data = synthetic.load(clients=5, alpha=1.0, beta=1.0, seed=0)
    sizes = [len(synthetic.client_samples(1.0, 1.0, k, 0)[1]) for k in range(5)]
    assert [len(c) for c in data.clients] == [int(0.9 * n) for n in sizes]
    assert len(data.test) == sum(sizes) - sum(int(0.9 * n) for n in sizes)
    assert data.shape == (60,)
    assert data.test.x.dtype == torch.float32


def test_a_client_without_data_is_named():
    with pytest.raises(DataError, match="client 1 has no samples"):
        FederatedData([samples(3), samples(0)], samples(2), classes=2)
    with pytest.raises(DataError, match="no clients"):
        FederatedData([], samples(2), classes=2)
    with pytest.raises(DataError, match="test set"):
        FederatedData([samples(3)], samples(0), classes=2)


def small_mnist(**changes):
    rng = np.random.default_rng(0)
    arrays = {
        "x_train": rng.integers(0, 256, (60, 28, 28)).astype(np.uint8),
        "y_train": (np.arange(60) % 10).astype(np.uint8),
        "x_test": rng.integers(0, 256, (20, 28, 28)).astype(np.uint8),
        "y_test": (np.arange(20) % 10).astype(np.uint8),
    }
    arrays.update(changes)
    return {key: value for key, value in arrays.items() if value is not None}


@pytest.mark.parametrize("inside", [".", "mnist"])
def test_mnist_is_read_from_a_folder(tmp_path, inside):
    (tmp_path / inside).mkdir(exist_ok=True)
    np.savez(tmp_path / inside / "mnist.npz", **small_mnist())
    data = mnist.load(str(tmp_path), clients=5, alpha=1.0, seed=0)
    assert data.shape == (1, 28, 28)
    assert sum(len(c) for c in data.clients) == 60
    assert data.test.y.tolist() == (np.arange(20) % 10).tolist()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"y_test": None}, "lacks y_test"),
        (
            {"x_train": np.zeros((60, 784), dtype=np.uint8)},
            r"a sample of x_train is \(784,\), one of x_test \(28, 28\)",
        ),
        ({"y_train": np.zeros(59, dtype=np.uint8)}, r"y_train \(59,\)"),
        ({"y_test": np.full(20, 10, dtype=np.uint8)}, "labels 0..9"),
        ({"y_test": np.zeros(20)}, "y_test must be whole numbers"),
        ({"x_train": np.zeros((60, 28, 28), dtype=np.uint8)}, "all training inputs are equal"),
    ],
)
def test_an_mnist_file_in_another_format_is_a_data_error(tmp_path, changes, message):
    np.savez(tmp_path / "mnist.npz", **small_mnist(**changes))
    with pytest.raises(DataError, match=message):
        mnist.load(str(tmp_path), clients=5, alpha=1.0, seed=0)


def test_a_missing_or_truncated_mnist_is_a_data_error(tmp_path):
    with pytest.raises(DataError, match=r"no data 'mnist' in .*expected mnist\.npz"):
        mnist.load(str(tmp_path), clients=5, alpha=1.0, seed=0)
    np.savez(tmp_path / "mnist.npz", **small_mnist())
    whole = (tmp_path / "mnist.npz").read_bytes()
    for size in (0, 100, len(whole) // 2):
        (tmp_path / "mnist.npz").write_bytes(whole[:size])
        with pytest.raises(DataError, match="not a readable npz file"):
            mnist.load(str(tmp_path), clients=5, alpha=1.0, seed=0)


def written(folder, x, labels=None, **settings):
    """What a file of these training inputs, which are the test set, too, is loaded as."""
    y = np.arange(len(x)) % 2 if labels is None else labels
    np.savez(folder / "data.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    return npz.load(folder, clients=1, alpha=1.0, seed=0, **settings).clients[0].x.numpy()


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


def test_labels_that_count_from_1_are_refused(tmp_path):
    with pytest.raises(DataError, match="labels 1 to 2: they must count from 0"):
        written(tmp_path, np.random.default_rng(0).random((6, 3)), np.array([1, 2] * 3))
