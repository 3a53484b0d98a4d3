import copy
import math
from contextlib import closing
from dataclasses import dataclass

import pytest
import torch
from torch import nn

from fastagg.errors import ConfigError
from fastagg.sim.clients.client import LocalTrainer, LocalWork, Turn, rated
from fastagg.sim.data.federated import Samples
from fastagg.sim.models import build
from fastagg.sim.one.build import build_work
from fastagg.sim.one.simulation import Simulation


@dataclass
class Sent:
    """What a dispatch is to a client."""

    views: dict
    local_steps: int | None = None
    version: int = 0
    control: torch.Tensor | None = None

    def delta(self, trained: nn.Module) -> dict:
        return {name: value - self.views[name] for name, value in trained.state_dict().items()}


@pytest.fixture
def samples() -> Samples:
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(23, 6, generator=rng)
    return Samples(x, (x[:, 0] > 0).long())


def snapshot(seed: int = 0) -> dict:
    return {k: v.clone() for k, v in build("mlp", (6,), 2, [5], seed).state_dict().items()}


def trainer(**work) -> LocalTrainer:
    work = {"lr": 0.1, "batch_size": 8, **work}
    return LocalTrainer(build("mlp", (6,), 2, [5], seed=9), LocalWork(**work), seed=0)


def equal(a: dict, b: dict) -> bool:
    return all(torch.equal(a[key], b[key]) for key in a)


def test_one_full_batch_step_is_one_sgd_step(samples):
    params = snapshot()
    update = trainer(batch_size=100, steps=1, lr=0.5, weight_decay=0.01).train(Sent(params), samples, 0, 0)
    model = build("mlp", (6,), 2, [5], seed=0)
    nn.functional.cross_entropy(model(samples.x), samples.y).backward()
    for name, parameter in model.named_parameters():
        expected = -0.5 * (parameter.grad + 0.01 * parameter.detach())
        torch.testing.assert_close(update[name], expected, rtol=1e-5, atol=1e-6)


def test_what_layers_draw_belongs_to_the_dispatch(samples):
    """Dropout's masks depend on seed, client and number, not on what drew before, and nobody else's draws on them."""
    module = nn.Sequential(nn.Linear(6, 5), nn.Dropout(0.5), nn.Linear(5, 2))
    params = {name: value.clone() for name, value in module.state_dict().items()}

    def local() -> LocalTrainer:
        return LocalTrainer(module, LocalWork(lr=0.1, batch_size=100, steps=3), seed=0)

    first = local().train(Sent(params), samples, 3, 1)
    torch.manual_seed(123)
    torch.rand(7)
    before = torch.get_rng_state()
    again = local().train(Sent(params), samples, 3, 1)
    assert equal(first, again)
    assert torch.equal(torch.get_rng_state(), before)
    assert not equal(first, local().train(Sent(params), samples, 3, 2))
    gradient = local().gradient(Sent(params), samples, 3, 1)
    torch.rand(7)
    assert equal(gradient, local().gradient(Sent(params), samples, 3, 1))


def test_momentum_starts_anew_with_every_dispatch(samples):
    local = trainer(momentum=0.9, epochs=2)
    first = local.train(Sent(snapshot()), samples, 0, 0)
    local.train(Sent(snapshot()), samples, 5, 0)
    assert equal(local.train(Sent(snapshot()), samples, 0, 0), first)


def test_results_depend_on_client_and_number_not_on_the_order_of_training(samples):
    jobs = [(client, number) for client in (0, 1) for number in (0, 1)]

    def all_of(order):
        local = trainer(epochs=2)
        return {job: local.train(Sent(snapshot()), samples, *job) for job in order}

    forwards, backwards = all_of(jobs), all_of(jobs[::-1])
    assert all(equal(forwards[job], backwards[job]) for job in jobs)
    assert not equal(forwards[0, 0], forwards[0, 1])
    assert not equal(forwards[0, 0], forwards[1, 0])


def batches(local: LocalTrainer, samples: Samples, local_steps: int | None = None) -> list[list[float]]:
    """Train once and return the first feature of each batch's samples, in the order they were used."""
    seen: list[list[float]] = []
    handle = local._module.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0][:, 0].tolist()))
    local.train(Sent(snapshot(), local_steps), samples, 0, 0)
    handle.remove()
    return seen


def test_an_epoch_uses_every_sample_once_in_a_new_order(samples):
    seen = batches(trainer(epochs=2), samples)
    assert [len(batch) for batch in seen] == [8, 8, 7, 8, 8, 7]
    first, second = ([x for batch in epoch for x in batch] for epoch in (seen[:3], seen[3:]))
    assert sorted(first) == sorted(second) == sorted(samples.x[:, 0].tolist())
    assert first != second


