"""How long clients take, and who is slow: each law against its formula. Transmissions, hangs, clients that leave."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fastagg import FedAsync, FedBuff, sim
from fastagg.sim.clients.own import UserFunctions
from fastagg.sim.clock import delays as laws
from fastagg.sim.clock.by_version import VersionSchedule
from fastagg.sim.clock.delays import LAWS, Population, Times, VersionDelay
from fastagg.sim.clock.sampling import ClientPool
from fastagg.sim.runs.run import run
from fastagg.sim.runs.simulation import Simulation

from .engine_models import halved, train


def times(name: str, clients: int | Sequence[int] = 1, seed: int = 0, **keys: Any) -> Times:
    """The times of a law; ``clients``: how many, or the samples of each."""
    sizes = [1] * clients if isinstance(clients, int) else clients
    return Times(LAWS[name](name=name, **keys), Population(sizes, seed))


def durations(drawn: Times, client: int, count: int) -> np.ndarray:
    return np.array([drawn.duration(client, number) for number in range(count)])


def always(seed: int = 0, time: float = 1.0, **keys: Any) -> Times:
    """Every task takes as long."""
    drawn = times("exponential", 9, seed, **keys)
    drawn._durations = lambda client, number, steps: time
    return drawn


# A law: how its draws are made, the share of them that is at most x, and their mean.
Law = tuple[Callable[[int], np.ndarray], Callable[[np.ndarray], np.ndarray], float]


def uniform(drawn: Times, kind: int, low: float, high: float) -> Law:
    client = int(np.flatnonzero(drawn.classes == kind)[0])
    return lambda n: durations(drawn, client, n), lambda x: ((x - low) / (high - low)).clip(0, 1), (low + high) / 2


def exponential(mean: float, draw: Callable[[int], np.ndarray]) -> Law:
    return draw, lambda x: 1 - np.exp(-x / mean), mean


def normal(size: float, jitter: float) -> Law:
    """Sending so much, with a factor that is normal around 1. Time does not go back."""
    drawn, law = times("exponential", up=5.0, jitter=jitter), NormalDist(1, jitter)
    below = law.cdf(0)
    mean = size / 5 * (1 - below + jitter**2 * law.pdf(0))
    return (
        lambda n: np.array([drawn.sending(0, number, 9, int(size)) for number in range(n)]),
        np.vectorize(lambda x: law.cdf(x / size * 5) if x >= 0 else 0.0),
        mean,
    )


def versions(mean: float) -> Law:
    """Rounded at random, and cut at five times the mean of the draws before the cut."""
    (longest, tau), scale = VersionDelay(name="version", mean=mean).taus(0), mean / (1 - np.exp(-5))
    cut = 5 * scale

    def later(x: np.ndarray) -> np.ndarray:
        return scale * (np.exp(-np.minimum(x, cut) / scale) - np.exp(-np.minimum(x + 1, cut) / scale))

    def draw(count: int) -> np.ndarray:
        drawn = np.array([tau(arrival) for arrival in range(count)])
        assert drawn.max() <= longest
        return drawn

    return draw, lambda x: 1 - later(x), mean


SPREAD = laws.ExponentialDelay(name="exponential", spread=1.0)
RATES, MEANS = (make(Population([1] * 4000, 1)) for make in (lambda p: Times(SPREAD, p), SPREAD.means))
TABLES = {name: LAWS[name].tables for name in ("three-class", "size-tied")}
SIGMA, SHAPE = 0.8, 4.0
FORMULAS: dict[str, Law] = {
    **{f"{name}, {table}, {kind}": uniform(times(name, range(60), 1, table=table), kind, *ranges)
       for name, tables in TABLES.items() for table, classes in tables.items() for kind, ranges in enumerate(classes)},
    "exponential": exponential(5.0, lambda n: durations(times("exponential", 8, 3), 7, n)),
    **{f"exponential, client {c}": exponential(MEANS[c], lambda n, c=c: durations(RATES, c, n))
       for c in (int(MEANS.argmin()), int(MEANS.argmax()))},
    "lognormal": (lambda n: durations(times("lognormal", sigma=SIGMA), 0, n), np.vectorize(
        lambda x: NormalDist(np.log(5.0) - SIGMA**2 / 2, SIGMA).cdf(np.log(x))), 5.0),
    "pareto": (lambda n: durations(times("pareto", shape=SHAPE), 0, n),
               lambda x: 1 - (5.0 * (SHAPE - 1) / SHAPE / x) ** SHAPE, 5.0),
    "means of clients": (  # lognormal
        lambda n: np.log(MEANS[:n]) - np.log(MEANS).mean(), np.vectorize(NormalDist().cdf), 0.0),
    "sending": normal(15, 0.2),
    "sending, wild": normal(15, 5.0),
    # Hangs do not cause longer hangs: with a training time of 1 no task takes more than 2. The first never hangs.
    "hangs": (lambda n: durations(always(suspension=0.3), 0, n + 1)[1:],
              lambda x: np.where(x < 1, 0, 0.7 + 0.3 * (x - 1)).clip(0, 1), 1.15),
    "version, uniform": (lambda n: np.array([VersionDelay(name="version", tau_max=4).taus(0)[1](k) for k in range(n)]),
                         lambda x: ((np.floor(x) + 1) / 5).clip(0, 1), 2.0),
    **{f"version, exponential, {mean}": versions(mean) for mean in (1.0, 5.0, 20.0)},
}  # fmt: skip


@pytest.mark.parametrize("name", FORMULAS)
def test_a_law_is_its_formula(name: str) -> None:
    """By Kolmogorov and Smirnov's distance, which a right law exceeds in one of 10,000 cases. Seeds are fixed."""
    draw, share, mean = FORMULAS[name]
    drawn = draw(4000)
    at = np.unique(drawn)
    reached = np.searchsorted(np.sort(drawn), at, side="right") / len(drawn)
    assert np.abs(reached - share(at)).max() < 2.23 / np.sqrt(len(drawn))
    assert abs(drawn.mean() - mean) < 5 * drawn.std() / np.sqrt(len(drawn))


