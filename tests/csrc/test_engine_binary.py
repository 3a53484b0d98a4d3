"""The engine without an interpreter: its own binary passes, and names no Python."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.slow  # it builds the engine once more


def run(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


@pytest.fixture(scope="module")
def binary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not (ROOT / "CMakeLists.txt").exists():
        pytest.skip("the sources are not here")
    if missing := [tool for tool in ("cmake", "ninja", "c++") if shutil.which(tool) is None]:
        pytest.skip(f"needed to build the engine, and not found: {', '.join(missing)}")
    build = tmp_path_factory.mktemp("engine")
    run("cmake", "-G", "Ninja", ROOT, "-DFASTAGG_MODULE=OFF", "-DFASTAGG_CUDA=OFF", cwd=build)
    run("cmake", "--build", ".", "--target", "fastagg_engine_tests", cwd=build)
    return build / "fastagg_engine_tests"


@pytest.mark.parametrize("part", ["allocations", "threads", "bytes"])
def test_a_part_passes(binary: Path, part: str) -> None:
    assert f"{part}: ok" in run(binary, part, cwd=binary.parent)


@pytest.mark.parametrize("tool", [("nm", "-C"), ("ldd",)])
def test_it_names_no_python(binary: Path, tool: tuple[str, ...]) -> None:
    if shutil.which(tool[0]) is None:
        pytest.skip(f"needed to read the binary, and not found: {tool[0]}")
    shown = run(*tool, binary, cwd=binary.parent)
    assert "libc" in shown or "fastagg::engine" in shown  # it has been read
    assert not re.search(r"\bPy[A-Z]\w+|_Py_|pybind11|libpython", shown)