@pytest.mark.parametrize(("steps", "local_steps", "expected"), [(5, None, 5), (5, 2, 2), (None, 4, 4)])
def test_the_number_of_steps_is_the_configs_or_the_tasks(samples, steps, local_steps, expected):
    work = {"steps": steps} if steps else {"epochs": 1}
    assert len(batches(trainer(**work), samples, local_steps)) == expected


def test_the_snapshot_sent_is_not_changed(samples):
    params = snapshot()
    before = {key: value.clone() for key, value in params.items()}
    trainer(epochs=1).train(Sent(params), samples, 0, 0)
    assert equal(params, before)


def test_evaluation_counts_correct_labels_and_averages_the_loss(samples):
    module = build("logistic", (6,), 2, [], seed=0)
    weight = torch.zeros(2, 6)
    weight[1, 0] = 100.0  # class 1 exactly where feature 0 is positive
    module.load_state_dict({"1.weight": weight, "1.bias": torch.zeros(2)})
    flipped = samples.y.clone()
    flipped[:5] = 1 - flipped[:5]
    assert rated(module, samples)[0] == 1.0
    accuracy, loss = rated(module, Samples(samples.x, flipped))
    assert accuracy == pytest.approx(18 / 23)
    expected = nn.functional.cross_entropy(samples.x @ weight.T, flipped)
    assert loss == pytest.approx(float(expected), rel=1e-5)


def test_evaluation_uses_running_statistics_and_leaves_them_alone():
    module = build("cnn", (1, 8, 8), 10, [4], seed=0)
    params = {key: value.clone() for key, value in module.state_dict().items()}
    test = Samples(torch.randn(6, 1, 8, 8) + 3, torch.zeros(6, dtype=torch.int64))
    rated(module, test)
    assert equal(module.state_dict(), params)


@pytest.mark.parametrize("schedule", ["constant", "cosine", "step"])
def test_a_local_rate_follows_its_schedule(tiny, schedule):
    more = {} if schedule == "constant" else {"versions": 10, "lr_end": 0.1, "lr_factor": 0.5}
    work = build_work(tiny({"client": {"lr": 0.2, "lr_decay": 0.9, "schedule": schedule, **more}}))
    for version in range(0, 35, 3):
        scale = {
            "constant": 1.0,
            "cosine": 0.1 + 0.9 * (1 + math.cos(math.pi * min(version / 10, 1))) / 2,
            "step": 0.5 ** (version // 10),
        }[schedule]
        for number in range(3):
            assert work.lr_of(version, number) == pytest.approx(0.2 * 0.9**number * scale, rel=1e-12)


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
@pytest.mark.parametrize("clip_norm", [None, 0.3])
def test_clipping_and_adam_are_torchs(tiny, optimizer, clip_norm):
    """A run's first update, beside the plain loop that a user would write."""
    client = {"lr": 0.1, "optimizer": optimizer, "steps": 5, "weight_decay": 0.01}
    config = tiny({"client": client | ({"clip_norm": clip_norm} if clip_norm else {}), "run.fused": False})
    with closing(Simulation(config)) as simulation:
        job = simulation.schedule.next()
        module, samples = copy.deepcopy(simulation.module), simulation.data.clients[job.client]
        update = simulation.trainer.train(job.task, samples, job.client, job.number)
        module.load_state_dict(job.task.params)
        kind = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[optimizer]
        steps, turn = (
            kind(module.parameters(), lr=0.1, weight_decay=0.01),
            Turn(job.task, job.client, job.number, build_work(config), config.seed),
        )
        for x, y in turn.batches(samples):
            steps.zero_grad()
            torch.nn.functional.cross_entropy(module(x), y).backward()
            if clip_norm:
                torch.nn.utils.clip_grad_norm_(module.parameters(), clip_norm)
            steps.step()
        for name, parameter in module.named_parameters():
            torch.testing.assert_close(update[name], parameter.detach() - job.task.views[name])


def test_settings_of_another_optimizer_or_schedule_are_refused(tiny):
    for changes, words in (
        ({"momentum": 0.9, "optimizer": "adam"}, "momentum is of the optimizer"),
        ({"schedule": "cosine"}, "need the key versions"),
        ({"versions": 3}, '"constant" does not take it'),
    ):
        with pytest.raises(ConfigError, match=words):
            tiny({f"client.{key}": value for key, value in changes.items()})
