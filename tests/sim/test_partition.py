import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.properties import examples

from fastagg.errors import ConfigError, DataError
from fastagg.sim.data.federated import dirichlet_split


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


def largest_label_share(alpha: float) -> float:
    labels = np.repeat(np.arange(10), 200)
    parts = dirichlet_split(labels, clients=20, alpha=alpha, seed=0)
    return float(np.mean([np.bincount(labels[part]).max() / len(part) for part in parts]))


def test_alpha_sets_how_skewed_the_clients_are():
    assert largest_label_share(0.1) > 0.45
    assert 0.25 < largest_label_share(0.3) < largest_label_share(0.1)
    assert largest_label_share(1000.0) < 0.15  # an even mix of ten labels has 0.1


def test_the_share_of_a_class_follows_the_dirichlet_law():
    # With one class, client 0's share is Beta(alpha, (n - 1) alpha): mean 1/n, variance (n-1) / (n^2 (n alpha + 1)).
    labels, clients, alpha = np.zeros(2_000, dtype=int), 5, 0.5
    shares = np.array([len(dirichlet_split(labels, clients, alpha, seed)[0]) / 2_000 for seed in range(400)])
    variance = 4 / (25 * 3.5)
    assert abs(shares.mean() - 0.2) < 5 * np.sqrt(variance / 400)
    assert abs(shares.var() / variance - 1) < 0.35


def test_the_split_depends_on_the_seed_alone():
    labels = np.arange(100) % 7
    one, same, other = (dirichlet_split(labels, 8, 0.3, seed) for seed in (1, 1, 2))
    assert all(np.array_equal(a, b) for a, b in zip(one, same, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def test_too_few_samples_for_all_clients_is_a_data_error():
    with pytest.raises(DataError, match="10 samples"):
        dirichlet_split(np.zeros(10, dtype=int), clients=6, alpha=1.0, seed=0, min_samples=2)


@pytest.mark.parametrize(("key", "value"), [("clients", 0), ("alpha", 0.0), ("alpha", -1.0), ("min_samples", 0)])
def test_settings_out_of_range_are_refused(tiny, key, value):
    with pytest.raises(ConfigError, match=rf"data\.{key}: "):
        tiny({f"data.{key}": value})
