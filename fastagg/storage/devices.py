"""Chooses the device of a new server's state, and checks that this build has kernels for the device."""

from __future__ import annotations

import torch
from torch import Tensor

from fastagg import _checks
from fastagg._build import WITH_CUDA, native
from fastagg._types import Arrays
from fastagg.errors import ConfigError, DeviceError


def choose(device: torch.device | str | None, params: Arrays) -> torch.device:
    """Return the requested device. None: the CUDA device of the model's first array, otherwise the CPU. ConfigError:
    there is no such device. DeviceError: this build has no kernels for the device."""
    if device is None:
        arrays = params.values() if isinstance(params, dict) else params
        if isinstance(params, torch.nn.Module):
            arrays = params.parameters()
        elif not isinstance(arrays, (list, tuple)):
            arrays = list(arrays) if isinstance(params, dict) else [params]
        first = next(iter(arrays), None)
        device = first.device if isinstance(first, Tensor) and first.is_cuda else "cpu"
    try:
        chosen = torch.device(device)
    except (RuntimeError, TypeError, ValueError) as error:
        near = _checks.meant(device, ("cpu", "cuda"))
        raise ConfigError(_checks.wrong("device", "'cpu', 'cuda' or 'cuda:0'", device) + near) from error
    if chosen.type == "cpu":
        return torch.device("cpu")  # also for "cpu:0", which torch does not count as equal to "cpu"
    if chosen.type == "cuda":
        if not torch.cuda.is_available():
            words = native.cuda_answer()[2] if native.cuda_architectures else ""
            cause = words or "no GPU, or too old a driver"
            cause = "this torch is built without CUDA" if torch.version.cuda is None else cause
            raise ConfigError(f"device {str(device)!r}: torch finds no CUDA device here ({cause}); use device='cpu'")
        if chosen.index is None:
            chosen = torch.device("cuda", torch.cuda.current_device())
        elif chosen.index >= torch.cuda.device_count():
            raise ConfigError(f"device {str(device)!r}: there are {torch.cuda.device_count()} CUDA devices here")
        _check_kernels(chosen)
        return chosen
    raise DeviceError(
        f"device {str(device)!r}: fastagg has kernels for CPUs and CUDA devices alone, so no server can be there; "
        "use device='cpu'"
    )


def _check_kernels(device: torch.device) -> None:
    """Check that this build's kernels can run on a CUDA device that torch can use."""
    if not native.cuda_architectures:
        raise DeviceError(
            f"{device}: this build of fastagg has no CUDA kernels ({native.cuda_skipped}); install the wheel with "
            f"`1cuda` in its name, or in a clone, with nvcc, `{WITH_CUDA}`, or use device='cpu'"
        )
    devices, _, words = native.cuda_answer()
    if devices == 0:
        raise DeviceError(f"{device}: torch finds it, fastagg's own CUDA runtime does not: {words}")
    major, minor = native.cuda.compute_capability(device.index)
    if not _has_code(major, minor, native.cuda_architectures.split(","), native.cuda_ptx):
        raise DeviceError(
            f"{device}: compute capability {major}.{minor}, and this build has code for {native.cuda_architectures}; "
            f"build it with CMAKE_ARGS=-DFASTAGG_CUDA_ARCHITECTURES={major}{minor}"
        )


def _has_code(major: int, minor: int, built: list[str], ptx: str) -> bool:
    """Return whether a device of compute capability ``major.minor`` can run code for the capabilities ``built``.

    Code runs on devices with the same major number and the same or a larger minor number. Code with the letter a (90a)
    runs only on devices of exactly this capability. PTX, for the capability ``ptx`` (empty: there is none), runs on
    devices of the same or a larger capability."""
    card = 10 * major + minor
    numbers = [(int(arch.rstrip("af")), arch.endswith("a")) for arch in built]
    own = any(card == number if alone else number // 10 == major and number <= card for number, alone in numbers)
    return own or (bool(ptx) and card >= int(ptx))
