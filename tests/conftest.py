"""Shared fixtures: every instruction set this machine can run, and hypothesis without its clock."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator

import pytest
from hypothesis import settings

import fastagg
from fastagg.ops.place import emulated

settings.register_profile("fastagg", deadline=None, print_blob=True)
settings.register_profile("sanitizer", deadline=None, max_examples=5, derandomize=True)
settings.load_profile("fastagg")

if wanted := os.environ.get("FASTAGG_TEST_EXTENSION"):  # the sanitizer run must not test another build
    assert fastagg._build.native.__file__.startswith(wanted), fastagg._build.native.__file__
    settings.load_profile("sanitizer")

if os.environ.get("FASTAGG_TEST_EMULATED"):  # every op of every test through the CUDA kernels, on the CPU
    emulation = emulated()
    emulation.__enter__()

ISAS = [name for name, supported in fastagg.build_info()["cpu_isas"].items() if supported]

USES_KERNELS = re.compile(r"\bfastagg\.(ops|reference)\b|\bfrom fastagg import .*\b(ops|reference)\b")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """No module that calls kernels is left out under sanitizers; what is run there takes few examples."""
    for path in {item.path for item in items if item.get_closest_marker("kernel") is None}:
        if USES_KERNELS.search(path.read_text()):
            raise pytest.UsageError(f"{path.name} uses fastagg.ops or fastagg.reference: it needs pytest.mark.kernel")
    if settings.get_current_profile_name() == "sanitizer":
        for item in items:
            if own := getattr(getattr(item, "obj", None), "_hypothesis_internal_use_settings", None):
                most = min(own.max_examples, settings.default.max_examples)
                item.obj._hypothesis_internal_use_settings = settings(own, max_examples=most)


@pytest.fixture(params=ISAS)
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    """Run the test once per instruction set, forced."""
    before = fastagg.build_info()["isa"]
    fastagg.set_isa(request.param)
    yield request.param
    fastagg.set_isa(before)


@pytest.fixture
def threads() -> Iterator[None]:
    """Whatever the test does to the thread count is undone."""
    before = fastagg.get_num_threads()
    yield
    fastagg.set_num_threads(before)


@pytest.fixture
def tuning() -> Iterator[Callable[..., None]]:
    """Set how the CPU's loops run (csrc/cpu/tuning.h), by name; it is as it was afterwards."""
    native = fastagg._build.native
    before = native.tuning()
    yield lambda **settings: native.set_tuning(settings)
    native.set_tuning(before)
