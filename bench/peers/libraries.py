"""Adam of libraries that nobody needs to have: bitsandbytes and DeepSpeed, on one flat parameter."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
from problem import Built, Candidate, Problem, Skip


def libraries() -> list[Candidate]:
    """Both with fp32 moments and with Adam's bias correction, which they always apply."""
    return [
        Candidate("bitsandbytes Adam", _bitsandbytes, 3, corrected=True, note="its CPU path, fp32 moments"),
        Candidate("DeepSpeed CPUAdam", _deepspeed, 3, corrected=True, note="compiled by DeepSpeed for this machine"),
    ]


def _bitsandbytes(problem: Problem) -> Built:
    adam = _import("bitsandbytes.optim").Adam
    return _built(problem, adam, lambda m, v: {"step": 0, "state1": m, "state2": v})


def _deepspeed(problem: Problem) -> Built:
    adam = _import("deepspeed.ops.adam").DeepSpeedCPUAdam

    def descend(parameters: Any, **settings: Any) -> Any:
        return adam(parameters, adamw_mode=False, **settings)

    return _built(problem, descend, lambda m, v: {"step": 0, "exp_avg": m, "exp_avg_sq": v})


def _built(problem: Problem, make: Callable[..., Any], state: Callable[..., dict[str, Any]]) -> Built:
    x, m, v = problem.vectors(("x", "m", "v"))
    parameter = torch.nn.Parameter(x)
    parameter.grad = problem.negated
    try:
        optimizer = make([parameter], lr=problem.lr, betas=problem.betas, eps=problem.eps, weight_decay=0.0)
        optimizer.state[parameter] = state(m.neg_(), v)  # the moment of the negated update
        optimizer.step()
    except (RuntimeError, OSError, AttributeError, NotImplementedError, ImportError) as error:
        raise Skip(f"{type(error).__name__}: {str(error).splitlines()[0][:120]}") from error
    for vector, fresh in zip((x, m, v), problem.vectors(("x", "m", "v")), strict=True):
        vector.copy_(fresh)
    m.neg_()
    optimizer.state[parameter]["step"] = 0
    return Built(optimizer.step, lambda: x)


def _import(name: str) -> Any:
    try:
        return import_module(name)
    except Exception as error:  # a library that is broken here is not there
        raise Skip(f"cannot be imported: {type(error).__name__}: {str(error).splitlines()[0][:120]}") from error
