"""Delays tied to how much data a client has, transmission times, and clients that drop out."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fastagg.errors import ConfigError
from fastagg.sim.clients.own import Own
from fastagg.sim.clock.delays import SIZE_TIED_TABLES, Around, DelayModel, Exponential, SizeTied
from fastagg.sim.one.build_clock import build_delays
from fastagg.sim.one.run import run
from fastagg.sim.one.simulation import Simulation
from fastagg.sim.show.progress import Progress


class Nothing(DelayModel):
    """No delay at all."""

    unit = "s"

    def duration(self, client, number, steps=1, now=0.0):
        return 0.0


@given(sizes=st.lists(st.integers(1, 50), min_size=1, max_size=120), gamma=st.sampled_from([0.0, 0.3, 5.0]))
def test_at_most_a_tenth_of_the_clients_is_long(sizes, gamma):
    classes = SizeTied(sizes, seed=0, gamma=gamma).classes
    assert (classes == 2).sum() == len(sizes) // 10
    assert abs((classes == 0).sum() - 0.6 * (len(sizes) - len(sizes) // 10)) <= 0.5


@given(sizes=st.lists(st.integers(1, 9), min_size=10, max_size=60), seed=st.integers(0, 5))
def test_with_gamma_zero_nobody_with_more_samples_is_in_a_quicker_class(sizes, seed):
    classes = SizeTied(sizes, seed).classes
    sizes = np.array(sizes)
    for quicker in (0, 1):
        if (classes == quicker).any() and (classes > quicker).any():
            assert sizes[classes == quicker].max() <= sizes[classes > quicker].min()


def test_a_larger_gamma_weakens_the_tie():
    sizes = np.arange(1000)
    strength = [np.corrcoef(sizes, SizeTied(sizes, 0, gamma=gamma).classes)[0, 1] for gamma in (0.0, 1.0, 100.0)]
    assert strength[0] > 0.85
    assert 0.4 < strength[1] < 0.8
    assert abs(strength[2]) < 0.15


@pytest.mark.parametrize("table", ["large", "mild"])
def test_size_tied_durations_are_uniform_over_the_range_of_the_class(table):
    delays = SizeTied(range(20), seed=1, table=table)
    for kind, (low, high) in enumerate(SIZE_TIED_TABLES[table]):
        client = int(np.flatnonzero(delays.classes == kind)[0])
        draws = np.array([delays.duration(client, n) for n in range(2000)])
        assert low <= draws.min() and draws.max() < high
        assert draws.mean() == pytest.approx((low + high) / 2, abs=5 * (high - low) / np.sqrt(12 * 2000))
    assert SIZE_TIED_TABLES[table][2] == {"large": (50, 80), "mild": (10, 20)}[table]  # FedEcho, Table 1


def test_transmission_is_size_over_speed_times_a_normal_coefficient():
    delays = Around(Nothing(), seed=0, speeds=(None, 5.0), jitter=0.2)
    draws = np.array([delays.sending(0, n, 9, 15) for n in range(4000)])
    assert draws.mean() == pytest.approx(3.0, abs=5 * 0.6 / np.sqrt(4000))
    assert draws.std() == pytest.approx(0.6, rel=0.06)
    standard = (draws - 3.0) / 0.6
    assert abs((standard**3).mean()) < 0.2 and abs((standard**4).mean() - 3) < 0.4  # skewness and kurtosis
    assert delays.unit == "s"


def test_transmission_never_takes_negative_time_and_adds_to_training():
    wild = Around(Nothing(), seed=0, speeds=(1.0, None), jitter=5.0)
    assert min(wild.sending(0, n, 1, 1) for n in range(200)) == 0.0
    sure = Around(Exponential(seed=0, mean=2.0), seed=0, speeds=(4.0, 2.0), jitter=0.0)
    assert [sure.sending(1, n, 4, 4) for n in range(5)] == pytest.approx([3.0] * 5)


def test_transmission_time_follows_the_model_and_the_speed(tiny):
    def delays(**changes):
        return Simulation(tiny({"delay": {"name": "exponential", "jitter": 0.0, **changes}})).schedule.next_time()

    parameters = (64 + 1) * 8 + (8 + 1) * 10
    assert delays(speed=100.0) - delays() == pytest.approx(4 * parameters / 100.0)
    assert delays(speed=100.0) - delays(speed=200.0) == pytest.approx(4 * parameters / 200.0)


def tenth(update, task):
    return {
        name: array.flatten()[: array.numel() // 10].sum() * torch.ones_like(array) for name, array in update.items()
    }, 100


@pytest.mark.parametrize("rule", ["concurrency", "round"])
def test_the_time_of_an_upload_is_that_of_the_bytes_that_are_sent(rule, tiny):
    def result(own=None, **changes):
        return run(
            tiny(
                {
                    "delay": {"name": "exponential", "jitter": 0.0, "up": 10.0},
                    "run.versions": 3,
                    **RULES[rule],
                    **changes,
                }
            ),
            own=own,
        )

    whole, part = result(), result(Own(change=tenth))
    sent = whole.summary["bytes_up"] / whole.summary["uploads"]
    assert part.summary["bytes_up"] == 100 * part.summary["uploads"]
    rounds = 3 if rule == "round" else 1
    assert whole.rows[-1].time - part.rows[-1].time > rounds * (sent - 100) / 10.0 * 0.99
    if rule == "round":
        assert whole.rows[-1].time - part.rows[-1].time == pytest.approx(3 * (sent - 100) / 10.0)


def test_an_update_that_is_made_before_it_is_due_is_the_same_and_goes_on_after_a_kill(tiny, tmp_path):
    delay = {"name": "exponential", "jitter": 0.0}
    fast = {
        "delay": {**delay, "up": 1e30},
        "run.checkpoint_every": 0.0,
        "model": {"name": "cnn", "widths": [2, 2]},
        "run.fused": False,
    }

    def train(model, data, task, state):
        task.descend(model, data)
        return task.delta(model), (state or 0) + 1

    own = Own(
        train=train,
        change=lambda update, task: (
            {name: array / 2 if array.is_floating_point() else array for name, array in update.items()},
            8,
        ),
    )
    late = run(tiny({**fast, "delay": delay}), own=own)
    early = run(tiny(fast), tmp_path / "whole", own=own)
    assert [replace(row, time=0) for row in early.rows] == [replace(row, time=0) for row in late.rows]

    class Killed(Progress):
        def evaluated(self, row):
            if row.version == 4:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(tiny(fast), tmp_path / "cut", Killed(), own=own)
    assert run(tiny(fast), tmp_path / "cut", own=own, resume="go on").rows == early.rows


def test_a_hang_is_as_long_as_a_training_at_most_however_slow_the_network(tiny):
    def times(**changes):
        config = tiny({"delay": {"name": "exponential", "suspension": 0.5, **changes}})
        delays, keys = build_delays(config, [1] * 3), [(client, number) for number in range(20) for client in range(3)]
        return np.array([delays.duration(*key) + delays.sending(*key, 4000, 4000) for key in keys])

    alone, sent = times(), times(speed=10.0, jitter=0.0)
    assert sent - alone == pytest.approx(sent[0] - alone[0]) and sent[0] - alone[0] > 10 * alone.max()


def test_the_longest_training_is_remembered():
    delays = [Around(Exponential(0), 0, share=0.9, speeds=(1.0, 1.0), jitter=0.1) for _ in range(2)]
    for n in range(20):
        delays[0].duration(n % 3, n)
    delays[1].load_state_dict(delays[0].state_dict())
    assert [d.duration(1, 30) for d in delays[:1]] == [d.duration(1, 30) for d in delays[1:]]


RULES = {
    "concurrency": {},
    "all": {"participation": {"rule": "all"}},
    "round": {"participation": {"rule": "round"}, "algorithm": {"name": "FedAvg", "clients_per_round": 4}},
    "version": {"participation": {"rule": "all"}, "delay": {"name": "version", "tau_max": 3}},
}


@pytest.mark.parametrize("rule", RULES)
def test_from_half_of_the_run_on_the_lost_clients_never_answer(tiny, rule):
    config = tiny({**RULES[rule], "dropout.share": 0.5, "run": {"uploads": 160}})
    simulation = Simulation(config)
    seen: list[set[int]] = [set(), set()]
    late = 84 if rule == "round" else 80  # a round that has begun is finished
    while simulation.done() < 1:
        before = dict(simulation.client_uploads)
        simulation.step()
        after = simulation.client_uploads
        (client,) = [c for c in after if after[c] != before.get(c, 0)]
        seen[simulation.uploads > late].add(client)
    lost = simulation._lost
    assert len(lost) == 6
    assert seen[0] & lost
    assert seen[1] and not seen[1] & lost


@pytest.mark.parametrize("rule", ["concurrency", "all"])
def test_after_the_drop_the_others_fill_the_places_and_the_server_forgets_the_tasks(tiny, rule):
    simulation = Simulation(tiny({**RULES[rule], "dropout.share": 0.5, "run": {"uploads": 100}}))
    for _ in range(60):
        simulation.step()
    flying = [job.client for job in simulation.schedule.in_flight()]
    assert len(flying) == len(set(flying)) == 6  # M_c, and those who are left
    tasks = simulation.server.state_dict()["tasks"]
    owed = {int(tasks["clients"][place]) for place in tasks["task_client"]}
    assert owed == set(flying)


def test_the_same_clients_drop_out_whatever_the_method(tiny):
    lost = [Simulation(tiny({**RULES[rule], "dropout.share": 0.3}))._lost for rule in RULES]
    assert len(set(lost)) == 1 and len(lost[0]) == 4
    assert Simulation(tiny({"seed": 1, "dropout.share": 0.3}))._lost != lost[0]


def test_the_first_half_of_a_run_is_the_same_with_and_without_dropout(tiny):
    rows = [run(tiny({"dropout.share": share, "run": {"uploads": 60}})).rows for share in (0.0, 0.5)]
    assert [row for row in rows[0] if row.uploads <= 30] == [row for row in rows[1] if row.uploads <= 30]
    assert rows[0][-1] != rows[1][-1]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dropout.share": 0.99}, "of 12 clients 1 must stay"),
        ({**RULES["round"], "dropout.share": 0.8}, "of 12 clients 4 must stay"),
        ({"dropout.share": 1.0}, "dropout.share"),
        ({"dropout.shape": 0.5}, r"unknown key dropout.shape \(known here: share, after\)"),
        ({"delay": {"name": "size-tied", "table": "huge"}}, "delay.table"),
        ({"delay": {"name": "version", "tau_max": 2, "speed": 1.0}}, "unknown key delay.speed"),
        ({"delay": {"name": "exponential", "speed": 0.0}}, "delay.speed"),
    ],
)
def test_wrong_settings_name_their_key(tiny, changes, message):
    with pytest.raises(ConfigError, match=message):
        run(tiny(changes))
