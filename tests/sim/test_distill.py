"""FedEcho in the simulator: where the unlabelled data comes from, and that a killed run resumes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support import inside

from fastagg.errors import DataError
from fastagg.sim.one import build
from fastagg.sim.one.run import run
from fastagg.sim.one.simulation import Simulation
from fastagg.sim.recipes.config import Config, from_dict


def config(**changes: Any) -> Config:
    values: dict[str, Any] = {
        "name": "echo",
        "algorithm": {"name": "FedEcho", "buffer_size": 3},
        "data": {"name": "digits", "clients": 8, "test_share": 0.4},
        "unlabelled": {"share": 0.5},
        "distill": {"lr": 1e-3, "steps": 2},
        "model": {"name": "mlp", "widths": [16]},
        "client": {"lr": 0.3},
        "delay": {"name": "size-tied"},
        "participation": {"rule": "concurrency", "concurrency": 4},
        "run": {"uploads": 30, "evaluate_every": 2},
    }
    return from_dict({**values, **changes}, "test")


def test_a_run_distils_at_every_version_and_says_what_it_took() -> None:
    summary = run(config()).summary
    assert summary["distillation"]["flushes"] == summary["versions"] == 10
    assert 0 < summary["distillation"]["distillation_seconds"] < summary["wall_seconds"]["server"]
    assert "distillation" not in run(config(algorithm={"name": "FedBuff"})).summary


def test_every_method_is_tested_on_the_same_rest() -> None:
    whole = build.build_data(config().data, 0)
    echo, buff = (Simulation(config(algorithm={"name": name, "buffer_size": 3})) for name in ("FedEcho", "FedBuff"))
    assert torch.equal(echo.data.test.x, buff.data.test.x)
    assert len(echo.data.test) == len(whole.test) - round(0.5 * len(whole.test))
    held = build.split_unlabelled(config(), whole)[1]
    assert held is not None
    rows = {tuple(x.reshape(-1).tolist()) for x in echo.data.test.x}
    together = rows | {tuple(x.reshape(-1).tolist()) for x in held}
    assert together == {tuple(x.reshape(-1).tolist()) for x in whole.test.x}
    fewer = build.split_unlabelled(config(unlabelled={"share": 0.5, "samples": 10}), whole)
    assert fewer[1] is not None and len(fewer[1]) == 10 and len(fewer[0].test) == len(echo.data.test)


def test_another_tasks_images(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    images = {f"x_{part}": rng.integers(0, 256, (40, 28, 28), dtype=np.uint8) for part in ("train", "test")}
    labels = {f"y_{part}": np.arange(40) % 10 for part in ("train", "test")}
    np.savez(tmp_path / "mnist.npz", **images, **labels)
    for unlabelled in (
        {"data": "mnist:load", "dir": str(tmp_path)},
        {"path": str(tmp_path / "mnist.npz"), "samples": 25},
    ):
        simulation = Simulation(config(unlabelled=unlabelled))
        inputs = inside.direction(simulation.server).student.inputs
        assert inputs.shape == (unlabelled.get("samples", 40), 1, 8, 8)
        assert abs(float(inputs.mean())) < 1e-5 and float(inputs.std()) == pytest.approx(1, abs=1e-4)
        simulation.step()


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="dir"):
        run(config(unlabelled={"data": "mnist:load"}))
    with pytest.raises(DataError, match="no such file"):
        run(config(unlabelled={"path": str(tmp_path / "nothing.npz")}))
