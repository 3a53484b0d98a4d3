"""The examples in docstrings run as they stand there, and what users call first has one."""

from __future__ import annotations

import doctest
import inspect
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path
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


def listed() -> Iterator[tuple[str, Any]]:
    """What the API pages list, as users write it: all public names, and the names and modules of the directives."""
    pages = "".join(
        page.read_text(encoding="utf-8") for page in sorted((Path(__file__).parents[2] / "docs" / "api").glob("*.md"))
    )
    directives = re.findall(r"^\.\. auto\w+:: fastagg\.([\w.]+)", pages, re.MULTILINE)
    things = {name: pkgutil.resolve_name(f"fastagg.{name}") for name in [*fastagg.__all__, *directives, "sim.compare"]}
    yield from things.items()
    for name, thing in things.items():
        if inspect.ismodule(thing):
            yield from ((f"{name}.{own}", getattr(thing, own)) for own in getattr(thing, "__all__", vars(thing)))


def documented() -> Iterator[tuple[str, str]]:
    """Every listed name and its docstring, and those of the methods and properties of classes."""
    for name, thing in listed():
        if not callable(thing) or not str(thing.__module__).startswith("fastagg"):
            continue  # a constant, or what a module imports
        yield name, thing.__doc__ or ""
        for own, method in vars(thing).items() if inspect.isclass(thing) else ():
            if not own.startswith("_") and (callable(method) or hasattr(type(method), "__get__")):
                yield f"{name}.{own}", method.__doc__ or ""


NAMES = {doc: name for name, doc in reversed([*documented()]) if ">>>" in doc}  # each once, by its first name
EXAMPLES = {name: doc for doc, name in reversed(NAMES.items())}


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
