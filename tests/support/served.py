"""Servers of ``fastagg serve`` in processes of their own. One process has imported everything, and forks them, so that
a start takes a moment."""

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
import traceback
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

TOKEN = "a-token-of-the-operator"
Serve = Callable[..., "Breeder"]


class Breeder:
    """Starts servers. ``trusted``: the certificate of a server with TLS. What they log is in ``log``."""

    def __init__(self, model: Path, folder: Path, *options: object, trusted: Path | None = None) -> None:
        import fastagg

        here = Path(__file__).parents[1]
        paths = os.pathsep.join([str(here), str(Path(fastagg.__file__).parents[1])])
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.context = None if trusted is None else ssl.create_default_context(cafile=str(trusted))
        self.url = f"http{'s' if trusted else ''}://127.0.0.1:{self.port}"
        self.line = ["serve", model, "--folder", folder, "--port", self.port, *options]
        self.pid, self.log = 0, model.parent / "log"
        with open(self.log, "ab") as log:
            self.breeder = subprocess.Popen(
                [sys.executable, "-P", str(here / "support/served.py")], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=log, text=True, env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
            )  # fmt: skip

    def start(self) -> None:
        """Start a server, and wait until it answers."""
        assert self.breeder.stdin is not None and self.breeder.stdout is not None
        self.breeder.stdin.write(json.dumps([str(word) for word in self.line]) + "\n")
        self.breeder.stdin.flush()
        self.pid = int(self.breeder.stdout.readline())
        self.until(lambda: bool(self.get("/health")))

    def end(self, how: signal.Signals = signal.SIGKILL) -> int:
        """Send a signal, wait until the server has ended, and return its exit code."""
        assert self.breeder.stdout is not None
        os.kill(self.pid, how)
        return int(self.breeder.stdout.readline())

    def get(self, path: str, token: str = TOKEN) -> bytes:
        request = urllib.request.Request(self.url + path, headers={"Authorization": f"Bearer {token}"})
        with urllib.request.urlopen(request, timeout=30, context=self.context) as answer:
            found: bytes = answer.read()
        return found

    def until(self, true: Callable[[], bool]) -> None:
        for _ in range(1200):
            with contextlib.suppress(OSError):
                if true():
                    return
            time.sleep(0.05)
        raise AssertionError("it never came true")

    def number(self, metric: str) -> float:
        """A metric's value, all parts together."""
        return sum(map(float, re.findall(rf"^{metric}(?:{{.*}})? (\S+)$", self.get("/metrics").decode(), re.MULTILINE)))

    def resident(self) -> int:
        """Bytes of memory that the server has."""
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * 4096

    def begin(self, head: str, body: bytes = b"", token: str = TOKEN) -> socket.socket:
        """Send the beginning of a request, and read nothing."""
        found = socket.create_connection(("127.0.0.1", self.port), timeout=60)
        found.sendall(f"{head}\r\nHost: here\r\nAuthorization: Bearer {token}\r\n\r\n".encode() + body)
        return found

    def stalled(self, name: str) -> socket.socket:
        """Ask for a task, wait until its model comes, and read nothing of it."""
        connection = self.begin(f"GET /task/{name} HTTP/1.1")
        assert connection.recv(1, socket.MSG_PEEK)
        return connection

    def close(self) -> None:
        with contextlib.suppress(OSError):
            os.kill(self.pid or self.breeder.pid, signal.SIGKILL)
        self.breeder.kill()
        self.breeder.wait()
        for pipe in (self.breeder.stdin, self.breeder.stdout):
            assert pipe is not None
            pipe.close()


def breed() -> None:
    """For every line of stdin, a command, start a process that runs it. Write its number, and how it has ended."""
    import safetensors.torch  # noqa: F401
    import uvicorn  # noqa: F401

    import fastagg.serve.service  # noqa: F401
    from fastagg.cli.app import app
    from fastagg.serve.connection import Connection

    Connection.seconds = float(os.environ.get("IDLE", Connection.seconds))
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            try:
                app(json.loads(line))
            except BaseException:
                traceback.print_exc()
            os._exit(1)
        print(child, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


def rest_of(connection: socket.socket) -> bytes:
    """Read until the server closes."""
    found = bytearray()
    with contextlib.suppress(ConnectionResetError):
        while piece := connection.recv(1 << 20):
            found += piece
    return bytes(found)


def rest_of_answer(connection: socket.socket) -> bytes:
    """Read an answer whose length its head says."""
    found = bytearray()
    while b"\r\n\r\n" not in found:
        found += connection.recv(1 << 16)
    length = int(re.findall(rb"content-length: (\d+)", bytes(found).lower())[0])
    length += found.index(b"\r\n\r\n") + 4
    while len(found) < length:
        found += connection.recv(1 << 20)
    return bytes(found)


def certificate_in(folder: Path) -> tuple[Path, Path]:
    """Make a certificate for 127.0.0.1. Return its file and its key's."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl")
    certificate, key = folder / "certificate", folder / "key"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", certificate, "-days", "2",
         "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"], check=True, capture_output=True,
    )  # fmt: skip
    return certificate, key


def write_model(path: Path, **arrays: Any) -> Path:
    """Write a model of these arrays."""
    from safetensors.torch import save_file

    save_file(arrays, path)
    return path


if __name__ == "__main__":
    breed()
