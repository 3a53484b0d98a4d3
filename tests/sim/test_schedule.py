from contextlib import closing

import numpy as np
import pytest
import torch

from fastagg import FedAsync, FedBuff
from fastagg.errors import ConfigError
from fastagg.sim.clients.own import Own
from fastagg.sim.clock.by_version import ReplayedVersions, UniformVersions, VersionSchedule
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


@pytest.mark.parametrize(("buffer_size", "clients"), [(1, 50), (5, 50), (5, 8)])
def test_arrivals_were_trained_on_the_version_tau_before(buffer_size, clients):
    follower = Follower(fedbuff(buffer_size), UniformVersions(seed=0, longest=6), clients)
    for _ in range(300):
        before = follower.server.version
        job, receipt = follower.step()
        assert receipt.delay == before - job.task.version
        # The snapshot is the model as it was then, not as it is now.
        assert torch.equal(job.task.params, torch.full((3,), float(job.task.version)))


def test_delays_are_uniform_over_zero_to_tau_max_once_there_are_enough_versions():
    follower = Follower(fedbuff(1), UniformVersions(seed=0, longest=4), clients=20)
    delays = [follower.step()[1].delay for _ in range(2_000)][10:]
    counts = np.bincount(delays, minlength=5)
    assert len(counts) == 5
    assert ((counts - len(delays) / 5) ** 2 / (len(delays) / 5)).sum() < 30  # 4 degrees of freedom: p = 5e-6


def test_clients_arrive_equally_often():
    follower = Follower(fedbuff(1), UniformVersions(seed=0, longest=4), clients=10)
    counts = np.bincount([follower.step()[0].client for _ in range(2_000)], minlength=10)
    assert ((counts - 200) ** 2 / 200).sum() < 45  # 9 degrees of freedom: p = 1e-6


def test_a_measured_column_belongs_to_its_client():
    table = np.array([[0, 3] * 6])  # even clients are never late, odd ones always by three
    follower = Follower(fedbuff(1), ReplayedVersions(table), clients=12)
    jobs = [follower.step() for _ in range(400)][10:]
    assert {receipt.delay for _, receipt in jobs} == {0, 3}
    own = sum(receipt.delay == table[0, job.client] for job, receipt in jobs)
    assert own > 0.85 * len(jobs)  # now and then another one has to answer in a client's place


def test_measured_delays_are_replayed_exactly_where_clients_repeat_a_version():
    # A delay that grows by one with every arrival asks for the same old version again and again.
    table = np.array([[0], [0], [1], [2], [3], [4]])
    follower = Follower(fedbuff(1), ReplayedVersions(table), clients=12)
    expected = [min(t, int(table[t % 6, 0])) for t in range(120)]
    assert [follower.step()[1].delay for _ in range(120)] == expected


def test_early_arrivals_start_from_the_first_version():
    follower = Follower(fedbuff(1), ReplayedVersions(np.array([[5]])), clients=30)
    assert [follower.step()[1].delay for _ in range(8)] == [0, 1, 2, 3, 4, 5, 5, 5]


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


def test_a_number_is_used_once_by_a_client():
    follower = Follower(fedbuff(2), UniformVersions(seed=0, longest=3), clients=4)
    jobs = [(job.client, job.number) for job, _ in (follower.step() for _ in range(50))]
    assert len(set(jobs)) == 50


def test_a_run_with_delays_in_versions_has_them_in_its_rows(tiny, tmp_path):
    result = run(tiny({**VERSION, "delay": {"name": "version", "tau_max": 3}, "run.evaluate_every": 2}))
    assert result.rows[-1].time == 40.0
    assert 0 < result.summary["delay_max"] <= 3
    assert result.unit == "update"
    path = tmp_path / "delays.csv"
    path.write_text("2\n")
    replayed = Simulation(tiny({**VERSION, "delay": {"name": "version", "file": str(path)}}))
    while replayed.done() < 1:
        replayed.step()
    assert replayed.delays.maximum == 2
    assert replayed.delays.median == 2


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


BEFORE = {**AUTHORS, "delay.start": "before"}


def one_each(model, data, task, state):
    """Move every weight by one, so that what a client sends shows which model it began with."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 1.0
    return task.delta(model), state


def test_all_but_the_last_train_from_the_version_before_and_send_the_difference_to_theirs(tiny):
    """The models of a run, computed from its versions alone: FedBuff's mean of 3 differences at a rate of 1."""
    run = Simulation(tiny({**BEFORE, "client.steps": 1}), own=Own(train=one_each))
    models, sums, early = [run.server.flat.double().clone()], 0.0, 0
    for _ in range(60):
        job = run.schedule.in_flight()[0]
        sent = job.task.version
        if job.origin is not None:
            assert job.origin.version == sent - 1
            early += 1
        begin = models[sent if job.origin is None else sent - 1]
        sums = sums + begin + 1.0 - models[sent]
        if run.step():
            models.append(models[-1] + sums / 3)
            sums = 0.0
            assert torch.allclose(run.server.flat.double(), models[-1], atol=1e-4)
    assert len(models) == 21 and early > 60 * 2 / 3 - 12  # two of three; the first six clients begin with version 0


@pytest.mark.parametrize("changes", [AUTHORS, BEFORE, {**BEFORE, "model.name": "cnn", "model.widths": [4, 4]}])
def test_with_the_authors_counting_a_run_resumes(changes, tiny):
    config = tiny(changes)
    whole, first = Simulation(config), Simulation(config)
    for _ in range(25):
        whole.step()
    for _ in range(10):
        first.step()
    rest = Simulation(config)
    rest.load_state_dict(first.state_dict())
    for _ in range(15):
        rest.step()
    assert torch.equal(rest.server.flat, whole.server.flat) and rest.schedule.now == whole.schedule.now
    with closing(Simulation(config, workers=2)) as threads:
        for _ in range(25):
            threads.step()
    assert torch.equal(threads.server.flat, whole.server.flat)


def test_a_start_before_needs_the_authors_counting_and_differences(tiny):
    with pytest.raises(ConfigError, match=r"delay.start .* needs delay.counting"):
        tiny({"delay.start": "before"})
    with pytest.raises(ConfigError, match="gradients"):
        Simulation(tiny({**BEFORE, "algorithm": {"name": "ASGD", "lr": 0.1}, "client.steps": 1}))


def test_the_authors_counting_is_for_concurrency(tiny):
    with pytest.raises(ConfigError, match="authors"):
        tiny({**AUTHORS, "participation": {"rule": "all"}})
