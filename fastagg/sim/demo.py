"""``fastagg demo``: FADAS against FedBuff and FedAsync when a few clients are very slow.

The FADAS paper's large worst-case setting (50 clients, M_c 25, M 5, Dir(0.3), two local epochs of batch 50,
Table 1's delays, 500 versions) on scikit-learn's digits with an MLP of 64 hidden units. All three methods see the
same clients, delays and arrivals, and stop after the same number of uploads, hence at the same virtual time.

What was tuned, and how: as in the paper each method has its own learning rates from a grid, chosen by the mean of the
last five evaluations, here averaged over seeds 10, 11 and 12, so that no seed below 10 had a part in the choice.

    FADAS     eta_l 0.01, 0.03, 0.1, 0.3; eta 0.001, 0.003, 0.01, 0.03           chosen 0.01 and 0.01
    FedBuff   eta_l 0.01, 0.03, 0.1, 0.3, 1; eta 1, as the paper has it          chosen 0.3
    FedAsync  eta_l 0.03, 0.1, 0.3, 1, 3; alpha 0.6 constant, alpha 0.6 and      chosen 1 and 0.9
              0.9 polynomial with a = 0.5                                        polynomial

Digits are easy: tuned like this all three end between 95% and 99%, and which of them leads changes with the seed.
``fastagg compare`` and ``--set`` change the setting (data.alpha=0.1, client.steps=20, another model).
"""

from __future__ import annotations

from fastagg.sim.config import Config
from fastagg.sim.recipes import load

RECIPES = ("fadas-digits-large", "fedbuff-digits-large", "fedasync-digits-large")
TITLE = "Digits, 50 clients, Dir(0.3), large worst-case delays"
QUICK = 10  # --quick trains this many times less


def configs(seed: int, quick: bool = False) -> list[Config]:
    """Return the three runs of the demo."""
    full = [load(name, {"seed": seed}) for name in RECIPES]
    if not quick:
        return full
    return [load(config.name, {"seed": seed, "run.uploads": (config.run.uploads or QUICK) // QUICK}) for config in full]
