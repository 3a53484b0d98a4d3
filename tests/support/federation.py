"""Flower's own processes on loopback, for tests: a SuperLink, SuperNodes, and `flwr run`."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
APP = ROOT / "examples" / "flower"
BIN = Path(sys.executable).parent
_QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "OMP_NUM_THREADS": "1", "NO_COLOR": "1"}


def free_port() -> int:
    """Return a port on which nobody listens."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Federation:
    """Processes in their own process groups. ``close`` ends all that are left.

    Args:
        folder: the folder for logs, Flower's home and a copy of the example app.
        simulated: run the simulation engine with this many virtual nodes instead of SuperNodes.
        app: an app to use instead of the example.
    """

    def __init__(self, folder: Path, simulated: int = 0, app: Path = APP) -> None:
        self.folder, self.port = folder, free_port()
        self.app = shutil.copytree(app, folder / "app", ignore=shutil.ignore_patterns("__pycache__"))
        home = folder / "home"
        home.mkdir()
        options = f"options.num-supernodes = {simulated}\n" if simulated else ""
        home.joinpath("config.toml").write_text(
            f'[superlink]\ndefault = "test"\n[superlink.test]\naddress = "127.0.0.1:{self.port}"\n'
            f"insecure = true\n{options}"
        )
        path = os.pathsep.join([str(BIN), os.environ["PATH"]])
        self.environment = {**os.environ, **_QUIET, "FLWR_HOME": str(home), "PATH": path}
        self._running: list[subprocess.Popen[bytes]] = []
        engine = ["--simulation"] if simulated else []
        self.link = self.start(
            "link", "flower-superlink", "--insecure", "--host", "127.0.0.1", "--port", str(self.port),
            "--disable-runtime-dependency-installation", *engine,
        )  # fmt: skip
        self.wait("link", "Application startup complete", 60)

    def start(self, name: str, *command: str) -> subprocess.Popen[bytes]:
        """Start a process. Its output goes to ``name``.log."""
        with open(self.folder / f"{name}.log", "ab") as log:
            process = subprocess.Popen(
                command, stdout=log, stderr=subprocess.STDOUT, env=self.environment, cwd=self.folder,
                start_new_session=True,
            )  # fmt: skip
        self._running.append(process)
        return process

    def node(self, part: int, parts: int, slow: float = 0.0) -> subprocess.Popen[bytes]:
        """Start a SuperNode with one part of the data. It sleeps ``slow`` seconds before it trains."""
        config = f"partition-id={part} num-partitions={parts} slow={slow}"
        return self.start(
            f"node{part}", "flower-supernode", "--insecure", "--superlink", f"127.0.0.1:{self.port}",
            "--host", "127.0.0.1", "--port", str(free_port()), "--node-config", config,
        )  # fmt: skip

    def run(self, name: str, **config: str | int | float) -> subprocess.Popen[bytes]:
        """Start `flwr run`. Its output and the ServerApp's go to ``name``.log."""
        values = " ".join(f"{key}={value!r}" for key, value in config.items())
        return self.start(name, "flwr", "run", str(self.app), "test", "--stream", "--run-config", values)

    def log(self, name: str) -> str:
        """Return the log so far."""
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def wait(self, name: str, words: str, seconds: float) -> str:
        """Wait until a log contains ``words``. Return the log."""
        until = time.monotonic() + seconds
        over = False
        while words not in self.log(name):
            if time.monotonic() > until or over:
                raise AssertionError(f"{words!r} did not come; {name}.log:\n{self.log(name)[-4000:]}")
            # A run that has ended writes nothing more. So this is checked before its log is read for the last time.
            over = any(process.poll() is not None for process in self._running if process.args[0] == "flwr")
            time.sleep(0.1)
        return self.log(name)

    def server_app(self) -> int:
        """Return the process id of the running ServerApp."""
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    words = (entry / "cmdline").read_bytes()
                    mine = str(self.folder).encode() in (entry / "environ").read_bytes()
                except OSError:
                    continue
                if mine and b"flwr-serverapp" in words:
                    return int(entry.name)
        raise AssertionError("no ServerApp is running")

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        """Kill the process and all that it started, at once."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(10)
        self._running.remove(process)

    def close(self) -> None:
        for process in reversed(list(self._running)):
            self.kill(process)
