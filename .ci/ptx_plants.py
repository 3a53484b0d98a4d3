"""Check that the comparisons of CPU and CUDA find errors in PTX: .ci/ptx_plants.py TESTS PLANT...

A plant is FILE.ptx:KIND:NUMBER (tests/emulation/ptx/translate.py), with `=PATTERN` for the tests that run its kernel.
Each runs in a process of its own, which has torch from its parent. The test must fail or the process must end.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time

import hypothesis  # noqa: F401
import pytest
import torch  # noqa: F401

import fastagg  # noqa: F401


def found(tests: str, plant: str, pattern: str) -> str | None:
    """Return what the tests said, None if they passed."""
    with tempfile.TemporaryFile() as log:
        child = os.fork()
        if child == 0:
            for output in (1, 2):
                os.dup2(log.fileno(), output)
            os.environ["FASTAGG_PLANT"] = plant
            os._exit(pytest.main([tests, "-x", "-q", "--tb=line", "-p", "no:cacheprovider", "-k", pattern]))
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        log.seek(0)
        said = log.read().decode(errors="replace")
    if status > 1:  # neither a test that failed nor a signal, as from a wrong address
        sys.exit(f"{plant}: pytest ended with {status}:\n{said}")
    return said if status != 0 else None


def main(tests: str, plants: list[str]) -> None:
    missed, began = [], time.monotonic()
    for each in plants:
        plant, _, pattern = each.partition("=")
        if found(tests, plant, pattern) is None:
            missed.append(plant)
        print(f"{plant}: {'MISSED' if plant in missed else 'found'} ({time.monotonic() - began:.0f}s)", flush=True)
    print(f"{len(plants) - len(missed)} of {len(plants)} planted errors found")
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
