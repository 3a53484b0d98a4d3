"""examples/processes, pfl and appfl learn, and so do they without the difference that their pages show."""

import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("sklearn")

ROOT = Path(__file__).parents[2]
# By example: its page, the file that differs, and what runs it.
RUN = ROOT / "bench" / "simulators" / "appfl_agents.py"
EXAMPLES = {
    "processes": ("own.md", "train.py", ["train.py"]),
    "pfl": ("pfl.md", "train.py", ["train.py"]),
    "appfl": ("appfl.md", "config.yaml", [str(RUN), "run.py"]),
}


def original(name: str, program: str) -> str:
    """``program`` as it was before the difference on its page, which has ten lines at most on each side."""
    page = (ROOT / "docs" / "integrations" / EXAMPLES[name][0]).read_text()
    found = re.search(r"^```diff\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    assert found, "the page shows a difference"
    lines = found[1].splitlines()
    assert max(sum(line.startswith(sign) for line in lines) for sign in "+-") <= 10
    for part in "\n".join(lines).split("\n@@\n"):  # parts of the file
        new, old = ("\n".join(line[1:] for line in part.splitlines() if line[:1] in (" ", sign)) for sign in "+-")
        assert program.count(new) == 1, new
        program = program.replace(new, old)
    return program


@pytest.mark.slow
@pytest.mark.parametrize("before", [False, True], ids=["fastagg", "before"])
@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_learns_with_and_without_fastagg(name: str, before: bool, tmp_path: Path) -> None:
    if name != "processes" and importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed")
    folder = shutil.copytree(ROOT / "examples" / name, tmp_path / name)
    _, file, command = EXAMPLES[name]
    if before:
        program = original(name, (folder / file).read_text())
        assert "fastagg." not in program and "aggregator_path" not in program
        (folder / file).write_text(program)
    done = subprocess.run(
        [sys.executable, *command], cwd=folder, capture_output=True, text=True, timeout=300, check=False
    )
    found = re.search(r"^accuracy (\d+)%$", done.stdout, re.MULTILINE)
    assert found and int(found[1]) > 80, (done.stdout + done.stderr)[-3000:]
