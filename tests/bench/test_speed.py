"""bench/speed.py: a kernel below both of its floors fails, and it says which."""

from __future__ import annotations

import pytest


def test_a_kernel_below_its_floor_fails(monkeypatch, capsys):
    import speed
    import torch

    import fastagg

    threads = fastagg.get_num_threads(), torch.get_num_threads()
    shares = {name: (floor.share, floor.ratio) for name, floor in speed.FLOORS.items()}
    monkeypatch.setattr(speed, "measured", shares.__getitem__)
    share, ratio = shares["accumulate"]
    try:
        for one in ((share, ratio), (share * 0.99, ratio), (share, ratio * 0.99)):
            shares["accumulate"] = one
            assert speed.main() == 0
        shares["accumulate"] = share * 0.99, ratio * 0.99
        assert speed.main() == 1
    finally:
        fastagg.set_num_threads(threads[0])
        torch.set_num_threads(threads[1])
    low = [line for line in capsys.readouterr().out.splitlines() if "TOO LITTLE" in line]
    assert len(low) == 1 and low[0].startswith("accumulate: 64%")


@pytest.mark.parametrize("name", ["accumulate", "distances"])
def test_a_slower_kernel_has_a_smaller_share(monkeypatch, name):
    """Eight passes for one have an eighth of the share and of the ratio; half leaves room for noise."""
    import speed
    from problem import Built

    alone, build = speed.measured(name, 300_000, 9), speed.build

    def eightfold(case, problem, wanted):
        built, skipped = build(case, problem, wanted)
        run = built["fastagg"].run
        return built | {"fastagg": Built(lambda: [run() for _ in range(8)], None)}, skipped

    monkeypatch.setattr(speed, "build", eightfold)
    slower = speed.measured(name, 300_000, 9)
    assert slower[0] < alone[0] / 2 and slower[1] < alone[1] / 2
