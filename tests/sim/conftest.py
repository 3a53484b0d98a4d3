"""Shared pieces of the simulator's tests: a recipe that runs in a fraction of a second."""

from collections.abc import Callable
from typing import Any

import pytest

from fastagg.sim.comparison.groups import Group
from fastagg.sim.recipes.config import Config, from_toml
from fastagg.sim.recipes.tables import ACCURACY
from fastagg.sim.runs.metrics import ACTIVITIES, EvaluationRow, summarise
from fastagg.sim.runs.result import Result
from fastagg.sim.show.findings import RUN_NUMBERS

TINY = """
name = "tiny"
label = "Tiny"

[algorithm]
name = "FedBuff"
lr = 1.0
buffer_size = 3

[data]
name = "digits"
clients = 12
alpha = 0.5

[model]
name = "mlp"
widths = [8]

[client]
lr = 0.1
batch_size = 32

[delay]
name = "three-class"

[participation]
rule = "concurrency"
concurrency = 6

[run]
uploads = 30
evaluate_every = 4
"""


@pytest.fixture
def tiny_toml() -> str:
    return TINY


@pytest.fixture
def tiny():
    """Return a function from changed keys ({"client.lr": 0.3}) to the tiny recipe's Config."""

    def build(changes: dict[str, Any] | None = None) -> Config:
        return from_toml(TINY, "tiny", changes)

    return build


@pytest.fixture
def group(tiny):
    """``group("A", points, ...)``: a method with a run for each list of (time, accuracy), with the seeds from ``seed``
    on. What is a number is the accuracy at time 0, 10, 20 and so on. ``version`` of a point's place and time is what is
    tested there: 1, 3, 5 and so on."""

    def build(
        method: str, *runs: Any, choice: Any = (), measure: str = ACCURACY, seed: int = 0,
        delays: dict[int, int] | None = None, notes: Any = (), weighting: str = "uniform",
        version: Callable[[int, float], int] = lambda place, time: 2 * place + 1, **more: Any,
    ) -> Group:  # fmt: skip
        def result(points: Any, seed: int, unit: str = "10 s", target: float = 0.9, stopped: str = "finished",
                   rule: str | None = None) -> Result:  # fmt: skip
            points = [point if isinstance(point, tuple) else (10 * k, point) for k, point in enumerate(points)]
            rows = [
                EvaluationRow(version(k, time), float(time), 5 * k, a, 1.0, 0.0, 0)
                for k, (time, a) in enumerate(points)
            ]
            wall = dict.fromkeys((*ACTIVITIES, "other"), 1.0) | {"total": 5.0}
            summary = dict.fromkeys(RUN_NUMBERS, 0.0) | summarise(rows, target, stopped)
            summary |= {"stopped": stopped, "delay_max": 3, "delay_mean": 1.5, "wall_seconds": wall}
            summary |= {"weighting": weighting, "notes": list(notes)}
            config = tiny({"run.target": target, "seed": seed})
            if rule is not None:
                changed = config.participation.model_copy(update={"rule": rule})
                config = config.model_copy(update={"participation": changed})
            return Result(config, rows, summary, unit, delays or {0: 2, 3: 1})

        results = [result(points, number, **more) for number, points in enumerate(runs, seed)]
        return Group(method.lower(), method, choice, results, measure)

    return build
