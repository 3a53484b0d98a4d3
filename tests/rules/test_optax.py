"""Optimizers of optax, and those that docs/algorithms.md and docs/integrations/coming-from.md name for them."""

from typing import Any

import numpy as np
import pytest
import torch

import fastagg

jax = pytest.importorskip("jax")
optax = pytest.importorskip("optax")

D, STEPS, BETAS = 2000, 60, (0.9, 0.99)
ADAM = {"betas": BETAS, "bias_correction": True}
PAIRS = {
    "sgd": (lambda: optax.sgd(0.1), fastagg.SGD(0.1)),
    "momentum": (lambda: optax.sgd(0.1, momentum=0.9), fastagg.Momentum(0.1, 0.9)),
    "adam": (lambda: optax.adam(0.01, *BETAS), fastagg.Adam(0.01, **ADAM)),
    "eps_root": (lambda: optax.adam(0.01, *BETAS, eps_root=1e-3), fastagg.Adam(0.01, **ADAM, eps_root=1e-3)),
    "adamw": (
        lambda: optax.adamw(0.01, *BETAS, weight_decay=0.1),
        fastagg.Adam(0.01, **ADAM, weight_decay=0.1, decoupled_weight_decay=True),
    ),
    "yogi": (
        lambda: optax.chain(optax.scale_by_yogi(*BETAS, 1e-3, initial_accumulator_value=0.0), optax.scale(-0.01)),
        fastagg.Yogi(0.01, **ADAM, eps=1e-3),
    ),
    "adagrad": (lambda: optax.adagrad(0.01), fastagg.Adagrad(0.01, eps=0.0, eps_root=1e-7, initial=0.1)),
    "amsgrad": (lambda: optax.amsgrad(0.01, *BETAS), fastagg.AMSGrad(0.01, **ADAM)),
}


@pytest.mark.parametrize("name", PAIRS)
def test_the_same_models(name: str) -> None:
    draw = np.random.default_rng(0)
    start = draw.standard_normal(D).astype(np.float32)
    make, mine = PAIRS[name]
    theirs: Any = make()
    x, state = jax.numpy.asarray(start), theirs.init(start)
    server = fastagg.Server(torch.from_numpy(start.copy()), fastagg.Single(kind="gradient"), mine)
    for _ in range(STEPS):
        gradient = (draw.standard_normal(D) * 10 ** draw.uniform(-3, 1)).astype(np.float32)
        change, state = theirs.update(gradient, state, x)
        x = optax.apply_updates(x, change)
        server.dispatch(0)
        server.receive(0, gradient)
    apart = np.abs(np.asarray(x) - server.flat.numpy()).max()
    assert apart > 0.01 if name == "amsgrad" else apart < 2e-5  # its maximum is of the corrected v: another rule