def test_every_law_has_a_formula_here() -> None:
    others = {"measured", "module:function"}  # what a file and a user say: test_measured.py, test_own_functions.py
    assert set(LAWS) - others <= {name.partition(",")[0] for name in FORMULAS}


def test_every_law_has_its_formula_its_keys_in_words_and_what_draws() -> None:
    for law in LAWS.values():
        words, keys = law.__doc__ or "", law.__annotations__.keys() & law.model_fields.keys()
        assert words and not [key for key in keys - {"name", "file", "unit"} if f"``{key}``" not in words], law
        parts = ["taus"] if law.in_versions else ["durations", "unit"]
        assert all(hasattr(law, part) or part in law.model_fields for part in parts), law
    assert all(hasattr(law, "draw") for law in LAWS.values() if issubclass(law, laws.DrawnDelay))


def test_the_tables_are_those_of_the_papers() -> None:
    assert TABLES["three-class"] == {"large": ((1, 2), (3, 5), (50, 80)), "mild": ((1, 2), (3, 5), (5, 8))}  # FADAS
    assert TABLES["size-tied"] == {"large": ((1, 2), (3, 5), (50, 80)), "mild": ((1, 2), (3, 5), (10, 20))}  # FedEcho


def test_draws_depend_on_seed_client_and_number_alone() -> None:
    def keyed(seed: int) -> list[Times]:
        drawn = [times(name, range(9), seed) for name in ("exponential", "three-class", "size-tied")]
        return [*drawn, always(seed=seed, speed=1.0, up=1.0, jitter=1.0)]

    def total(drawn: Times, client: int, number: int) -> float:
        return drawn.duration(client, number) + drawn.sending(client, number, 9, 9)

    keys = [(client, number) for client in (1, 2, 3) for number in (0, 1)]
    for first, same, other in zip(keyed(0), keyed(0), keyed(1), strict=True):
        forwards = [total(first, *key) for key in keys]
        assert [total(same, *key) for key in keys[::-1]] == forwards[::-1] and len(set(forwards)) == 6
        assert total(other, *keys[0]) != forwards[0]


def test_three_class_shares_are_those_of_the_largest_dirichlet_component() -> None:
    shares = np.bincount(times("three-class", 20_000).classes, minlength=3) / 20_000
    # An independent route to a Dirichlet: the largest of three gamma variates, other generator.
    gammas = np.random.RandomState(5).gamma([3.0, 2.0, 1.0], size=(200_000, 3))
    expected = np.bincount(gammas.argmax(axis=1), minlength=3) / 200_000
    assert np.abs(shares - expected).max() < 5 * np.sqrt(0.25 / 20_000)
    slow = [(times("three-class", 5_000, gamma=gamma).classes == 2).mean() for gamma in (0.1, 1.0, 10.0)]
    assert slow[0] > slow[1] > slow[2]


