"""Random crops and flips of training batches, and how they are keyed."""

import numpy as np
import torch
from cifar import DEVIATION, MEAN, PADDING, crop_and_flip

from fastagg.sim.clients.client import LocalTrainer, LocalWork
from fastagg.sim.data.federated import Samples, batches
from fastagg.sim.seeds import generator

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


def test_batches_are_augmented_by_seed_client_and_dispatch_alone():
    samples = Samples(torch.randn(20, 3, 32, 32), torch.arange(20), crop_and_flip)
    indices = [torch.arange(10), torch.arange(10, 20)]

    def images(*key):
        return torch.cat([x for x, _ in batches(samples, indices, *key)])

    one = images(0, 3, 5)
    assert torch.equal(one, images(0, 3, 5))
    for other in ((1, 3, 5), (0, 4, 5), (0, 3, 6)):
        assert not torch.equal(one, images(*other))
    assert not torch.equal(one[:10] - samples.x[:10], torch.zeros(10, 3, 32, 32))
    plain = Samples(samples.x, samples.y)
    assert torch.equal(torch.cat([x for x, _ in batches(plain, indices, 0, 3, 5)]), samples.x)
    assert torch.equal(torch.cat([y for _, y in batches(samples, indices, 0, 3, 5)]), samples.y)


class Sent:
    """A model that was sent: what LocalTrainer needs of fastagg's Dispatch."""

    version, local_steps, control = 0, None, None

    def __init__(self, module):
        self.views = {name: p.clone() for name, p in module.state_dict().items()}

    def delta(self, trained):
        return {name: p - self.views[name] for name, p in trained.state_dict().items()}


def test_training_sees_the_augmented_batch():
    # A linear model without bias, one step on everything: the delta is -lr times the mean gradient there.
    module = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 32 * 32, 2, bias=False))
    torch.nn.init.zeros_(module[1].weight)
    samples = Samples(torch.randn(6, 3, 32, 32), torch.tensor([0, 1, 0, 1, 1, 1]), crop_and_flip)
    sent = Sent(module)
    delta = LocalTrainer(module, LocalWork(lr=0.5, batch_size=6, steps=1), seed=2).train(
        sent, samples, client=1, number=4
    )
    order = torch.from_numpy(generator(2, "batches", 1, 4).permutation(6))
    x = crop_and_flip(samples.x[order], generator(2, "augment", 1, 4)).flatten(1)
    error = torch.full((6, 2), 0.5) - torch.nn.functional.one_hot(samples.y[order], 2)
    assert torch.allclose(delta["1.weight"], -0.5 * error.T @ x / 6, atol=1e-5)


def test_the_learning_rate_decays_with_the_clients_dispatches():
    module = torch.nn.Linear(3, 2)
    samples = Samples(torch.randn(8, 3), torch.tensor([0, 1] * 4))
    sent = Sent(module)
    trainer = LocalTrainer(module, LocalWork(lr=0.1, batch_size=8, steps=1, lr_decay=0.5), seed=0)
    first, third, again = (trainer.train(sent, samples, 0, n)["weight"] for n in (0, 2, 0))
    assert torch.allclose(first, 4 * third, rtol=1e-3, atol=1e-7)  # the full batch is the same batch every time
    assert torch.equal(first, again)


def test_adamw_first_step_has_the_size_of_the_learning_rate():
    module = torch.nn.Linear(3, 2)
    samples = Samples(torch.randn(8, 3), torch.tensor([0, 1] * 4))
    sent = Sent(module)
    trainer = LocalTrainer(module, LocalWork(lr=0.01, batch_size=8, steps=1, optimizer="adamw"), seed=0)
    deltas = [trainer.train(sent, samples, 0, 0)["weight"] for _ in range(2)]
    assert np.allclose(deltas[0].abs(), 0.01, rtol=1e-3)
    assert torch.equal(deltas[0], deltas[1])  # no moments carried over
