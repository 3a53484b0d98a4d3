"""bench/speed.py: a share below its floor fails, and says which."""

from __future__ import annotations

import pytest


def test_a_kernel_below_its_floor_fails(monkeypatch, capsys):
    import speed
    import torch

    import fastagg

    threads = fastagg.get_num_threads(), torch.get_num_threads()
    shares = dict(speed.FLOORS)
    monkeypatch.setattr(speed, "measured", shares.__getitem__)
    try:
        assert speed.main() == 0
        shares["accumulate"] *= 0.99
        assert speed.main() == 1
    finally:
        fastagg.set_num_threads(threads[0])
        torch.set_num_threads(threads[1])
    low = [line for line in capsys.readouterr().out.splitlines() if "TOO LITTLE" in line]
    assert len(low) == 1 and low[0].startswith("accumulate: 64%")


@pytest.mark.parametrize("name", ["accumulate", "distances"])
def test_a_slower_kernel_has_a_smaller_share(monkeypatch, name):
    """Eight passes for one have an eighth of the share; half leaves room for noise."""
    import speed
    from problem import Built

    monkeypatch.setattr(speed, "ROUNDS", 9)
    alone, build = speed.measured(name, 300_000), speed.build

    def eightfold(case, problem, wanted):
        built, skipped = build(case, problem, wanted)
        run = built["fastagg"].run
        return {"fastagg": Built(lambda: [run() for _ in range(8)], None)}, skipped

    monkeypatch.setattr(speed, "build", eightfold)
    assert speed.measured(name, 300_000) < alone / 2
