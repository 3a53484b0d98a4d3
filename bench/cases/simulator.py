"""Whole runs and whole comparisons, compared with a plain torch loop that does the same: per client update, one thread.

The plain loop has the same clients, delays, arrivals and batches. It trains each client by itself with torch.optim.SGD
and autograd, and adds deltas as FedBuff does. It is what one would write without a package. Both times include setup,
dispatch, training, server and the tests of the model.

A comparison is what ``fastagg compare`` does in one process: runs of several seeds and server rates, and also their
folders, tables and pictures. The plain loop does the runs one after the other and writes nothing.
"""

from __future__ import annotations

import heapq
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from problem import Built, Candidate, Case, Problem
from torch import nn

UPLOADS = 1000  # a run of the small tables
SEEDS = 6
RATES = (1.0, 0.5)  # the server's
# the loss of ten equal guesses; both losses must be lower, because a loop that does not train is not a peer
UNTRAINED = 2.303
MODELS = (
    ("MLP", {"name": "mlp", "widths": [64]}, 4_810),
    ("logistic regression", {"name": "logistic"}, 650),
    ("CNN, 16 and 32 channels", {"name": "cnn", "widths": [16, 32]}, 9_978),
    ("CNN with GroupNorm", {"name": "cnn", "widths": [8, 16, 32], "norm": "group"}, 7_234),
    ("LayerNorm and GELU", {"name": "cases.simulator:normed"}, 9_226),
    ("CNN at 32x32", {"name": "cnn", "widths": [16, 32]}, 86_778),
    ("CNN with GroupNorm at 32x32", {"name": "cnn", "widths": [8, 16, 32], "norm": "group"}, 26_434),
)
LARGE = [id(model) for label, model, _ in MODELS if label.endswith("32x32")]  # of images with four times the side


def normed(shape: tuple[int, ...], classes: int) -> nn.Module:
    """A network that torch trains: native training knows neither LayerNorm nor GELU."""

    def hidden() -> list[nn.Module]:
        return [nn.Linear(64, 64), nn.LayerNorm(64), nn.GELU()]

    return nn.Sequential(nn.Flatten(), *hidden(), *hidden(), nn.Linear(64, classes))


def even(clients: int, seed: int) -> Any:
    """The digits, as many to each client: so both sides take as many steps, whoever answers when."""
    from fastagg.sim.data import digits

    data = digits.load(clients, 0.3, seed)
    whole = replace(data.clients[0], **{k: torch.cat([getattr(s, k) for s in data.clients]) for k in ("x", "y")})
    size = len(whole) // clients
    return replace(data, clients=[whole.part(torch.arange(n * size, (n + 1) * size)) for n in range(clients)])


def large(clients: int, seed: int) -> Any:
    """The digits at 32x32: every pixel 16 times."""
    from fastagg.sim.data.federated import Samples

    data = even(clients, seed)

    def enlarged(samples: Samples) -> Samples:
        return replace(samples, x=samples.x.repeat_interleave(4, 2).repeat_interleave(4, 3))

    return replace(data, clients=[enlarged(samples) for samples in data.clients], test=enlarged(data.test))


def recipe(
    model: dict[str, object], uploads: int = UPLOADS, seed: int = 0, rate: float = 1.0, fused: bool = True
) -> Any:
    """Return the recipe: 25 of 50 clients in flight, two epochs of digits in batches of up to 50, a buffer of 5."""
    from fastagg.sim.recipes import config

    values = {
        "name": "whole",
        "seed": seed,
        "algorithm": {"name": "FedBuff", "buffer_size": 5, "lr": rate},
        "data": {"name": f"cases.simulator:{'large' if id(model) in LARGE else 'even'}", "clients": 50},
        "model": model,
        "client": {"lr": 0.02, "epochs": 2},
        "delay": {"name": "three-class"},
        "participation": {"rule": "concurrency", "concurrency": 25},
        "run": {"uploads": uploads, "evaluate_every": 10, "fused": fused},
    }
    return config.from_dict(values, "bench")


