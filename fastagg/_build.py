"""Loads the compiled extension at import. Other modules import the extension, ``native``, from here. Functions describe
the build, and set the extension's number of threads and its instruction set."""

from __future__ import annotations

import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from fastagg._types import Plain
from fastagg.errors import ConfigError

try:
    import fastagg._native as native
except ModuleNotFoundError:
    from fastagg._checkout import extension

    native = sys.modules["fastagg._native"] = extension()

from fastagg import _checks, tuning  # imported after the extension, because tuning imports the extension, too

WITH_CUDA = "pip install --config-settings=cmake.define.FASTAGG_CUDA=ON ."
_MOST_THREADS = 4096  # a larger number of threads is taken for a mistake, and refused


def usable_cores() -> int:
    """Return how many cores this process may use, by its CPU affinity and the CPU quota of its control group."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        if quota != "max":
            cores = min(cores, max(1, round(int(quota) / int(period))))
    except (OSError, ValueError):
        pass
    return cores


def set_num_threads(count: int) -> None:
    """Use ``count`` threads (the caller's included) for CPU kernels, from the next call on.

    At import the number is that of the environment variable ``FASTAGG_NUM_THREADS`` or, without this variable, the
    number of cores that the process may use. Results do not depend on the number of threads.

    Raises:
        ConfigError: ``count`` is not a whole number in 1..4096.
    """
    native.set_threads(_checks.whole("set_num_threads", count, least=1, most=_MOST_THREADS))


def get_num_threads() -> int:
    """Return the number of threads that CPU kernels use, including the caller."""
    return int(native.threads())


def set_isa(name: str) -> None:
    """Use the CPU kernels for the instruction set ``name``, for tests. ``fastagg info`` lists the names.

    At import, the environment variable ``FASTAGG_ISA`` does the same. Without the variable, the best instruction set of
    the processor is used. Results do not depend on the instruction set.

    Raises:
        ConfigError: the instruction set is not in this build, or this processor does not have it.
    """
    if not isinstance(name, str) or not native.select_isa(name):
        usable = [isa for isa, supported in native.cpu_isas().items() if supported]
        raise ConfigError(f"instruction set {name!r} is not available here; choose one of {', '.join(usable)}")


def build_info() -> Plain:
    """Return facts about the compiled extension and about this machine.

    Returns:
        A dict: ``version``, ``cpu_isas`` (compiled instruction sets, best first -> whether this processor has each),
        ``isa`` (the instruction set in use), ``processor`` (its name), ``tuning`` (the settings of
        :mod:`fastagg.tuning`), ``tuned_by`` (their source), ``threads``, ``cuda_built`` (whether there are CUDA
        kernels), ``cuda_skipped`` (why there are none, or None), ``cuda_architectures`` (the kernels' compute
        capabilities), ``cuda_runtime`` (its version, or None), ``cuda_devices`` (the number of usable devices).
    """
    try:
        package_version = version("fastagg")
    except PackageNotFoundError:
        package_version = "unknown (not installed)"
    built = bool(native.cuda_architectures)
    runtime = int(native.cuda_version) if built else 0
    return {
        "version": package_version,
        "cpu_isas": dict(native.cpu_isas()),
        "isa": str(native.isa()),
        "processor": tuning.processor(),
        "tuning": tuning.current(),
        "tuned_by": tuning.source(),
        "threads": get_num_threads(),
        "cuda_built": built,
        "cuda_skipped": None if built else f"{native.cuda_skipped}; to build with CUDA, in a clone: {WITH_CUDA}",
        "cuda_architectures": [f"sm_{arch}" for arch in native.cuda_architectures.split(",") if arch],
        "cuda_runtime": f"{runtime // 1000}.{runtime % 1000 // 10}" if built else None,
        "cuda_devices": int(native.cuda_device_count()) if built else 0,
    }


def facts() -> Plain:
    """Return facts about this machine and its software as plain data, for bug reports and pages of results."""
    import numpy as np

    built, torch = build_info(), sys.modules.get("torch")  # None: torch has not been imported
    return {
        "fastagg": built.pop("version"),
        "python": platform.python_version(),
        "torch": version("torch") if torch is None else str(torch.__version__),
        "numpy": np.__version__,
        "system": f"{platform.system()} {platform.release()}",
        "libc": " ".join(platform.libc_ver()),
        "machine": platform.machine(),
        "processor": built.pop("processor"),
        "cores": os.cpu_count(),
        "usable_cores": usable_cores(),
        "threads": built.pop("threads"),
        "torch_threads": "not loaded" if torch is None else torch.get_num_threads(),
        "tuning": built.pop("tuning"),
        "tuned_by": built.pop("tuned_by"),
        **built,
    }


def _from_environment() -> None:
    wanted = os.environ.get("FASTAGG_NUM_THREADS")
    if wanted is None:
        native.set_threads(usable_cores())
    else:
        count = int(wanted) if wanted.isdecimal() and len(wanted) < 9 else wanted
        native.set_threads(_checks.whole("FASTAGG_NUM_THREADS", count, least=1, most=_MOST_THREADS))
    if isa := os.environ.get("FASTAGG_ISA"):
        set_isa(isa)
    tuning.from_environment()


_from_environment()
