"""Shared fixtures: every instruction set this machine can run, and hypothesis without its clock."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import settings

import fastagg
from fastagg.ops.place import emulated

settings.register_profile("fastagg", deadline=None, print_blob=True)
settings.register_profile("sanitizer", deadline=None, max_examples=5, derandomize=True)
settings.load_profile("fastagg")

if wanted := os.environ.get("FASTAGG_TEST_EXTENSION"):  # the sanitizer run must not test another build
    assert fastagg._build.native.__file__.startswith(wanted), fastagg._build.native.__file__

if os.environ.get("FASTAGG_TEST_EMULATED"):  # every op of every test through the CUDA kernels, on the CPU
    emulation = emulated()
    emulation.__enter__()

ISAS = [name for name, supported in fastagg.build_info()["cpu_isas"].items() if supported]


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
