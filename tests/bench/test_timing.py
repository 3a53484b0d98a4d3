"""Rounds, clocks and candidates that run out of memory, with a clock that only counts."""

import pytest
import timing
import torch


class Ticks:
    """Each candidate takes as long as it says; runs are counted."""

    settles = False

    def __init__(self, **seconds):
        self.seconds, self.order, self.host = seconds, [], {}

    def sample(self, name, run, calls):
        run()
        self.order.append(name)
        return self.seconds[name]

    def wait(self):
        pass


def test_every_round_has_all_and_ratios_are_taken_within_it():
    clock = Ticks(fastagg=1.0, peer=2.0)
    found = timing.interleave({"fastagg": int, "peer": int}, rounds=6, clock=clock)
    rounds = [set(clock.order[i : i + 2]) for i in range(0, 12, 2)]
    assert rounds == [{"fastagg", "peer"}] * 6
    assert len(set(clock.order[::2])) == 2  # not always the same one first
    assert found.ratio("peer", "fastagg") == (2.0, 2.0, 2.0)
    assert found.calls == {"fastagg": 1, "peer": 1}


def test_a_peer_without_memory_is_dropped_alone():
    def full():
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate")

    found = timing.interleave(
        {"fastagg": int, "peer": int, "large": full}, rounds=3, clock=Ticks(fastagg=1.0, peer=2.0, large=1.0)
    )
    assert set(found.rounds) == {"fastagg", "peer"}
    assert len(found.samples("peer")) == 3
    assert found.lost["large"].startswith("out of memory: CUDA")
    with pytest.raises(torch.OutOfMemoryError):
        timing.interleave({"fastagg": full}, rounds=1, clock=Ticks(fastagg=1.0))


def test_a_disturbed_round_is_repeated_whole(monkeypatch):
    """Others take all cores in the second round. None of it is kept, and the timer looks for a quiet moment again."""
    at, waited = iter(range(100)), []
    monkeypatch.setattr(timing, "busy", lambda: next(at))
    monkeypatch.setattr(timing, "others", lambda start, end: 1.0 if start == 2 else 0.0)
    monkeypatch.setattr(timing, "_wait_for_quiet", waited.append)
    told = []
    found = timing.interleave(
        {"fastagg": int, "peer": int}, rounds=3, care=timing.Care(settle=0.0), least=0.0, told=lambda: told.append(1)
    )
    assert (found.discarded, len(found.samples("fastagg")), len(told), len(waited)) == (1, 3, 4, 2)
    assert found.others == 0.0


def test_no_round_begins_when_its_time_is_over():
    def rounds(within):
        clock = Ticks(fastagg=1.0)
        timing.interleave({"fastagg": int}, rounds=50, clock=clock, within=within)
        return len(clock.order)

    assert rounds(0.0) == timing.FEWEST
    assert rounds(60.0) == 50


def test_a_short_call_is_repeated_and_a_prepared_one_is_not():
    done = []
    found = timing.interleave(
        {"fastagg": lambda: None, "prepared": lambda: done.append("run")}, rounds=2, least=1e-3,
        before={"prepared": lambda: done.append("before")}, care=timing.AT_ONCE,
    )  # fmt: skip
    assert found.calls["fastagg"] > 1
    assert found.calls["prepared"] == 1
    assert done == ["before", "run"] * 2
