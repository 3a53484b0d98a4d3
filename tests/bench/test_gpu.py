"""The one command for a card (bench/gpu.sh), without one: what it would time, and that it fails if it tests nothing."""

import os
import subprocess

import pytest
from cases import CASES

import fastagg


def run(bench, folder, *stages, path=(), **environment):
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    own |= {"BUILD": str(folder), "PATH": os.pathsep.join([*map(str, path), own["PATH"]]), **environment}
    command = ["bash", str(bench / "gpu.sh"), *stages]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=own)


def test_it_times_every_case_and_preset_that_has_kernels_for_a_card(bench, tmp_path):
    done = run(bench, tmp_path, "list")
    assert done.returncode == 0, done.stdout + done.stderr
    timed = {case for case in CASES if f"[{case}-" in done.stdout}
    apart = (
        "ACE of",
        "server, ",
        "simulator",
        "distillation",
        "message",
        "quiet",
        "waiting",
    )  # no kernel, or its kin's
    missing = {name for name, case in CASES.items() if "cuda" in case.devices} - timed
    assert not {name for name in missing if not name.startswith(apart)}
    for large in ("robust round", "private round", "round in int8", "preset Krum", "preset HeLoCo", "arrival ACE int8"):
        assert f"[{large}-11200000-" in done.stdout and f"[{large}-110000000-" in done.stdout
    for size in (1000, 10_000, 100_000, 1_000_000, 11_200_000):
        assert f"[arrival FedBuff, M = 10-{size}-" in done.stdout
    presets = {name for name in fastagg.presets.__all__ if name != "FedEcho"}
    assert not {name for name in presets if f"[preset {name}" not in done.stdout}


def stub(folder, name, text):
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


@pytest.mark.parametrize(
    ("stubs", "reason"),
    [
        ({"nvidia-smi": "exit 9"}, "there is no card, or no driver"),
        ({"nvidia-smi": "echo 9.0", "nvcc": "exit 1"}, "nvcc does not compile"),
    ],
)
def test_a_build_without_kernels_is_a_failure(bench, tmp_path, stubs, reason):
    for name, text in stubs.items():
        stub(tmp_path, name, text)
    done = run(bench, tmp_path / "build", "build", "smoke", "tests", "sanitize", path=[tmp_path])
    lines = done.stdout.splitlines()
    assert done.returncode == 1 and len(lines) == 7 and reason in lines[0]
    assert all("failed" in line and "nothing was built" in line for line in lines[1:])


def test_tests_that_are_all_left_out_are_a_failure(bench, tmp_path):
    """The stages run, with a package that has no kernels."""
    if fastagg.build_info()["cuda_architectures"]:
        pytest.skip("this build has kernels, or emulates them")
    (tmp_path / "package").mkdir()
    done = run(bench, tmp_path, "tests", "sanitize", DRY="1")
    assert done.returncode == 1
    assert [line.count("no test has run") for line in done.stdout.splitlines()] == [1] * 5
