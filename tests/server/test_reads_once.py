"""A large update is read once, by the kernel that steps along it: what is checked is what steps, whatever its sender
does meanwhile, and nothing else differs from an update that is copied first."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.models import same

import fastagg
from fastagg import NonFiniteUpdate, UpdateTooLarge

SIZE = (1 << 18) + 4321  # above the size from which this is done, and no multiple of anything
RULES: dict[str, Callable[..., fastagg.Server]] = {
    "FedBuff": lambda x, **k: fastagg.FedBuff(x, buffer_size=3, lr=0.7, **k),
    "FedBuff, one": lambda x, **k: fastagg.FedBuff(x, buffer_size=1, **k),
    "FedBuff, by samples": lambda x, **k: fastagg.FedBuff(x, buffer_size=2, weighting="samples", **k),
    "FADAS": lambda x, **k: fastagg.FADAS(x, buffer_size=3, lr=1e-3, **k),
    "FedAvg": lambda x, **k: fastagg.FedAvg(x, clients_per_round=3, **k),
    "FedAsync": lambda x, **k: fastagg.FedAsync(x, **k),
    "ASGD": lambda x, **k: fastagg.ASGD(x, lr=0.3, **k),
    "DelayAdaptiveASGD": lambda x, **k: fastagg.DelayAdaptiveASGD(x, lr=0.3, delay_threshold=1, **k),
}
FORMS: dict[str, Callable[[torch.Tensor], Any]] = {
    "fp32": lambda u: u,
    "bf16": lambda u: u.bfloat16(),
    "fp16": lambda u: u.half(),
    "numpy": lambda u: u.numpy(),
}


def start() -> torch.Tensor:
    return torch.randn(SIZE, generator=torch.Generator().manual_seed(5))


def update(number: int) -> torch.Tensor:
    return torch.randn(SIZE, generator=torch.Generator().manual_seed(number)) * 0.01


def played(server: fastagg.Server, form: Callable[[torch.Tensor], Any]) -> list[Any]:
    receipts = []
    for round_ in range(3):
        for client in range(3):
            server.dispatch(client)
        for client in range(3):
            receipts.append(server.receive(client, form(update(3 * round_ + client)), num_samples=client + 1))
    return receipts


@pytest.mark.parametrize(("name", "form"), [(name, "fp32") for name in RULES] + [("FedBuff", form) for form in FORMS])
def test_the_bits_are_those_of_an_update_that_is_copied(name: str, form: str) -> None:
    once, copied = RULES[name](start()), RULES[name](start(), clip_norm=1e30)  # which must know the norm first
    assert played(once, FORMS[form]) == played(copied, FORMS[form])
    assert torch.equal(once.flat, copied.flat)
    ours, theirs = once.state_dict(), copied.state_dict()
    del ours["config"], theirs["config"]
    assert same(ours, theirs)


def test_layers_that_begin_anywhere() -> None:
    sizes = [5, 70_001, 128, 131_072, SIZE - 201_206]
    layers = {str(k): part.clone() for k, part in enumerate(start().split(sizes))}
    servers = [RULES["FedBuff"](layers), RULES["FedBuff"](layers, clip_norm=1e30)]

    def form(u: torch.Tensor) -> Any:
        return {str(k): part.bfloat16() if k == 3 else part for k, part in enumerate(u.split(sizes))}

    assert played(servers[0], form) == played(servers[1], form)
    assert torch.equal(servers[0].flat, servers[1].flat)


@pytest.mark.parametrize(("value", "at"), [(float("nan"), SIZE - 1), (float("-inf"), 65_536), (3e38, 2047)])
@pytest.mark.parametrize("name", ["FedBuff", "FedBuff, one", "FADAS", "FedAsync", "ASGD"])
def test_what_is_refused_leaves_nothing(name: str, value: float, at: int) -> None:
    server, untroubled = RULES[name](start()), RULES[name](start())
    for one in (server, untroubled):
        one.dispatch(0), one.dispatch(1)
        one.receive(0, update(0))
    for _ in range(2):
        bad, before = update(1), server.state_dict()
        bad[at] = value
        with pytest.raises(UpdateTooLarge if value == 3e38 else NonFiniteUpdate):
            server.receive(1, bad)
        assert same(server.state_dict(), before)
    for one in (server, untroubled):
        one.receive(1, update(1))
        one.dispatch(0)
        one.receive(0, update(2))
    assert same(server.state_dict(), untroubled.state_dict())


def test_what_is_checked_is_what_steps_while_the_sender_writes() -> None:
    given, stop = torch.zeros(SIZE), threading.Event()

    def write() -> None:
        numbers = [update(k) for k in range(2)] + [torch.full((SIZE,), float("nan"))]
        k = 0
        while not stop.is_set():
            given[k % 7 :: 3] = numbers[k % 3][k % 7 :: 3]
            k += 1

    thread = threading.Thread(target=write)
    thread.start()
    applied = refused = 0
    try:
        for _ in range(100):
            server = fastagg.ASGD(torch.zeros(SIZE), lr=1.0)
            server.dispatch(0)
            try:
                receipt = server.receive(0, given)
            except NonFiniteUpdate:
                refused += 1
                assert not server.flat.any()
                continue
            applied += 1
            check = fastagg.ASGD(torch.zeros(SIZE), lr=1.0)  # of what has stepped; nobody writes to it
            check.dispatch(0)
            assert check.receive(0, -server.flat).update_norm == receipt.update_norm
    finally:
        stop.set()
        thread.join()
    assert refused + applied == 100 and applied > 0


def test_an_update_that_is_the_model() -> None:
    server = fastagg.ASGD(start(), lr=0.5)
    server.dispatch(0)
    server.receive(0, server.flat)
    assert torch.equal(server.flat, start() * 0.5)