def test_counts_put_exactly_so_many_clients_into_each_class() -> None:
    classes = [times("three-class", 50, seed, counts=[29, 14, 7]).classes for seed in range(3)]
    assert all(np.bincount(c).tolist() == [29, 14, 7] for c in classes)
    assert not (classes[0] == classes[1]).all()  # the seed says which
    drawn = [np.bincount(times("three-class", 50, seed).classes, minlength=3)[2] for seed in range(30)]
    assert len(set(drawn)) > 3  # without counts it is chance


@given(
    sizes=st.lists(st.integers(1, 50), min_size=1, max_size=120),
    gamma=st.sampled_from([0.0, 0.3, 5.0]),
    seed=st.integers(0, 5),
)
def test_a_tenth_is_long_and_with_gamma_zero_nobody_with_more_samples_is_quicker(sizes, gamma, seed) -> None:
    classes, sizes = times("size-tied", sizes, seed, gamma=gamma).classes, np.array(sizes)
    assert (classes == 2).sum() == len(sizes) // 10
    assert abs((classes == 0).sum() - 0.6 * (len(sizes) - len(sizes) // 10)) <= 0.5
    for quicker in (0, 1) if gamma == 0 else ():
        if (classes == quicker).any() and (classes > quicker).any():
            assert sizes[classes == quicker].max() <= sizes[classes > quicker].min()


def test_a_larger_gamma_weakens_the_tie() -> None:
    sizes = np.arange(1000)
    strength = [np.corrcoef(sizes, times("size-tied", sizes, gamma=gamma).classes)[0, 1] for gamma in (0.0, 1.0, 100.0)]
    assert strength[0] > 0.85
    assert 0.4 < strength[1] < 0.8
    assert abs(strength[2]) < 0.15


def test_the_settings_of_every_law_add_their_own_and_by_default_nothing() -> None:
    assert MEANS.mean() == pytest.approx(5.0)
    base, steps = times("exponential", 9, 2), times("exponential", 9, 2, steps=10, speed=20.0, up=12.0, jitter=0.0)
    assert base.sending(2, 0, 9, 9) == 0.0
    assert steps.duration(4, 0, 10) == pytest.approx(base.duration(4, 0))
    assert steps.duration(4, 0, 25) == pytest.approx(2.5 * base.duration(4, 0))
    assert [steps.sending(3, n, 60, 48) for n in range(9)] == pytest.approx([7.0] * 9)  # not by steps


def test_transmission_time_follows_the_model_and_the_speed(tiny) -> None:
    def delays(**changes):
        return Simulation(tiny({"delay": {"name": "exponential", "jitter": 0.0, **changes}})).schedule.next_time()

    parameters = (64 + 1) * 8 + (8 + 1) * 10
    assert delays(speed=100.0) - delays() == pytest.approx(4 * parameters / 100.0)
    assert delays(speed=100.0) - delays(speed=200.0) == pytest.approx(4 * parameters / 200.0)


def test_a_hang_is_as_long_as_a_training_at_most_however_slow_the_network() -> None:
    def drawn(**keys):
        law, keys = times("exponential", 3, suspension=0.5, **keys), [(c, n) for n in range(20) for c in range(3)]
        return np.array([law.duration(*key) + law.sending(*key, 4000, 4000) for key in keys])

    alone, sent = drawn(), drawn(speed=10.0, jitter=0.0)
    assert sent - alone == pytest.approx(sent[0] - alone[0]) and sent[0] - alone[0] > 10 * alone.max()


RULES = {
    "concurrency": {},
    "all": {"participation": {"rule": "all"}},
    "round": {"participation": {"rule": "round"}, "algorithm": {"name": "FedAvg", "clients_per_round": 4}},
    "version": {"participation": {"rule": "all"}, "delay": {"name": "version", "tau_max": 3}},
}


def tenth(update, task):
    return {
        name: array.flatten()[: array.numel() // 10].sum() * torch.ones_like(array) for name, array in update.items()
    }, 100


@pytest.mark.parametrize("rule", ["concurrency", "round"])
def test_the_time_of_an_upload_is_that_of_the_bytes_that_are_sent(rule, tiny) -> None:
    delay = {"name": "exponential", "jitter": 0.0, "up": 10.0}
    config = tiny({"delay": delay, "run.versions": 3, **RULES[rule]})
    whole, part = run(config), sim.run(config, own=UserFunctions(change=tenth))
    sent = whole.summary["bytes_up"] / whole.summary["uploads"]
    assert part.summary["bytes_up"] == 100 * part.summary["uploads"]
    rounds = 3 if rule == "round" else 1
    assert whole.rows[-1].time - part.rows[-1].time > rounds * (sent - 100) / 10.0 * 0.99
    if rule == "round":
        assert whole.rows[-1].time - part.rows[-1].time == pytest.approx(3 * (sent - 100) / 10.0)


def test_an_update_that_is_made_before_it_is_due_is_the_same(tiny) -> None:
    delay = {"name": "exponential", "jitter": 0.0}
    own = UserFunctions(train=train, change=halved)
    late, early = (sim.run(tiny({"delay": delay | up, "model.name": "cnn", "model.widths": [2, 2], "run.fused": False}),
                       own=own).rows for up in ({}, {"up": 1e30}))  # fmt: skip
    assert [replace(row, time=0) for row in early] == [replace(row, time=0) for row in late]


@pytest.mark.parametrize("rule", RULES)
def test_from_half_of_the_run_on_the_lost_clients_never_answer(tiny, rule) -> None:
    simulation = Simulation(tiny({**RULES[rule], "dropout.share": 0.5, "run": {"uploads": 160}}))
    seen: list[set[int]] = [set(), set()]
    late = 84 if rule == "round" else 80  # a round that has begun is finished
    while simulation.done() < 1:
        before = dict(simulation.client_uploads)
        simulation.step()
        after = simulation.client_uploads
        (client,) = [c for c in after if after[c] != before.get(c, 0)]
        seen[simulation.uploads > late].add(client)
        if simulation.uploads == 100 and rule in ("concurrency", "all"):
            # The others fill the places, and the server forgets the tasks of the lost.
            flying = [job.client for job in simulation.schedule.in_flight()]
            assert len(flying) == len(set(flying)) == 6  # M_c, and those who are left
            tasks = simulation.server.state_dict()["tasks"]
            assert {int(tasks["clients"][place]) for place in tasks["task_client"]} == set(flying)
    lost = simulation._lost
    assert len(lost) == 6
    assert seen[0] & lost
    assert seen[1] and not seen[1] & lost


def test_the_same_clients_drop_out_whatever_the_method(tiny) -> None:
    lost = [Simulation(tiny({**RULES[rule], "dropout.share": 0.3}))._lost for rule in RULES]
    assert len(set(lost)) == 1 and len(lost[0]) == 4
    assert Simulation(tiny({"seed": 1, "dropout.share": 0.3}))._lost != lost[0]


def test_the_first_half_of_a_run_is_the_same_with_and_without_dropout(tiny) -> None:
    rows = [run(tiny({"dropout.share": share, "run": {"uploads": 60}})).rows for share in (0.0, 0.5)]
    assert [row for row in rows[0] if row.uploads <= 30] == [row for row in rows[1] if row.uploads <= 30]
    assert rows[0][-1] != rows[1][-1]


VERSION = {"participation": {"rule": "all"}, "run": {"uploads": 40}}


class Follower:
    """Drives a schedule without training: every update moves the model by one, so version t holds the value t."""

    def __init__(self, server, clients: int, **law: Any) -> None:
        self.server = server
        self.schedule = VersionSchedule(server, VersionDelay(name="version", **law), clients, 0)
        self.schedule.start()

    def step(self):
        job = self.schedule.next()
        assert job.task.client == job.client
        receipt = self.server.receive(job.client, torch.ones(3), version=job.task.version)
        self.schedule.arrived(job)
        return job, receipt


def fedbuff(size: int):
    return FedBuff(torch.zeros(3), lr=1.0, buffer_size=size)


@pytest.mark.parametrize(
    ("law", "buffer_size", "clients"),
    [({"tau_max": 6}, 1, 50), ({"tau_max": 4}, 5, 50), ({"mean": 2.0}, 2, 50)],
)
def test_arrivals_were_trained_on_the_version_tau_before(law, buffer_size, clients):
    """Or on the first version while there are fewer."""
    follower = Follower(fedbuff(buffer_size), clients, **law)
    keys, tau = set(), VersionDelay(name="version", **law).taus(0)[1]
    for arrival in range(300):
        before = follower.server.version
        job, receipt = follower.step()
        assert receipt.delay == before - job.task.version == min(tau(arrival), before)
        # The snapshot is the model as it was then, not as it is now.
        assert torch.equal(job.task.params, torch.full((3,), float(job.task.version)))
        keys.add((job.client, job.number))
    assert len(keys) == 300, "a number is used once by a client"


def test_clients_arrive_equally_often():
    follower = Follower(fedbuff(1), 10, tau_max=4)
    counts = np.bincount([follower.step()[0].client for _ in range(2_000)], minlength=10)
    assert ((counts - 200) ** 2 / 200).sum() < 45  # 9 degrees of freedom: p = 1e-6


def test_a_buffer_larger_than_the_number_of_clients_still_fills():
    follower = Follower(fedbuff(7), 2, tau_max=2)
    for _ in range(70):
        follower.step()
    assert follower.server.version == 10


def test_versions_nobody_can_use_any_more_are_let_go():
    server = FedAsync(torch.zeros(3), alpha=0.5)
    follower = Follower(server, 5, tau_max=3)
    held = []
    for _ in range(400):
        follower.step()
        held.append(server.memory()["versions"] // 12)  # 3 fp32 parameters each
    assert max(held[200:]) == max(held[50:200]) < 60


def test_a_run_with_delays_in_versions_has_them_in_its_rows(tiny):
    result = run(tiny({**VERSION, "delay": {"name": "version", "tau_max": 3}, "run.evaluate_every": 2}))
    assert result.rows[-1].time == 40.0
    assert 0 < result.summary["delay_max"] <= 3
    assert result.unit == "update"


AUTHORS = {"delay.counting": "authors"}


def test_with_the_authors_counting_nobody_is_sent_a_model_that_is_about_to_change(tiny):
    """Tasks are sent at the flush, to as many clients as have arrived. So delays do not include a buffer's waiting."""
    usual, theirs = Simulation(tiny()), Simulation(tiny(AUTHORS))
    flying = []
    for simulation in (usual, theirs):
        sizes = set()
        for _ in range(60):
            simulation.step()
            sizes.add(len(simulation.schedule.in_flight()))
        flying.append(sizes)
    assert flying[0] == {6} and flying[1] == {4, 5, 6}  # a buffer of 3
    assert theirs.delays.mean < usual.delays.mean
    assert {job.task.version for job in theirs.schedule.in_flight()} <= set(range(theirs.server.version + 1))


# Who trains next, in virtual time


def first(rule):
    return [rule.draw(0.0) for _ in range(rule.room)]


def following(rule, arrived):
    rule.back(arrived)
    return rule.draw(0.0)


def test_the_next_of_m_c_clients_is_drawn_uniformly_from_the_idle_ones():
    clients, rounds = 10, 6_000
    rule = ClientPool(clients, concurrency=4, seed=1)
    training = first(rule)
    drawn_while_idle, idle_times, again = np.zeros(clients), np.zeros(clients), 0
    for number in range(rounds):
        arrived = training.pop(number % 4)
        idle = [c for c in range(clients) if c not in training]
        assert len(idle) == 7  # the six that idled and the one that has just arrived
        idle_times[idle] += 1
        drawn = following(rule, arrived)
        assert drawn in idle
        drawn_while_idle[drawn] += 1
        again += drawn == arrived
        training.append(drawn)
    # Each idle client must be drawn with probability 1/7 each time it is idle: 5 binomial deviations.
    deviation = np.sqrt(idle_times * (1 / 7) * (6 / 7))
    assert (np.abs(drawn_while_idle - idle_times / 7) < 5 * deviation).all()
    assert abs(again - rounds / 7) < 5 * np.sqrt(rounds * (1 / 7) * (6 / 7))  # the one that arrived is like the others


def test_where_all_train_who_arrives_is_next_and_the_first_depend_on_the_seed():
    every = ClientPool(clients=3, concurrency=3, seed=0)
    assert sorted(first(every)) == [0, 1, 2]
    assert [following(every, c) for c in (2, 0, 1)] == [2, 0, 1]  # it is the only idle one
    rule = ClientPool(4, None, seed=0)
    assert first(rule) == [0, 1, 2, 3]
    assert [following(rule, c) for c in (2, 2, 0)] == [2, 2, 0]
    starts = {tuple(first(ClientPool(50, 10, seed))) for seed in range(5)}
    assert len(starts) == 5
    assert first(ClientPool(50, 10, 3)) == first(ClientPool(50, 10, 3))
