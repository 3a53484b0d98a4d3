"""Shared fixtures: every instruction set that this machine can run, and hypothesis without deadlines."""

import os
import re
import signal
from collections.abc import Callable, Iterator

import pytest
import torch
from hypothesis import is_hypothesis_test, settings

import fastagg
from fastagg.ops.place import emulated

# there is a process for every core, so torch's threads would disturb each other
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # for processes that tests start
    torch.set_num_threads(1)

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell starts background jobs so; tests send Ctrl-C
    signal.signal(signal.SIGINT, signal.default_int_handler)

# a commit's examples are always the same, so what fails is what was changed; the nightly run draws new ones
settings.register_profile("quick", deadline=None, print_blob=True, max_examples=25, derandomize=True)
settings.register_profile("thorough", settings.get_profile("quick"), max_examples=100, derandomize=False)
settings.register_profile("sanitizer", deadline=None, derandomize=True, max_examples=5)
settings.load_profile("quick")

if wanted := os.environ.get("FASTAGG_TEST_EXTENSION"):  # the sanitizer run must not test another build
    assert fastagg._build.native.__file__.startswith(wanted), fastagg._build.native.__file__
    settings.load_profile("sanitizer")

if os.environ.get("FASTAGG_TEST_EMULATED"):  # every op of every test uses the CUDA kernels, on the CPU
    emulation = emulated()
    emulation.__enter__()

ISAS = [name for name, supported in fastagg.build_info()["cpu_isas"].items() if supported]

USES_KERNELS = re.compile(r"\bfastagg\.ops\b|\bfrom fastagg import .*\bops\b")


@pytest.hookimpl(tryfirst=True)  # before -m chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Check that sanitizers run every module that calls kernels. In a thorough run, `-m slow` runs all properties."""
    for path in {item.path for item in items if item.get_closest_marker("kernel") is None}:
        if USES_KERNELS.search(path.read_text()):
            raise pytest.UsageError(f"{path.name} uses fastagg.ops: it needs pytest.mark.kernel")
    if settings.get_current_profile_name() == "thorough":
        for item in items:
            if is_hypothesis_test(getattr(item, "obj", None)):
                item.add_marker(pytest.mark.slow)


@pytest.fixture(params=ISAS)
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    """Run the test once per instruction set, forced."""
    before = fastagg.build_info()["isa"]
    fastagg.set_isa(request.param)
    yield request.param
    fastagg.set_isa(before)


@pytest.fixture
def every_isa() -> Iterator[Callable[[], Iterator[str]]]:
    """The instruction sets, forced one after the other, for tests whose expectation takes longer than the kernels."""
    before = fastagg.build_info()["isa"]

    def each() -> Iterator[str]:
        for name in ISAS:
            fastagg.set_isa(name)
            yield name

    yield each
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
