"""The runs of a comparison: each ends as if it had been alone, whatever becomes of the others."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from fastagg.sim.many.cells import run_cells
from fastagg.sim.one.run import run
from fastagg.sim.one.simulation import Simulation
from fastagg.sim.recipes.tables import Cell

from .test_resume import Killed, same

METHODS: dict[str, dict[str, Any]] = {
    "FADAS": {"algorithm": {"name": "FADAS", "lr": 0.01, "buffer_size": 3, "delay_threshold": 2}},
    "FedAvg": {"algorithm": {"name": "FedAvg", "clients_per_round": 4}, "participation": {"rule": "round"}},
    "dropout": {"dropout.share": 0.4},
    "torch": {"run.fused": False},
}


class Silent:
    def started(self, cell: Cell) -> None:
        pass

    def advanced(self, cell: Cell, share: float) -> None:
        pass

    def ended(self, cell: Cell, outcome: Any) -> None:
        pass


def cells(tiny: Any, **changes: Any) -> list[Cell]:
    return [Cell(tiny({**change, **changes}), folder=name) for name, change in METHODS.items()]


def test_a_run_that_fails_is_named_and_the_others_end_as_alone(tiny: Any, tmp_path: Any, monkeypatch: Any) -> None:
    found = [Cell(tiny({"seed": seed}), folder="tiny") for seed in range(3)]
    for cell in found:
        run(cell.config, tmp_path / "alone" / cell.name)
    step = Simulation.step

    def failing(self: Simulation) -> bool:
        if self.config.seed == 1 and self.uploads == 11:
            raise ZeroDivisionError("by zero")
        return step(self)

    monkeypatch.setattr(Simulation, "step", failing)
    outcomes = run_cells(found, tmp_path / "shared", 1, Silent())
    assert outcomes["tiny/seed1"] == "ZeroDivisionError: by zero"
    assert not (tmp_path / "shared" / "tiny" / "seed1" / "summary.json").exists()
    for cell in (found[0], found[2]):
        same(tmp_path / "shared" / cell.name, tmp_path / "alone" / cell.name)


class Interrupting(Silent):
    """Interrupts like the terminal, or kills, when a cell has come so far."""

    def __init__(self, share: float, error: type[BaseException] | None = None) -> None:
        self.share, self.error, self.done = share, error, False

    def advanced(self, cell: Cell, share: float) -> None:
        if share >= self.share and not self.done:
            self.done = True
            if self.error is not None:
                raise self.error
            signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize("killed", [False, True])
def test_stopped_at_any_time_they_end_as_if_unbroken(tiny: Any, tmp_path: Any, killed: bool) -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        found = cells(tiny, **({"run.checkpoint_every": 0.0} if killed else {}))
        for share in (0.3, 0.5, 0.8):
            if killed:
                with pytest.raises(Killed):
                    run_cells(found, tmp_path / "cut", 1, Interrupting(share, Killed))
            else:
                outcomes = run_cells(found, tmp_path / "cut", 1, Interrupting(share))
                assert any(outcome.summary["interrupted"] for outcome in outcomes.values())  # type: ignore[union-attr]
        run_cells(found, tmp_path / "cut", 1, Silent())
    finally:
        signal.signal(signal.SIGINT, before)
    for cell in found:
        run(cell.config, tmp_path / "whole" / cell.name)
        same(tmp_path / "whole" / cell.name, tmp_path / "cut" / cell.name)


def test_a_process_that_dies_takes_only_its_own_cell(tiny: Any, tmp_path: Any) -> None:
    deadly = {"name": "tests.sim.engine_models:deadly", "keywords": {"flag": str(tmp_path / "flag"), "once": False}}
    (tmp_path / "flag").touch()
    dying = [Cell(tiny({"model": deadly, "seed": seed}), folder="dying") for seed in (0, 1)]
    living = [
        Cell(tiny({"model": {**deadly, "keywords": {"flag": str(tmp_path / "none")}}, "seed": 2}), folder="living")
    ]
    outcomes = run_cells([dying[0], *living, dying[1]], tmp_path / "out", 2, Silent())
    assert {outcomes[cell.name] for cell in dying} == {"its process died"}
    assert outcomes["living/seed2"].summary["stopped"] == "finished"  # type: ignore[union-attr]
