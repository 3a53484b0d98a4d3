"""What a client computes with torch: its steps against formulas, its batches, its draws, and how a model is tested."""

import copy
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from cifar import DEVIATION, MEAN, PADDING, crop_and_flip
from torch import nn

from fastagg.sim.clients.client import LocalTrainer, Turn, rated
from fastagg.sim.data.federated import Samples
from fastagg.sim.models import build
from fastagg.sim.recipes.sections import Client
from fastagg.sim.runs.simulation import Simulation
from fastagg.sim.seeds import generator


@dataclass
class Sent:
    """What a dispatch is to a client."""

    views: dict
    local_steps: int | None = None
    version: int = 0
    control: torch.Tensor | None = None
    extra: tuple = ()

    def delta(self, trained: nn.Module | dict) -> dict:
        arrays = trained.state_dict() if isinstance(trained, nn.Module) else trained
        return {name: value.detach() - self.views[name] for name, value in arrays.items()}


@pytest.fixture
def samples() -> Samples:
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(23, 6, generator=rng)
    return Samples(x, (x[:, 0] > 0).long())


def snapshot(module: nn.Module | None = None) -> dict:
    """Return the weights of a module, or of the small one that all share."""
    module = build("mlp", (6,), 2, [5], 0) if module is None else module
    return {name: value.clone() for name, value in module.state_dict().items()}


def trainer(**work) -> LocalTrainer:
    work = {"lr": 0.1, "batch_size": 8, **work}
    return LocalTrainer(build("mlp", (6,), 2, [5], seed=9), Client(**work), seed=0)


def equal(a: dict, b: dict) -> bool:
    return all(torch.equal(a[key], b[key]) for key in a)


def noisy(x: torch.Tensor, rng: np.random.Generator) -> torch.Tensor:
    return x + torch.from_numpy(rng.standard_normal(x.shape, dtype=np.float32))


FRESH: dict[str, tuple[nn.Module, dict, object]] = {
    "momentum": (build("mlp", (6,), 2, [5], 0), {"momentum": 0.9, "epochs": 2}, None),
    "adamw": (build("mlp", (6,), 2, [5], 0), {"optimizer": "adamw", "steps": 4}, None),
    "a rate that decays": (build("mlp", (6,), 2, [5], 0), {"lr_decay": 0.5, "steps": 1}, None),
    "BatchNorm": (nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 2)), {"epochs": 1}, None),
    "a network that draws": (nn.Sequential(nn.Linear(6, 5), nn.Dropout(0.5), nn.Linear(5, 2)), {"steps": 3}, None),
    "augmented batches": (build("mlp", (6,), 2, [5], 0), {"epochs": 1}, noisy),
}


@pytest.mark.parametrize("case", FRESH)
def test_each_training_is_that_of_a_fresh_trainer_and_depends_on_client_and_number_alone(case, samples):
    """Whatever was trained before it, in whatever order, and whatever torch has drawn. Nothing else is changed."""
    module, work, augment = FRESH[case]
    samples = replace(samples, augment=augment)
    params = snapshot(module)

    def local() -> LocalTrainer:
        return LocalTrainer(module, Client(**{"lr": 0.1, "batch_size": 8, **work}), seed=0)

    sent = snapshot(module)
    used, jobs, found = local(), [(client, number) for client in (0, 3) for number in (0, 1)], []
    for job in (*jobs, *jobs[::-1]):
        for kind in ("train", "gradient"):
            torch.rand(7)
            drawn = torch.get_rng_state()
            update = getattr(used, kind)(Sent(params), samples, *job)
            assert torch.equal(torch.get_rng_state(), drawn)
            assert equal(update, getattr(local(), kind)(Sent(params), samples, *job))
            found.append(update)
    assert equal(params, sent)
    for one, other in ((0, 2), (0, 4), (0, 6)):  # another number, another client
        assert not equal(found[one], found[other])
        assert work.get("lr_decay") or not equal(found[one + 1], found[other + 1])
    other = LocalTrainer(module, Client(**{"lr": 0.1, "batch_size": 8, **work}), seed=1)
    assert not equal(other.train(Sent(params), samples, *jobs[0]), found[0])


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


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
@pytest.mark.parametrize("clip_norm", [None, 0.3])
def test_clipping_and_adam_are_torchs(tiny, optimizer, clip_norm):
    """A run's first update, beside the plain loop that a user would write."""
    client = {"lr": 0.1, "optimizer": optimizer, "steps": 5, "weight_decay": 0.01}
    config = tiny({"client": client | ({"clip_norm": clip_norm} if clip_norm else {}), "run.fused": False})
    simulation = Simulation(config)
    job = simulation.schedule.next()
    module, samples = copy.deepcopy(simulation.module), simulation.data.clients[job.client]
    update = simulation.trainer.train(job.task, samples, job.client, job.number)
    module.load_state_dict(job.task.params)
    kind = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[optimizer]
    steps, turn = (
        kind(module.parameters(), lr=0.1, weight_decay=0.01),
        Turn(job.task, job.client, job.number, config.client, config.seed),
    )
    for x, y in turn.batches(samples):
        steps.zero_grad()
        torch.nn.functional.cross_entropy(module(x), y).backward()
        if clip_norm:
            torch.nn.utils.clip_grad_norm_(module.parameters(), clip_norm)
        steps.step()
    for name, parameter in module.named_parameters():
        torch.testing.assert_close(update[name], parameter.detach() - job.task.views[name])


# Random crops and flips


BLACK = torch.tensor([-m / d for m, d in zip(MEAN, DEVIATION, strict=True)])


def test_every_crop_is_a_window_of_the_padded_image_or_of_its_mirror_image():
    x = torch.randn(40, 3, 32, 32)
    out = crop_and_flip(x, generator(0, "augment", 0, 0))
    padded = BLACK.view(1, 3, 1, 1).repeat(40, 1, 40, 40)
    padded[:, :, PADDING:-PADDING, PADDING:-PADDING] = x
    seen = set()
    for image, wide in zip(out, padded, strict=True):
        fits = [
            (i, j, flipped)
            for i in range(9)
            for j in range(9)
            for flipped in (False, True)
            if torch.allclose(image.flip(-1) if flipped else image, wide[:, i : i + 32, j : j + 32], atol=1e-6)
        ]
        assert len(fits) == 1
        seen.add(fits[0])
    assert len(seen) > 30  # 162 equally likely ones
    assert {flipped for *_, flipped in seen} == {False, True}


def test_training_sees_the_augmented_batch():
    # A linear model without bias, one step on everything: the delta is -lr times the mean gradient there.
    module = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 32 * 32, 2, bias=False))
    torch.nn.init.zeros_(module[1].weight)
    samples = Samples(torch.randn(6, 3, 32, 32), torch.tensor([0, 1, 0, 1, 1, 1]), crop_and_flip)
    sent = Sent(snapshot(module))
    delta = LocalTrainer(module, Client(lr=0.5, batch_size=6, steps=1), seed=2).train(sent, samples, client=1, number=4)
    order = torch.from_numpy(generator(2, "batches", 1, 4).permutation(6))
    x = crop_and_flip(samples.x[order], generator(2, "augment", 1, 4)).flatten(1)
    error = torch.full((6, 2), 0.5) - torch.nn.functional.one_hot(samples.y[order], 2)
    assert torch.allclose(delta["1.weight"], -0.5 * error.T @ x / 6, atol=1e-5)
