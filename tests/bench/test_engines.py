"""bench/engines.py: what it measures is what it says."""

from __future__ import annotations

import pytest


def test_every_model_trains_as_its_label_says() -> None:
    import engines

    from fastagg.sim.one.simulation import Simulation

    for label, (model, fused, _) in engines.MODELS.items():
        simulation = Simulation(engines.recipe(model, fused))
        assert (simulation.by_torch is not None) == ("torch" in label)
        assert ("million" in label) == (simulation.server.layout.size > 1e6)


@pytest.mark.parametrize("engine", [("here", None), ("here", 2), ("pool", 1)])
def test_a_run_is_measured(engine: tuple[str, int | None]) -> None:
    import engines

    model, fused, _ = engines.MODELS["MLP, 64"]
    assert engines.updates(engines.recipe(model, fused), engine, 5) > 0


def test_the_overhead_is_measured() -> None:
    import engines

    assert min(engines.overhead(("pool", 2), 1000, 7)) > 0
