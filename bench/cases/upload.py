"""Copying an update from pageable host memory to a device, compared with torch's way and a copy from pinned memory."""

from __future__ import annotations

from collections.abc import Callable

import torch
from problem import Built, Candidate, Case, Problem

from fastagg.storage import staging
from fastagg.storage.pieces import Pieces


def _host(problem: Problem) -> torch.Tensor:
    return torch.randn(problem.size, generator=torch.Generator().manual_seed(0))


def _built(run: Callable[[], torch.Tensor]) -> Built:
    last = [run()]

    def whole() -> None:
        last[0] = run()
        torch.cuda.synchronize()

    return Built(whole, lambda: last[0].view(-1))


def _ours(problem: Problem) -> Built:
    pieces = Pieces([_host(problem)])
    return _built(lambda: staging.upload(pieces, problem.device))


def _torch(problem: Problem) -> Built:
    host = _host(problem)
    return _built(lambda: host.to(problem.device))


def _pinned(problem: Problem) -> Built:
    host, there = _host(problem).pin_memory(), torch.empty(problem.size, device=problem.device)
    return _built(lambda: there.copy_(host, non_blocking=True))


def _candidates() -> list[Candidate]:
    return [
        Candidate("fastagg", _ours, 2),
        Candidate("torch to()", _torch, 2),
        Candidate("the copy alone, pinned already", _pinned, 2),
    ]


CASES = [Case("upload", 4, _candidates, "path", devices=("cuda",), host=True)]
