"""``fastagg demo``: one federation with stragglers, trained synchronously and asynchronously.

The FADAS paper's large worst-case setting (50 clients, Dir(0.3), two local epochs of batch 50, Table 1's delays) on
scikit-learn's digits with an MLP of 64 hidden units. FedAvg waits in every round for the slowest of 25 clients.
FedBuff, FADAS and FedAsync keep 25 clients busy and take every update as it arrives. All stop after the same number of
uploads. So the clients do the same work, and only the time differs. Every method runs with three seeds.

The learning rates were tuned as in the paper: each method has its own, chosen from a grid by the mean of the last five
evaluations. Here this mean is also over seeds 10, 11 and 12. So seeds below 10 did not influence the choice.

    FedAvg    eta_l 0.1, 0.3, 1, 3; eta 1                                        chosen 1
    FedBuff   eta_l 0.01, 0.03, 0.1, 0.3, 1; eta 1, as the paper has it          chosen 0.3
    FADAS     eta_l 0.01, 0.03, 0.1, 0.3; eta 0.001, 0.003, 0.01, 0.03           chosen 0.01 and 0.01
    FedAsync  eta_l 0.03, 0.1, 0.3, 1, 3; alpha 0.6 constant, alpha 0.6 and      chosen 1 and 0.9
              0.9 polynomial with a = 0.5                                        polynomial

Digits are easy: with these rates all methods end between 95% and 99%. ``fastagg compare`` and ``--set`` change the
setting (data.alpha=0.1, client.steps=20, another model).
"""

from __future__ import annotations

from collections.abc import Sequence

from fastagg.sim.config import Config
from fastagg.sim.groups import Group, spread
from fastagg.sim.recipes import load

SYNCHRONOUS = "fedavg-digits-large"
RECIPES = (SYNCHRONOUS, "fedbuff-digits-large", "fadas-digits-large", "fedasync-digits-large")
TITLE = "Digits, 50 clients, Dir(0.3), large worst-case delays"
TUNED = {SYNCHRONOUS: {"client.lr": 1.0}}  # if the rate differs from the recipe's
TARGET = 0.95
SEEDS = 3
QUICK = 10  # with --quick training is this many times shorter


def configs(seed: int, quick: bool = False) -> list[Config]:
    """Return the runs of the demo: every method with ``SEEDS`` seeds from ``seed`` on."""
    found = []
    for name in RECIPES:
        for own in range(seed, seed + SEEDS):
            changes = {"seed": own, "run.target": TARGET, **TUNED.get(name, {})}
            uploads = load(name).run.uploads or QUICK
            found.append(load(name, changes | ({"run.uploads": uploads // QUICK} if quick else {})))
    return found


def story(groups: Sequence[Group]) -> list[str]:
    """Return what the runs showed, in sentences. They name a method that loses."""
    waits = next((group for group in groups if group.name == SYNCHRONOUS), None)
    others = [group for group in groups if group is not waits]
    lines = []
    times = {group.method: _to_target(group, "time") for group in groups}
    reached = {method: value for method, value in times.items() if value is not None}
    if waits is not None and others:
        best = min((m for m in reached if m != waits.method), key=lambda m: reached[m], default=None)
        if best is not None and times[waits.method] is not None:
            ratio = (times[waits.method] or 0.0) / reached[best]
            lines.append(
                f"Time: {best} reaches {TARGET:.0%} {ratio:.0f} times sooner than {waits.method}, which waits for the "
                "slowest client of every round."
            )
        elif best is not None:
            lines.append(f"Time: {best} reaches {TARGET:.0%}; {waits.method} does not within these uploads.")
    missed = [method for method, value in times.items() if value is None]
    if missed:
        lines.append(f"Missed: {', '.join(missed)} did not reach {TARGET:.0%} with every seed.")
    uploads = {group.method: _to_target(group, "uploads") for group in groups}
    if known := {method: value for method, value in uploads.items() if value is not None}:
        order = sorted(known, key=lambda method: known[method])
        counts = ", ".join(f"{method} {known[method]:,.0f}" for method in order)
        lines.append(f"Uploads until {TARGET:.0%}, which are the clients' work: {counts}. Most: {order[-1]}.")
    final = sorted(groups, key=lambda group: group.over("last5_accuracy_mean").mean or 0.0)
    last, first = final[0].over("last5_accuracy_mean"), final[-1].over("last5_accuracy_mean")
    gap = 100 * ((first.mean or 0.0) - (last.mean or 0.0))
    noise = 100 * max(first.deviation or 0.0, last.deviation or 0.0)
    clear = "more than" if gap > noise else "not more than"
    lines.append(
        f"Accuracy at the end: {final[-1].method} is first, {final[0].method} last, {gap:.1f} points below; that is "
        f"{clear} the seeds differ among themselves ({noise:.1f})."
    )
    costs = []
    for group in groups:
        wall, received = group.wall_seconds(), group.over("uploads").mean or 1.0
        costs.append(f"{group.method} {1e3 * wall['server'] / received:.2f} ms ({wall['server'] / wall['total']:.0%})")
    lines.append(f"Server time (with the schedule) per update, and its share of the run: {', '.join(costs)}.")
    return lines


def _to_target(group: Group, field: str) -> float | None:
    values = [None if row is None else float(getattr(row, field)) for row in group.reached(TARGET)]
    found = spread(values)
    return None if found.missing else found.mean
