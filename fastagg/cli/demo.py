"""The runs of ``fastagg demo``: a federation with slow clients, trained synchronously and asynchronously.

The setting is the FADAS paper's "large worst case": 50 clients, Dir(0.3), two local epochs of batch 50, and the delays
of Table 1. The data is scikit-learn's digits, the model an MLP of 64 hidden units. FedAvg waits in every round for the
slowest of 25 clients. FedBuff, FADAS and FedAsync keep 25 clients busy and take every update when it comes. All stop
after the same number of uploads, so clients do the same work, and only the time differs. Each runs with three seeds.

The learning rates were tuned as in the paper. Each method's rates (eta_l: clients, eta or alpha: server) were chosen
from a grid by the mean accuracy of the last five evaluations, here also over seeds 10, 11 and 12. By default the demo
uses other seeds.

    FedAvg    eta_l 0.1, 0.3, 1, 3; eta 1                                        chosen 1
    FedBuff   eta_l 0.01, 0.03, 0.1, 0.3, 1; eta 1, as the paper has it          chosen 0.3
    FADAS     eta_l 0.01, 0.03, 0.1, 0.3; eta 0.001, 0.003, 0.01, 0.03           chosen 0.01 and 0.01
    FedAsync  eta_l 0.03, 0.1, 0.3, 1, 3; alpha 0.6 constant, alpha 0.6 and      chosen 1 and 0.9
              0.9 polynomial with a = 0.5                                        polynomial

Digits are easy: with these rates all methods end between 95% and 99%. ``fastagg compare`` and ``--set`` change the
setting (data.alpha=0.1, client.steps=20, another model).
"""

from __future__ import annotations

from fastagg.sim.recipes import load
from fastagg.sim.recipes.config import Config

SYNCHRONOUS = "fedavg-digits-large"
RECIPES = (SYNCHRONOUS, "fedbuff-digits-large", "fadas-digits-large", "fedasync-digits-large")
TITLE = "Handwritten digits; 25 of 50 clients train at a time, and a few take 40 times as long as most"
TUNED = {SYNCHRONOUS: {"client.lr": 1.0}}  # recipe -> the chosen rates that differ from the recipe's
TARGET = 0.95
SEEDS = 3


def configs(seed: int) -> list[Config]:
    return [
        load(name, {"seed": own, "run.target": TARGET, **TUNED.get(name, {})})
        for name in RECIPES
        for own in range(seed, seed + SEEDS)
    ]
