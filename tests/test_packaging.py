"""What pyproject.toml promises and what is tested are the same."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import fastagg
from fastagg import _extras
from fastagg.errors import MissingDependency

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
IMPORTED_AS = {"tomli-w": "tomli_w", "scikit-learn": "sklearn", "prometheus-client": "prometheus_client"}


def floors(requirements: list[str]) -> dict[str, tuple[int, ...]]:
    found = {}
    for requirement in requirements:
        if match := re.fullmatch(r"([\w.-]+)>=([\d.]+)", requirement):
            found[match[1]] = numbers(match[2])
    return found


def numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def test_version_citation_and_changes_agree() -> None:
    cited = re.search(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    heads = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert cited and cited[1] == PROJECT["version"] == next(head for head in heads if head != "Unreleased")


def test_the_core_needs_torch_and_numpy_alone() -> None:
    assert set(floors(PROJECT["dependencies"])) == {"torch", "numpy"}
    assert len(PROJECT["dependencies"]) == 2
    assert floors(PROJECT["dependencies"])["torch"] == fastagg._TORCH


@pytest.mark.parametrize(("there", "said"), [(None, "not installed"), ("2.5.1+cpu", "and here is 2.5.1")])
def test_a_torch_that_is_missing_or_old_is_named(there: str | None, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if there is None:
        monkeypatch.setattr(fastagg, "find_spec", lambda name: None)
    else:
        monkeypatch.setattr(torch, "__version__", there)
    with pytest.raises(MissingDependency, match=rf"needs torch 2.6 or newer, .*{said}"):
        fastagg._check_torch()


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="later Pythons refuse by themselves")
def test_a_second_interpreter_is_refused_by_name() -> None:
    code = "import _xxsubinterpreters as s; s.run_string(s.create(), 'import fastagg._build')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert "fastagg runs in a process's main interpreter only" in done.stderr


def test_a_compiler_that_is_not_there_is_named(tmp_path: Path) -> None:
    if shutil.which("cmake") is None or shutil.which("ninja") is None:
        pytest.skip("no cmake")
    line = ["cmake", "-G", "Ninja", "-S", ROOT, "-B", tmp_path]
    done = subprocess.run(line, env={**os.environ, "CXX": "no-such"}, capture_output=True, text=True, check=False)
    assert "CXX names 'no-such', and there is no such program" in " ".join(done.stderr.split())


def test_a_tree_that_cannot_be_written_is_compiled_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("scikit_build_core")
    monkeypatch.syspath_prepend(ROOT / "tools")
    import backend

    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(os, "access", lambda *_: False)
    folder = Path(backend._begin(None)["build-dir"])
    assert not folder.is_relative_to(ROOT)
    folder.rmdir()


def test_what_ci_installs_as_floors_are_the_floors() -> None:
    extras = PROJECT["optional-dependencies"]
    promised = floors(PROJECT["dependencies"] + extras["cli"] + extras["sim"] + extras["metrics"])
    lines = [line for line in (ROOT / ".ci" / "floors.txt").read_text().splitlines() if not line.startswith("#")]
    tested = {name: numbers(version) for name, version in (line.split("==") for line in lines)}
    assert set(tested) == set(promised)
    for name, version in promised.items():
        assert tested[name][: len(version)] == version and not any(tested[name][len(version) :]), name


def test_the_extras_that_are_checked_are_the_extras_that_are_installed() -> None:
    extras = PROJECT["optional-dependencies"]
    sim = extras["cli"] + extras["sim"]
    parts = ((_extras.CLI, extras["cli"]), (_extras.METRICS, extras["metrics"]), (_extras.RAY, extras["ray"]))
    for names, extra in ((_extras.SIM, sim), (_extras.SERVE, extras["cli"] + extras["serve"]), *parts):
        assert set(names) == {IMPORTED_AS.get(name, name) for name in floors(extra)}


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_extras, "find_spec", lambda name: None if name == "pydantic" else object())
    with pytest.raises(MissingDependency, match=r'the simulator needs pydantic,.*pip install "fastagg\[sim\]"'):
        _extras.require("the simulator", "sim", _extras.SIM)
    _extras.require("the command line", "cli", _extras.CLI)


NEED_AN_EXTRA: dict[str, Callable[[], object]] = {
    "metrics": lambda: fastagg.watch(fastagg.ASGD(torch.zeros(5), lr=0.1), object()),
    "privacy": lambda: fastagg.FedBuff(torch.zeros(4), privacy=fastagg.Gaussian(1.0, 1.0)).privacy_spent(1e-6),
    "transformers": lambda: fastagg.clients.trainer_callback(lambda update: torch.zeros(3), 1),
}


@pytest.mark.parametrize("extra", NEED_AN_EXTRA)
def test_what_needs_an_extra_says_so_when_it_is_called(extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_extras, "find_spec", lambda name: None)
    with pytest.raises(MissingDependency, match=extra):
        NEED_AN_EXTRA[extra]()


@pytest.mark.skipif(not shutil.which("cmake"), reason="needs cmake on PATH")
@pytest.mark.parametrize(
    "option, devices, environment, architectures",
    [
        ("CUDA=AUTO", "8.6\n9.0\n9.0", {}, "86;90"),
        ("CUDA=AUTO", None, {}, "no CUDA device was found"),
        ("CUDA=AUTO", "", {}, "no CUDA device was found"),
        ("CUDA=AUTO", "12.1", {}, "120"),  # newer than this nvcc: the driver translates its newest PTX
        ("CUDA=AUTO", "8.7", {}, "86"),
        ("CUDA=AUTO", "6.1", {}, ""),
        ("CUDA=OFF", "9.0", {}, "FASTAGG_CUDA=OFF"),
        ("CUDA=ON", None, {}, "80;86;90;120"),
        ("CUDA=ON", "8.6", {}, "80;86;90;120"),
        ("CUDA_ARCHITECTURES=90a", None, {}, "90a"),
        ("CUDA=AUTO", "8.6", {"CUDAARCHS": "80;90-real"}, "80;90"),
        ("CUDA=AUTO", "8.6", {"CUDAARCHS": "all-major"}, "80;86;90;120"),
        ("CUDA=ON", "8.6", {"CUDAARCHS": "native"}, "86"),
        ("CUDA=AUTO", None, {"TORCH_CUDA_ARCH_LIST": "5.2 8.0;9.0+PTX 12.0"}, "80;90;120"),
        ("CUDA=AUTO", "8.6", {"TORCH_CUDA_ARCH_LIST": "Hopper"}, "86"),
        ("CUDA=OFF", None, {"CUDAARCHS": "80"}, "FASTAGG_CUDA=OFF"),
    ],
)
def test_which_architectures_are_compiled(
    tmp_path: Path, option: str, devices: str | None, environment: dict[str, str], architectures: str
) -> None:
    """With a driver that lists these devices (None: there is no driver), and an nvcc that knows four architectures."""
    answers = {"nvcc": "compute_80\ncompute_86\ncompute_90\ncompute_120", "nvidia-smi": devices}
    for name, answer in answers.items():
        if answer is not None:
            (tmp_path / name).write_text(f"#!/bin/sh\ncat << END\n{answer}\nEND\n")
            (tmp_path / name).chmod(0o755)
    (tmp_path / "cat").symlink_to(shutil.which("cat") or "")
    command = [
        shutil.which("cmake") or "",
        "-DFASTAGG_CUDA=AUTO",
        f"-DFASTAGG_{option}",
        "-P",
        "cmake/architectures.cmake",
    ]
    cleared = {name: value for name, value in os.environ.items() if name not in ("CUDAARCHS", "TORCH_CUDA_ARCH_LIST")}
    found = subprocess.run(
        command,
        cwd=ROOT,
        env={**cleared, **environment, "PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    chosen, skipped = re.fullmatch(r"architectures: (.*); skipped: (.*)\n", found.stderr).groups()  # type: ignore[union-attr]
    assert architectures == (chosen or skipped)


@pytest.mark.parametrize("name", ["a b(&'$)", "a;b", "a#b", 'a"b'])
def test_a_checkout_may_have_any_path_or_it_is_named(name: str, tmp_path: Path) -> None:
    if shutil.which("cmake") is None or shutil.which("ninja") is None or shutil.which("c++") is None:
        pytest.skip("needs cmake, ninja and a compiler")
    pybind = pytest.importorskip("pybind11")
    here = tmp_path / name
    for folder in ("cmake", "csrc", "tests/native", "tests/emulation"):
        shutil.copytree(ROOT / folder, here / folder)
    shutil.copy(ROOT / "CMakeLists.txt", here)
    configure = ["cmake", "-G", "Ninja", "-S", here, "-B", here / "build", "-DFASTAGG_CUDA=OFF"]
    done = subprocess.run(
        [*configure, f"-Dpybind11_DIR={pybind.get_cmake_dir()}"], capture_output=True, text=True, check=False
    )
    if set(name) & set(';#"'):
        assert done.returncode != 0 and "Move it to another folder" in " ".join(done.stderr.split())
        return
    assert done.returncode == 0, done.stderr
    subprocess.run(["cmake", "--build", here / "build", "--target", "fastagg_digest"], check=True, capture_output=True)
    from fastagg._checkout import _sources

    assert _sources() in (here / "build" / "digest.cpp").read_text()
