"""The examples in docstrings run as they stand there, and what users call first has one."""

from __future__ import annotations

import doctest
import inspect
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import fastagg
import fastagg.sim

# An error's text may get better; a docstring shows its public name.
OPTIONS = doctest.NORMALIZE_WHITESPACE | doctest.IGNORE_EXCEPTION_DETAIL | doctest.ELLIPSIS
FIRST = [
    *fastagg.registry.presets(), "Server", "Server.dispatch", "Server.receive", "Server.receive_many",
    "Server.receive_model", "Server.receiving", "Server.close_round", "Server.expire", "Server.parameters",
    "Server.save", "Dispatch", "Receipt", "load", "open", "watch", "Leaf", "Tiered",
    "Distillation", "register", "Polynomial", "Hinge", "DelayAdaptive", "Euclidean", "FastaggError", "sim.run",
    "Single", "Mixing", "Buffer", "Cohort", "AllClients", "ActiveSet", "Calibrated", "SGD", "Momentum", "Adam",
    "AMSGrad", "Yogi", "Adagrad", "Lookahead", "Nesterov", "DelayedNesterov", "Aligned", "CosineGate", "Cutoff",
]  # fmt: skip


def named(name: str) -> Any:
    found: Any = fastagg
    for part in name.split("."):
        found = getattr(found, part)
    return found


def documented() -> Iterator[tuple[str, str]]:
    """Every public name and its docstring, and those of the methods of public classes."""
    for name in [*fastagg.__all__, "sim.run", "clients.GradientDifference"]:
        thing = named(name)
        if not callable(thing):
            continue
        yield name, thing.__doc__ or ""
        if inspect.isclass(thing):
            for own, method in vars(thing).items():
                if callable(method) and not own.startswith("_") and method.__doc__:
                    yield f"{name}.{own}", method.__doc__


EXAMPLES = {name: doc for name, doc in documented() if ">>>" in doc}


def test_what_users_call_first_has_an_example() -> None:
    assert not set(FIRST) - set(EXAMPLES)


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_runs(name: str, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    parts = dict(fastagg.registry._parts)
    threads = fastagg.get_num_threads()
    text = inspect.cleandoc(EXAMPLES[name])
    test = doctest.DocTestParser().get_doctest(text, {"fastagg": fastagg, "torch": torch}, name, name, 0)
    said: list[str] = []
    try:
        result = doctest.DocTestRunner(verbose=False, optionflags=OPTIONS).run(test, out=said.append)
    finally:  # what an example registers or sets is not for other tests
        fastagg.registry._parts.clear()
        fastagg.registry._parts.update(parts)
        fastagg.set_num_threads(threads)
    assert result.attempted and not result.failed, "".join(said)
