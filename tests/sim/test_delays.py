import numpy as np
import pytest

from fastagg.errors import ConfigError
from fastagg.sim.clock.delays import THREE_CLASS_TABLES, Around, DelayModel, Exponential, ThreeClass
from fastagg.sim.one.build_clock import build_delays


def durations(model, client: int, count: int) -> np.ndarray:
    return np.array([model.duration(client, number) for number in range(count)])


@pytest.mark.parametrize("table", ["large", "mild"])
def test_three_class_durations_fill_the_range_of_the_clients_class(table):
    model = ThreeClass(clients=60, seed=1, table=table)
    for kind, (low, high) in enumerate(THREE_CLASS_TABLES[table]):
        clients = np.flatnonzero(model.classes == kind)
        assert len(clients) > 0
        drawn = durations(model, int(clients[0]), 400)
        assert drawn.min() >= low
        assert drawn.max() < high
        # The mean of 400 uniform draws: 5 deviations of (high - low) / sqrt(12 * 400).
        assert abs(drawn.mean() - (low + high) / 2) < 5 * (high - low) / np.sqrt(12 * 400)


def test_the_tables_are_those_of_the_paper():
    assert THREE_CLASS_TABLES == {"large": ((1, 2), (3, 5), (50, 80)), "mild": ((1, 2), (3, 5), (5, 8))}


def test_three_class_shares_are_those_of_the_largest_dirichlet_component():
    model = ThreeClass(clients=20_000, seed=0)
    shares = np.bincount(model.classes, minlength=3) / 20_000
    # An independent route to a Dirichlet: the largest of three gamma variates, other generator.
    gammas = np.random.RandomState(5).gamma([3.0, 2.0, 1.0], size=(200_000, 3))
    expected = np.bincount(gammas.argmax(axis=1), minlength=3) / 200_000
    assert np.abs(shares - expected).max() < 5 * np.sqrt(0.25 / 20_000)
    assert shares[0] > shares[1] > shares[2] > 0.05


def test_a_smaller_gamma_makes_more_clients_slow():
    def slow(gamma):
        return (ThreeClass(5_000, seed=0, gamma=gamma).classes == 2).mean()

    assert slow(0.1) > slow(1.0) > slow(10.0)


def test_exponential_durations_have_the_asked_mean():
    drawn = durations(Exponential(seed=3, mean=5.0), client=7, count=4_000)
    assert drawn.min() >= 0
    assert abs(drawn.mean() - 5.0) < 5 * 5.0 / np.sqrt(4_000)
    assert abs(np.median(drawn) - 5.0 * np.log(2)) < 0.5  # skewed: not a uniform or normal of the same mean


def test_a_draw_depends_on_seed_client_and_number_alone():
    one, two = Exponential(seed=0), Exponential(seed=0)
    backwards = [two.duration(client, number) for client in (3, 2, 1) for number in (1, 0)]
    forwards = [one.duration(client, number) for client in (1, 2, 3) for number in (0, 1)]
    assert forwards == backwards[::-1]
    assert len(set(forwards)) == 6
    assert Exponential(seed=1).duration(1, 0) != forwards[0]


@pytest.mark.parametrize(
    ("delay", "key"),
    [
        ({"name": "three-class", "gamma": 0.0}, "gamma"),
        ({"name": "three-class", "table": "medium"}, "table"),
        ({"name": "size-tied", "table": "huge"}, "table"),
        ({"name": "size-tied", "gamma": -1.0}, "gamma"),
        ({"name": "exponential", "mean": -1.0}, "mean"),
        ({"name": "exponential", "spread": -1.0}, "spread"),
        ({"name": "exponential", "suspension": 1.0}, "suspension"),
        ({"name": "exponential", "speed": 0.0}, "speed"),
        ({"name": "exponential", "jitter": -0.1}, "jitter"),
        ({"name": "version", "mean": 0.0}, "mean"),
        ({"name": "version", "tau_max": -1}, "tau_max"),
    ],
)
def test_settings_out_of_range_are_refused(tiny, delay, key):
    with pytest.raises(ConfigError, match=rf"delay\.{key}: "):
        tiny({"delay": delay})


class Always(DelayModel):
    unit = "s"

    def duration(self, client: int, number: int, steps: int = 1) -> float:
        return 1.0


def test_a_suspended_client_hangs_for_up_to_the_longest_training_so_far():
    """Hangs do not cause longer hangs: with a training time of 1 no task takes more than 2."""
    model = Around(Always(), seed=0, share=0.3)
    assert model.unit == "s"
    drawn = durations(model, 0, 2000)
    hung = drawn > 1.0
    assert not hung[0]
    assert abs(hung[1:].mean() - 0.3) < 5 * np.sqrt(0.3 * 0.7 / 2000)
    assert drawn.max() <= 2.0
    parts = drawn[hung] - 1.0
    assert abs(parts.mean() - 0.5) < 5 / np.sqrt(12 * len(parts))


def test_counts_put_exactly_so_many_clients_into_each_class():
    classes = [ThreeClass(50, seed, counts=[29, 14, 7]).classes for seed in range(3)]
    assert all(np.bincount(c).tolist() == [29, 14, 7] for c in classes)
    assert not (classes[0] == classes[1]).all()  # the seed says which
    drawn = [np.bincount(ThreeClass(50, seed).classes, minlength=3)[2] for seed in range(30)]
    assert len(set(drawn)) > 3  # without counts it is chance


def test_clients_have_rates_of_their_own_where_they_are_asked_for():
    model = Exponential(seed=1, mean=5.0, clients=40, spread=1.0)
    assert model.means is not None and model.means.mean() == pytest.approx(5.0)
    assert model.means.max() > 4 * model.means.min()
    for client in (int(model.means.argmin()), int(model.means.argmax())):
        drawn = durations(model, client, 2000)
        assert drawn.mean() == pytest.approx(model.means[client], rel=0.12)


def test_time_per_step_grows_with_the_steps():
    base, model = Exponential(seed=2, mean=3.0), Around(Exponential(seed=2, mean=3.0), 2, reference=10)
    assert model.unit == base.unit
    assert model.duration(4, 0, 10) == pytest.approx(base.duration(4, 0))
    assert model.duration(4, 0, 25) == pytest.approx(2.5 * base.duration(4, 0))
    sent = Around(Exponential(seed=2, mean=3.0), 2, reference=10, speeds=(4.0, 2.0))
    assert sent.sending(4, 0, 20, 4) == pytest.approx(7.0)  # of 20 steps, too


def test_suspensions_are_repeatable_and_none_at_all_changes_nothing():
    first, again = (durations(Around(Exponential(4), 4, share=0.5), 2, 30) for _ in range(2))
    assert (first == again).all()
    assert (durations(Around(Exponential(4), 4), 2, 30) == durations(Exponential(4), 2, 30)).all()


def test_a_transmission_takes_its_time_down_and_up(tiny):
    delay = {"name": "exponential", "jitter": 0.0}
    alone, sent = (
        build_delays(tiny({"delay": {**delay, **speeds}}), [1] * 9) for speeds in ({}, {"speed": 20.0, "up": 12.0})
    )
    assert (durations(sent, 3, 9) == durations(alone, 3, 9)).all()
    assert [sent.sending(3, n, 60, 60) for n in range(9)] == pytest.approx([8.0] * 9)
