"""The fuzzer finds no difference, and finds a planted defect of each kind."""

import logging
import os
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

import fastagg
from fastagg.durable import log
from fastagg.durable.uploads import Uploads
from fastagg.server import engine
from fastagg.storage import memory
from fuzz.differential import run

SEEDS = 60
START = int(os.environ.get("FASTAGG_FUZZ_SEED", "1000"))


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    caplog.set_level(logging.CRITICAL, "fastagg")
    monkeypatch.setattr(log, "SMALL", 0)  # every upload has a file


@pytest.mark.parametrize("seed", range(6))  # at night as many as there is time for
def test_no_difference(seed: int) -> None:
    run(seed)


@pytest.mark.slow
def test_no_difference_for_many_seconds() -> None:
    until, seed = time.monotonic() + float(os.environ.get("FASTAGG_FUZZ_SECONDS", "60")), START
    while time.monotonic() < until:
        run(seed)
        seed += 1
    print(f"seeds {START} to {seed - 1}: no difference")


Patch = Callable[..., None]
DEFECTS: dict[str, Callable[[Patch], None]] = {}


def defect(plant: Callable[[Patch], None]) -> None:
    DEFECTS[plant.__name__.replace("_", " ")] = plant


@defect
def what_is_handed_out_follows_the_model(patch: Patch) -> None:
    one = torch.empty(0)

    def flat(self: fastagg.Server) -> torch.Tensor:
        return one.resize_(self.layout.size).copy_(self._engine.flat)

    patch(fastagg.Server, "flat", property(flat))


@defect
def half_of_the_model_is_read_later(patch: Patch) -> None:
    whole = fastagg.Server.parameters

    def parameters(self: fastagg.Server) -> Any:
        first, second = whole(self), whole(self)
        return {name: (first if k % 2 else second)[name] for k, name in enumerate(first)}

    patch(fastagg.Server, "parameters", parameters)


@defect
def memory_of_torchs_own_type_and_device(patch: Patch) -> None:
    def empty(size: int, device: Any = "cpu", dtype: torch.dtype = torch.float32) -> torch.Tensor:
        if dtype is not torch.float32:
            return whole(size, device, dtype)
        return whole(2 * size).view(torch.get_default_dtype())[:size]  # room for all: this process is to live

    whole = memory.empty
    patch(memory, "empty", empty)


@defect
def a_checkpoint_removes_an_open_upload(patch: Patch) -> None:
    patch(Uploads, "needed", lambda self, *_: set())


@defect
def several_answers_end_at_the_first_error(patch: Patch) -> None:
    def receive_many(self: fastagg.Server, answers: Any) -> list[Any]:
        found: list[Any] = []
        for answer in answers:
            found += whole(self, [answer])
            if isinstance(found[-1], Exception):
                return found + found[-1:] * (len(answers) - len(found))
        return found

    whole = fastagg.Server.receive_many
    patch(fastagg.Server, "receive_many", receive_many)


@defect
def a_refusal_is_felt_later(patch: Patch) -> None:
    def refused(self: fastagg.Server, error: Exception) -> None:
        if isinstance(error, fastagg.NonFiniteUpdate) and self._log is not None:
            self.lr = self.lr * 2

    patch(fastagg.Server, "_refused", refused)


@defect
def what_waits_in_a_buffer_is_not_saved(patch: Patch) -> None:
    def without(*given: Any) -> Any:
        state = whole(*given)
        if isinstance(state["direction"].get("acc"), torch.Tensor):
            state["direction"]["acc"] = torch.zeros_like(state["direction"]["acc"])
        return state

    whole = engine.whole
    patch(engine, "whole", without)


@defect
def samples_stay_those_of_the_answer_before(patch: Patch) -> None:
    def receive_many(self: fastagg.Server, answers: Any) -> list[Any]:
        return whole(self, [(*answer[:3], answers[0][3], *answer[4:]) for answer in answers])

    whole = fastagg.Server.receive_many
    patch(fastagg.Server, "receive_many", receive_many)


@pytest.mark.slow
@pytest.mark.parametrize("name", DEFECTS)
def test_a_planted_defect_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    DEFECTS[name](monkeypatch.setattr)
    for seed in range(SEEDS):
        try:
            run(seed, preset="FedAvg" if "samples" in name else None)
        except Exception:  # a difference, or a server that refuses what it must not refuse
            return
    pytest.fail(f"not found in {SEEDS} runs")
