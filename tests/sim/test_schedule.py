import numpy as np
import pytest
import torch

from fastagg import FedAsync, FedBuff
from fastagg.sim.clock.by_version import ExponentialVersions, UniformVersions, VersionSchedule
from fastagg.sim.clock.sampling import Participation
from fastagg.sim.one.run import run
from fastagg.sim.one.simulation import Simulation

VERSION = {"participation": {"rule": "all"}, "run": {"uploads": 40}}


class Follower:
    """Drives a schedule without training: every update moves the model by one, so version t holds the value t."""

    def __init__(self, server, delays, clients: int, seed: int = 0) -> None:
        self.server = server
        self.schedule = VersionSchedule(server, delays, clients, seed)
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
    ("delays", "buffer_size", "clients"),
    [
        (UniformVersions(seed=0, longest=6), 1, 50),
        (UniformVersions(seed=0, longest=4), 5, 50),
        (ExponentialVersions(seed=0, mean=2.0), 2, 50),
    ],
)
def test_arrivals_were_trained_on_the_version_tau_before(delays, buffer_size, clients):
    """Or on the first version while there are fewer."""
    follower = Follower(fedbuff(buffer_size), delays, clients)
    keys = set()
    for arrival in range(300):
        before = follower.server.version
        job, receipt = follower.step()
        assert receipt.delay == before - job.task.version == min(delays.tau(job.client, arrival), before)
        # The snapshot is the model as it was then, not as it is now.
        assert torch.equal(job.task.params, torch.full((3,), float(job.task.version)))
        keys.add((job.client, job.number))
    assert len(keys) == 300, "a number is used once by a client"


def test_clients_arrive_equally_often():
    follower = Follower(fedbuff(1), UniformVersions(seed=0, longest=4), clients=10)
    counts = np.bincount([follower.step()[0].client for _ in range(2_000)], minlength=10)
    assert ((counts - 200) ** 2 / 200).sum() < 45  # 9 degrees of freedom: p = 1e-6


def test_a_buffer_larger_than_the_number_of_clients_still_fills():
    follower = Follower(fedbuff(7), UniformVersions(seed=0, longest=2), clients=2)
    for _ in range(70):
        follower.step()
    assert follower.server.version == 10


def test_versions_nobody_can_use_any_more_are_let_go():
    server = FedAsync(torch.zeros(3), alpha=0.5)
    follower = Follower(server, UniformVersions(seed=0, longest=3), clients=5)
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
    rule = Participation(clients, concurrency=4, seed=1)
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
    every = Participation(clients=3, concurrency=3, seed=0)
    assert sorted(first(every)) == [0, 1, 2]
    assert [following(every, c) for c in (2, 0, 1)] == [2, 0, 1]  # it is the only idle one
    rule = Participation(4, None, seed=0)
    assert first(rule) == [0, 1, 2, 3]
    assert [following(rule, c) for c in (2, 2, 0)] == [2, 2, 0]
    starts = {tuple(first(Participation(50, 10, seed))) for seed in range(5)}
    assert len(starts) == 5
    assert first(Participation(50, 10, 3)) == first(Participation(50, 10, 3))
