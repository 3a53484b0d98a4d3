"""Where products round by their stack, runs of one process share none: each ends as if it had been alone."""

from __future__ import annotations

from typing import Any

import pytest

from fastagg.sim import together
from fastagg.sim.cells import run_cells
from fastagg.sim.engines import stacks
from fastagg.sim.simulation import run
from fastagg.sim.sweep import Cell

from .test_resume import same
from .test_together import Silent


@pytest.mark.parametrize("vendor", ["AuthenticAMD", "ARM", ""])
def test_runs_share_stacks_only_where_that_was_tested(tiny: Any, tmp_path: Any, monkeypatch: Any, vendor: str) -> None:
    monkeypatch.setattr(together.native, "processor", lambda: (vendor, 25, 17))
    assert not together.rounds_alike(1)
    shared: list[int] = []
    train = stacks.batched.train

    def watched(asked: Any) -> Any:
        shared.append(len({id(trainer) for trainer, _ in asked}))
        return train(asked)

    monkeypatch.setattr(stacks.batched, "train", watched)
    found = [Cell(tiny({"seed": seed}), folder="one") for seed in (0, 1)]
    run_cells(found, tmp_path / "cells", 1, Silent())
    assert shared and set(shared) == {1}
    for cell in found:
        run(cell.config, tmp_path / "alone" / cell.name)
        same(tmp_path / "cells" / cell.name, tmp_path / "alone" / cell.name)


def test_with_more_threads_runs_share_none() -> None:
    assert not together.rounds_alike(2)
