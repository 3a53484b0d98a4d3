"""The files and the command of docs/tutorials/flower.md run as they stand there, in Flower's simulation engine."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import fastagg

pytest.importorskip("flwr")
pytest.importorskip("ray")
pytest.importorskip("sklearn")

PAGE = (Path(__file__).parents[2] / "docs" / "tutorials" / "flower.md").read_text()


def block(language: str, number: int = 0) -> str:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)[number]


def end_those_of(home: Path) -> None:
    """End the processes that `flwr run` has left behind: its SuperLink stays for the next run."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if f"FLWR_HOME={home}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                    os.kill(int(entry.name), signal.SIGKILL)
            except OSError:
                continue


@pytest.mark.slow
def test_the_tutorial_runs_as_it_stands_there_and_learns(tmp_path: Path) -> None:
    app, home = tmp_path / "app", tmp_path / "home"
    app.mkdir()
    (app / "pyproject.toml").write_text(block("toml"))
    (app / "app.py").write_text(block("py"))
    environment = {
        **os.environ, "FLWR_HOME": str(home), "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(Path(fastagg.__file__).parents[1]),
    }  # fmt: skip
    command = block("sh", 1).strip()
    assert command.startswith("flwr run")
    try:
        done = subprocess.run(
            ["bash", "-c", command], cwd=app, env=environment, capture_output=True, text=True, timeout=400, check=False
        )
    finally:
        end_those_of(home)
    said = dict(re.findall(r"^version (\d+): accuracy (\d+)%$", done.stdout + done.stderr, re.MULTILINE))
    assert done.returncode == 0 and set(said) == {"0", "10", "20"}, (done.stdout + done.stderr)[-3000:]
    assert int(said["0"]) < 30 and int(said["20"]) > 80
    assert fastagg.load(app / "server.pt").version == 20
