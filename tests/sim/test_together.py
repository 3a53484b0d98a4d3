"""Runs of one process share stacks, and each ends as if it had been alone."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from fastagg.sim import batched, together
from fastagg.sim.cells import bundles, run_cells
from fastagg.sim.config import Config
from fastagg.sim.engines import stacks
from fastagg.sim.engines.stacks import Order, Stacks
from fastagg.sim.metrics import Stopwatch
from fastagg.sim.simulation import Simulation, run
from fastagg.sim.sweep import Cell

from .test_batched import CASES, config, noisy
from .test_resume import Killed, same

pytestmark = pytest.mark.skipif(not together.rounds_alike(1), reason="products round by their stack here")

METHODS: dict[str, dict[str, Any]] = {
    "FedBuff": {},
    "slow server": {"algorithm.lr": 0.5},
    "FADAS": {"algorithm": {"name": "FADAS", "lr": 0.01, "buffer_size": 3, "delay_threshold": 2}},
    "other steps": {"client.batch_size": 8, "client.epochs": 2, "client.lr": 0.05, "client.lr_decay": 0.9},
    "FedAvg": {"algorithm": {"name": "FedAvg", "clients_per_round": 4}, "participation": {"rule": "round"}},
    "dropout": {"dropout.share": 0.4},
    "one by one": {"run.batched": False},
}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """As in runs: with more a product of matrices rounds by how many there are."""
    with together.torch_threads(1):
        yield


class Silent:
    def started(self, cell: Cell) -> None:
        pass

    def advanced(self, cell: Cell, share: float) -> None:
        pass

    def ended(self, cell: Cell, outcome: Any) -> None:
        pass


def cells(tiny: Any, seeds: int = 2, **changes: Any) -> list[Cell]:
    return [
        Cell(tiny({**change, **changes, "seed": seed}), folder=name)
        for name, change in METHODS.items()
        for seed in range(seeds)
    ]


def halfway(given: Config) -> tuple[Simulation, list[Any]]:
    """Return a simulation with jobs of several versions in flight, and these."""
    simulation = Simulation(given)
    for _ in range(15):
        simulation.step()
    return simulation, simulation.schedule.in_flight()


def equal(update: Any, other: Any) -> bool:
    if isinstance(update, torch.Tensor):
        return torch.equal(update, other)
    return update.keys() == other.keys() and all(torch.equal(update[name], other[name]) for name in update)


@pytest.mark.parametrize("case", CASES)
def test_no_bit_of_an_update_depends_on_who_shares_the_stack(case: str) -> None:
    runs = [halfway(config(**CASES[case], seed=seed)) for seed in range(4)]
    asked = [(simulation.batched, job) for simulation, jobs in runs for job in jobs]
    shared = batched.train(asked)  # type: ignore[arg-type]
    own = [update for simulation, jobs in runs for update in simulation.batched.train(jobs)]  # type: ignore[union-attr]
    for (trainer, job), update, other in zip(asked, shared, own, strict=True):
        assert trainer is not None
        assert equal(update, other)
        assert equal(update, trainer.train([job])[0])


def test_augmented_rows_draw_as_alone() -> None:
    runs = []
    for seed in range(3):
        plain = Simulation(config(seed=seed))
        data = replace(plain.data, clients=[replace(samples, augment=noisy) for samples in plain.data.clients])
        runs.append(Simulation(config(seed=seed), data))
    asked = [(simulation.batched, job) for simulation in runs for job in simulation.schedule.in_flight()]
    for (trainer, job), update in zip(asked, batched.train(asked), strict=True):  # type: ignore[arg-type]
        assert trainer is not None
        assert equal(update, trainer.train([job])[0])


@pytest.mark.parametrize("model", ["mlp", "cnn"])
def test_runs_that_share_stacks_leave_the_files_that_they_leave_alone(tiny: Any, tmp_path: Any, model: str) -> None:
    found = cells(tiny, **{"model.name": model, "model.widths": [8]})
    outcomes = run_cells(found, tmp_path / "shared", 1, Silent())
    for cell in found:
        alone = run(cell.config, tmp_path / "alone" / cell.name)
        assert alone.rows == outcomes[cell.name].rows  # type: ignore[union-attr]
        same(tmp_path / "shared" / cell.name, tmp_path / "alone" / cell.name)


def test_stacks_hold_jobs_of_several_runs_and_of_one_kind(tiny: Any, tmp_path: Any, monkeypatch: Any) -> None:
    seen: list[set[Any]] = []
    shared: list[int] = []
    train = batched.train

    def watched(asked: Any) -> Any:
        seen.append({trainer.kind for trainer, _ in asked})
        shared.append(len({id(trainer) for trainer, _ in asked}))
        return train(asked)

    monkeypatch.setattr(stacks.batched, "train", watched)
    settings: list[dict[str, Any]] = [
        {}, {"seed": 1}, {"algorithm.lr": 0.5}, {"client.lr": 0.2}, {"client.batch_size": 8}, {"client.momentum": 0.9},
        {"client.mu": 0.1}, {"client.weight_decay": 0.1}, {"model.widths": [9]}, {"model.widths": [8, 8]},
        {"model.name": "logistic", "model.widths": []},
    ]  # fmt: skip
    found = [Cell(tiny(change), folder=str(number)) for number, change in enumerate(settings)]
    outcomes = run_cells(found, tmp_path, 1, Silent())
    assert all(outcome.summary["stopped"] == "finished" for outcome in outcomes.values())  # type: ignore[union-attr]
    assert all(len(kinds) == 1 for kinds in seen)
    assert len(set().union(*seen)) == 7
    assert max(shared) == 5


def test_at_most_so_many_runs_are_at_hand_and_no_more_than_fit_memory(monkeypatch: Any) -> None:
    at_hand: list[int] = []
    going: set[int] = set()

    def running(number: int, rests: int, held: int) -> Iterator[int]:
        going.add(number)
        for _ in range(rests):
            at_hand.append(len(going))
            yield held
        going.remove(number)
        return number

    def drive(count: int, rests: int, held: int, threads: int = 1) -> list[int]:
        at_hand.clear()
        runs: Any = ((number, running(number, rests, held)) for number in range(count))
        found = dict(together.together(runs, Stacks(), threads))
        assert found == {number: number for number in range(count)}
        return list(found)

    monkeypatch.setattr(together, "MOST", 3)
    drive(7, 5, 1)
    assert max(at_hand) == 3
    drive(7, 5, 1, threads=2)
    assert max(at_hand) == 1
    monkeypatch.setattr(together, "MEMORY", 10)
    drive(7, 5, 5)
    assert max(at_hand) == 2
    drive(7, 5, 1000)
    assert max(at_hand) == 1
    assert drive(4, 0, 0) == [0, 1, 2, 3]


class Owner:
    def __init__(self) -> None:
        self.updates: list[Any] = []
        self.errors: list[Exception] = []

    def trained(self, group: int, updates: list[Any], seconds: float) -> None:
        self.updates += updates

    def failed(self, error: Exception) -> None:
        self.errors.append(error)


def test_a_run_whose_training_fails_does_not_take_the_others_with_it() -> None:
    runs = [halfway(config(seed=seed)) for seed in range(3)]
    owners, shared = [Owner() for _ in runs], Stacks()

    def broken(x: torch.Tensor, rng: Any) -> torch.Tensor:
        raise ValueError("no such picture")

    runs[1][0].batched._augment = broken  # type: ignore[union-attr]
    for owner, (simulation, jobs) in zip(owners, runs, strict=True):
        shared.add(Order(owner, 1, simulation.batched, jobs))  # type: ignore[arg-type]
    shared.train()
    assert [len(owner.errors) for owner in owners] == [0, 1, 0]
    for owner, (simulation, jobs) in zip(owners, runs, strict=True):
        if not owner.errors:
            own = simulation.batched.train(jobs)  # type: ignore[union-attr]
            assert all(map(equal, owner.updates, own)) and len(own) == len(owner.updates)


def test_what_an_ended_run_waited_for_is_not_trained() -> None:
    (first, jobs), (second, others) = halfway(config()), halfway(config(seed=1))
    owners, shared = [Owner(), Owner()], Stacks()
    shared.add(Order(owners[0], 1, first.batched, jobs))  # type: ignore[arg-type]
    shared.add(Order(owners[1], 1, second.batched, others))  # type: ignore[arg-type]
    shared.forget(owners[0])
    shared.train()
    assert not owners[0].updates and len(owners[1].updates) == len(others)


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


def test_a_run_s_wall_seconds_are_its_own(tiny: Any, tmp_path: Any) -> None:
    found = [Cell(tiny({"seed": seed, "run.uploads": 60}), folder="tiny") for seed in range(6)]
    begun = time.perf_counter()
    outcomes = run_cells(found, tmp_path, 1, Silent())
    passed = time.perf_counter() - begun
    walls = [outcome.summary["wall_seconds"] for outcome in outcomes.values()]  # type: ignore[union-attr]
    assert sum(wall["total"] for wall in walls) < passed
    assert all(wall["training"] > 0 and wall["other"] >= 0 for wall in walls)


def test_a_watch_that_is_paused_counts_what_is_spent_meanwhile() -> None:
    watch = Stopwatch()
    with watch.paused():
        time.sleep(0.05)
    assert watch.split()["total"] < 0.05
    watch.spend("training", 100.0)
    assert watch.split()["training"] == 100.0 and 100.0 < watch.split()["total"] < 100.05


def test_cells_that_may_share_stacks_are_dealt_to_all_workers(tiny: Any) -> None:
    found = [Cell(tiny({"seed": seed}), folder="a") for seed in range(5)]
    found += [Cell(tiny({"model.name": "cnn", "seed": seed}), folder="b") for seed in range(2)]
    dealt = [[cell.name for cell in bundle] for bundle in bundles(found, 2)]
    assert dealt == [["a/seed0", "a/seed2", "a/seed4"], ["a/seed1", "a/seed3"], ["b/seed0"], ["b/seed1"]]
    many = bundles([Cell(tiny({"seed": seed}), folder="a") for seed in range(50)], 2)
    assert max(map(len, many)) <= together.MOST and sum(map(len, many)) == 50


def test_a_process_that_dies_takes_only_its_own_cell(tiny: Any, tmp_path: Any) -> None:
    """The others of its bundle go on alone."""
    deadly = {"name": "tests.sim.engine_models:deadly", "keywords": {"flag": str(tmp_path / "flag"), "once": False}}
    (tmp_path / "flag").touch()
    dying = [Cell(tiny({"model": deadly, "seed": seed}), folder="dying") for seed in (0, 1)]
    living = [
        Cell(tiny({"model": {**deadly, "keywords": {"flag": str(tmp_path / "none")}}, "seed": 2}), folder="living")
    ]
    outcomes = run_cells([dying[0], *living, dying[1]], tmp_path / "out", 2, Silent())
    assert {outcomes[cell.name] for cell in dying} == {"its process ended with code -9"}
    assert outcomes["living/seed2"].summary["stopped"] == "finished"  # type: ignore[union-attr]
