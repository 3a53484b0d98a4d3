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


def run(app: Path, home: Path) -> str:
    """Run the page's command in a folder. Return what it prints. Its SuperLink stays, in the first run's folder."""
    environment = {
        **os.environ, "FLWR_HOME": str(home), "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(Path(fastagg.__file__).parents[1]),
    }  # fmt: skip
    command = block("sh", 1).strip()
    assert command.startswith("flwr run")
    done = subprocess.run(
        ["bash", "-c", command], cwd=app, env=environment, capture_output=True, text=True, timeout=400, check=False
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    return done.stdout + done.stderr


@pytest.mark.slow
def test_the_tutorial_runs_as_it_stands_there_and_learns(tmp_path: Path) -> None:
    """From an empty folder, then as another app in another folder on the same SuperLink, and once more in the first."""
    home = tmp_path / "home"
    for name in ("digits", "others"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "pyproject.toml").write_text(block("toml").replace('"digits"', f'"{name}"'))
        (tmp_path / name / "app.py").write_text(block("py"))
    try:
        for name in ("digits", "others", "digits"):
            printed = run(tmp_path / name, home)
            said = dict(re.findall(r"^version (\d+): accuracy (\d+)%$", printed, re.MULTILINE))
            assert set(said) == {"0", "10", "20"} and int(said["0"]) < 30 and int(said["20"]) > 80
            [where] = set(re.findall(rf"Flower app 'me/{name}' in .*: checkpoint (\S+)", printed))
            assert Path(where).parent.parent == home / "apps" and fastagg.load(where).version == 20
            again = name == "digits" and "others" in str([*home.glob("apps/me.*")])
            assert (f"{where} is finished: 20 of num_rounds=20" in printed) == again
    finally:
        end_those_of(home)
