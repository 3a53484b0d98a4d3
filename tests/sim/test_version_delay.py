from collections import Counter

import numpy as np
import pytest

from fastagg.errors import DataError
from fastagg.sim.clock.by_version import ExponentialVersions, ReplayedVersions, UniformVersions, read_delays
from fastagg.sim.one.simulation import Simulation
from fastagg.sim.seeds import generator


def test_uniform_delays_cover_zero_to_tau_max_evenly():
    model = UniformVersions(seed=0, longest=4)
    counts = np.bincount([model.tau(client=0, arrival=k) for k in range(5_000)], minlength=5)
    assert len(counts) == 5
    # Chi-square with 4 degrees of freedom: above 30 has probability 5e-6.
    assert ((counts - 1_000) ** 2 / 1_000).sum() < 30


@pytest.mark.parametrize("mean", [1.0, 5.0, 20.0])
def test_exponential_delays_have_the_mean_that_is_asked_for(mean):
    model = ExponentialVersions(seed=0, mean=mean)
    draws = np.array([model.tau(client=0, arrival=k) for k in range(20_000)])
    assert abs(draws.mean() - mean) < 5 * (mean + 0.5) / np.sqrt(20_000)  # rounding down alone is off by half a version
    assert draws.max() <= model.longest and (draws > 4 * mean).any()
    scale = mean / (1 - np.exp(-5))
    tau = round(2 * mean)
    # At least tau + 1 after rounding at random: the law's tail, averaged over the last half step on either side.
    expected = scale * (np.exp(-tau / scale) - np.exp(-(tau + 1) / scale))
    assert abs((draws > tau).mean() - expected) < 5 * np.sqrt(expected * (1 - expected) / 20_000)


def test_a_shared_column_is_replayed_row_by_row_and_starts_again():
    model = ReplayedVersions(np.array([[0], [2], [1]]))
    assert model.longest == 2
    assert [model.tau(client=9, arrival=k) for k in range(5)] == [0, 2, 1, 0, 2]


def test_with_a_column_per_client_each_reads_its_own():
    model = ReplayedVersions(np.array([[0, 5], [1, 6]]))
    assert [model.tau(client, arrival) for arrival in (0, 1) for client in (0, 1)] == [0, 5, 1, 6]


def test_measured_files_are_read(tmp_path):
    path = tmp_path / "delays.csv"
    path.write_text("0.000000000000000000e+00,1.0\n2,3\n\n")
    assert read_delays(path, clients=2).tolist() == [[0, 1], [2, 3]]
    path.write_text("4\n5\n")
    assert read_delays(path, clients=30).tolist() == [[4], [5]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1,2,3\n", "3 columns, expected 1 or 8"),
        ("1,2,3,4,5,6,7,8\n1,2\n", "columns changed from 8 to 2 at row 2"),
        ("1\n-1\n", "whole numbers from 0 up, got -1"),
        ("1\n1.5\n", "whole numbers from 0 up, got 1.5"),
        ("1\nnan\n", "whole number"),
        ("1\ninf\n", "whole number"),
        ("1\nfive\n", "'five'"),
        ("", "empty"),
    ],
)
def test_a_malformed_file_is_a_data_error_that_says_where(tmp_path, text, message):
    path = tmp_path / "delays.csv"
    path.write_text(text)
    with pytest.raises(DataError, match=message) as error:
        read_delays(path, clients=8)
    assert str(path) in str(error.value)


def test_a_missing_or_binary_file_is_a_data_error(tmp_path):
    with pytest.raises(DataError, match=r"none\.csv"):
        read_delays(tmp_path / "none.csv", clients=8)
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match="cannot read"):
        read_delays(tmp_path / "binary.csv", clients=8)


@pytest.mark.parametrize("buffer", [1, 10, 30])
def test_with_a_column_per_client_the_drawn_client_answers_with_its_own_delay(buffer, tiny, tmp_path):
    (tmp_path / "delays.csv").write_text("0,1,2,3,4,5,6,7\n")
    simulation = Simulation(
        tiny({
            "data.clients": 8, "participation": {"rule": "all"}, "algorithm.buffer_size": buffer,
            "delay": {"name": "version", "file": str(tmp_path / "delays.csv")},
        })
    )  # fmt: skip
    for arrival in range(400):
        before = Counter(simulation.client_uploads)
        simulation.step()
        assert simulation.client_uploads - before == {int(generator(0, "arrival", arrival).permutation(8)[0]): 1}
    if buffer < 30:  # with 30 there are 13 versions, and the first ones have no older ones
        assert sorted(simulation.delays) == list(range(8)) and min(simulation.delays.values()) > 25
