"""Shared fixtures: every instruction set that this machine can run, and hypothesis without deadlines."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import settings

import fastagg
from fastagg.ops.place import emulated

# there is a process for every core, so torch's threads would disturb each other
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # for processes that tests start
    torch.set_num_threads(1)

# A test's `max_examples` is the number for a thorough run. `examples` computes the number for other runs.
settings.register_profile("quick", deadline=None, print_blob=True)
settings.register_profile("thorough", settings.get_profile("quick"))
settings.register_profile("sanitizer", deadline=None, derandomize=True)
settings.load_profile("quick")

if wanted := os.environ.get("FASTAGG_TEST_EXTENSION"):  # the sanitizer run must not test another build
    assert fastagg._build.native.__file__.startswith(wanted), fastagg._build.native.__file__
    settings.load_profile("sanitizer")

if os.environ.get("FASTAGG_TEST_EMULATED"):  # every op of every test uses the CUDA kernels, on the CPU
    emulation = emulated()
    emulation.__enter__()

ISAS = [name for name, supported in fastagg.build_info()["cpu_isas"].items() if supported]

USES_KERNELS = re.compile(r"\bfastagg\.(ops|reference)\b|\bfrom fastagg import .*\b(ops|reference)\b")


def examples(wanted: int, profile: str) -> int:
    """Return how many examples a property gets if it asks for `wanted`."""
    if profile == "thorough":
        return wanted
    return min(wanted, max(5, wanted // 4) if profile == "quick" else 5)


def kept_settings(item: pytest.Item) -> tuple[Any, str] | None:
    """Return the object with a property's settings and their name on it. None if the test is not a property."""
    if isinstance(getattr(getattr(item, "cls", None), "settings", None), settings):
        return item.cls, "settings"  # a state machine's
    test, name = getattr(item, "obj", None), "_hypothesis_internal_use_settings"
    test = getattr(test, "__func__", test)
    return (test, name) if hasattr(test, name) else None


@pytest.hookimpl(tryfirst=True)  # before -m chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Check that sanitizers run every module that calls kernels. Give properties their profile's number of examples.

    A property that gets more examples in a thorough run than in a quick one is slow, so that `-m slow` runs it.
    """
    for path in {item.path for item in items if item.get_closest_marker("kernel") is None}:
        if USES_KERNELS.search(path.read_text()):
            raise pytest.UsageError(f"{path.name} uses fastagg.ops or fastagg.reference: it needs pytest.mark.kernel")
    profile, seen = settings.get_current_profile_name(), set()
    for item in items:
        if (found := kept_settings(item)) is None:
            continue
        holder, name = found
        own = getattr(holder, name)
        if profile == "thorough" and examples(own.max_examples, "quick") < own.max_examples:
            item.add_marker(pytest.mark.slow)
        if id(holder) not in seen:  # parameters of one test share its settings
            seen.add(id(holder))
            setattr(holder, name, settings(own, max_examples=examples(own.max_examples, profile)))


@pytest.fixture(params=ISAS)
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    """Run the test once per instruction set, forced."""
    before = fastagg.build_info()["isa"]
    fastagg.set_isa(request.param)
    yield request.param
    fastagg.set_isa(before)


@pytest.fixture
def threads() -> Iterator[None]:
    """Undo all changes of the thread count."""
    before = fastagg.get_num_threads()
    yield
    fastagg.set_num_threads(before)


@pytest.fixture
def tuning() -> Iterator[Callable[..., None]]:
    """Set how the CPU's loops run (csrc/cpu/tuning.h), by name. Restore it after the test."""
    native = fastagg._build.native
    before = native.tuning()
    yield lambda **settings: native.set_tuning(settings)
    native.set_tuning(before)