def plain(given: Any) -> float:
    """Do the same run with a plain loop. Return the final test loss."""
    from fastagg.sim.runs import build

    data = build.build_data(given)
    module = build.build_model(given, data)
    loss, size, rate = nn.CrossEntropyLoss(), given.client.batch_size, given.algorithm.keywords["lr"]
    generator = torch.Generator().manual_seed(given.seed)
    ranges = ((1.0, 2.0), (3.0, 5.0), (50.0, 80.0))
    kinds = torch.randint(3, (len(data.clients),), generator=generator).tolist()
    learned = {name for name, _ in module.named_parameters()}
    state = {name: value.clone() for name, value in module.state_dict().items()}
    flying: list[tuple[float, int, int, dict[str, torch.Tensor]]] = []
    now, sent = 0.0, 0

    def dispatch(client: int) -> None:
        nonlocal sent
        low, high = ranges[kinds[client]]
        due = now + low + (high - low) * float(torch.rand(1, generator=generator))
        heapq.heappush(flying, (due, sent, client, state))
        sent += 1

    order = torch.randperm(len(data.clients), generator=generator).tolist()
    idle = order[25:]
    for client in order[:25]:
        dispatch(client)
    buffer: list[dict[str, torch.Tensor]] = []
    tested, version = 0.0, 0
    for _ in range(given.run.uploads or 0):
        now, _, client, start = heapq.heappop(flying)
        samples = data.clients[client]
        module.load_state_dict(start)
        module.train()
        optimizer = torch.optim.SGD(module.parameters(), lr=given.client.lr)
        for _ in range(given.client.epochs or 1):
            for batch in torch.randperm(len(samples), generator=generator).split(size):
                optimizer.zero_grad()
                loss(module(samples.x[batch]), samples.y[batch]).backward()
                optimizer.step()
        after = module.state_dict()
        buffer.append({name: v - start[name] if name in learned else v.clone() for name, v in after.items()})
        if len(buffer) == 5:
            state = {
                name: value + rate * (sum(one[name] for one in buffer) / 5) if name in learned
                # The running statistics' mean, because changes of stale ones could add up to a negative variance.
                else sum(one[name] for one in buffer) / 5 if value.is_floating_point()
                else buffer[-1][name]
                for name, value in state.items()
            }  # fmt: skip
            buffer, version = [], version + 1
            if version % given.run.evaluate_every == 0:
                module.load_state_dict(state)
                module.eval()
                with torch.inference_mode():
                    tested = float(loss(module(data.test.x), data.test.y))
        idle.append(client)
        dispatch(idle.pop(int(torch.randint(len(idle), (1,), generator=generator))))
    return tested


def _simulated(given: Any) -> float:
    from fastagg.sim.runs.run import run

    return float(run(given).rows[-1].loss)


def _compared(recipes: list[Any]) -> float:
    from fastagg.sim.comparison.compare import compare
    from fastagg.sim.recipes.tables import Cell
    from fastagg.sim.show.progress import Watcher

    rates = [one.algorithm.keywords["lr"] for one in recipes]
    cells = [Cell(one, folder=f"whole,algorithm.lr={rate}") for one, rate in zip(recipes, rates, strict=True)]
    with tempfile.TemporaryDirectory() as folder:
        return max(float(result.rows[-1].loss) for result in compare(cells, Path(folder), Watcher()).results)


def _built(problem: Problem, run: Callable[[], float]) -> Built:
    def whole() -> None:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            tested = run()
        finally:
            torch.set_num_threads(threads)
        if not tested < UNTRAINED:
            raise AssertionError(f"after {UPLOADS} client updates the loss is {tested:.3f}")

    return Built(whole, None)


def _candidates(ours: Callable[[], float], loop: Callable[[], float]) -> list[Candidate]:
    return [
        Candidate("fastagg", partial(_built, run=ours), 0),
        Candidate("plain torch loop", partial(_built, run=loop), 0),
    ]


def _run(model: dict[str, object]) -> list[Candidate]:
    given = recipe(model)
    return _candidates(lambda: _simulated(given), lambda: plain(given))


def _comparison(model: dict[str, object]) -> list[Candidate]:
    recipes = [recipe(model, seed=seed, rate=rate) for rate in RATES for seed in range(SEEDS)]
    return _candidates(lambda: _compared(recipes), lambda: max(map(plain, recipes)))


CASES = [
    Case(f"simulator, {label}", 0, partial(_run, model), "path", (parameters,), period=UPLOADS, devices=("cpu",))
    for label, model, parameters in MODELS
] + [
    Case(
        f"simulator, Comparison, {label}", 0, partial(_comparison, model), "path", (parameters,),
        period=UPLOADS * SEEDS * len(RATES), devices=("cpu",),
    )
    for label, model, parameters in MODELS[::2][:2]  # twelve runs of the next would take minutes a round
]  # fmt: skip
