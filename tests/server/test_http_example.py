"""examples/http: tasks and updates, every bad request by its status, posts that come twice, a restart."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import fastagg

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
pytest.importorskip("httpx")
from starlette.testclient import TestClient

SIZE = 20
TOKEN = {"Authorization": "Bearer secret"}
FLOATS = {"Content-Type": "application/x-float32", **TOKEN}


def example() -> Any:
    path = Path(__file__).parents[2] / "examples" / "http" / "server.py"
    spec = importlib.util.spec_from_file_location("http_example", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def service(folder: Path, **settings: Any) -> Any:
    return example().Service(
        str(folder), lambda: fastagg.FedBuff(torch.zeros(SIZE), buffer_size=2), "secret", **settings
    )


@pytest.fixture
def client(tmp_path: Path) -> Iterator[TestClient]:
    with TestClient(service(tmp_path / "a").app()) as found:
        yield found


def task(client: TestClient, name: str) -> tuple[str, np.ndarray]:
    found = client.get(f"/task/{name}", headers=TOKEN)
    assert found.status_code == 200
    return f"/update/{name}/{found.headers['x-task']}", np.frombuffer(found.content, np.float32)


def body(value: float = 1.0, dtype: Any = np.float32) -> bytes:
    return np.full(SIZE, value, dtype).tobytes()


def test_updates_are_applied_once_and_are_durable(client: TestClient) -> None:
    (ann, model), (bob, _) = task(client, "ann"), task(client, "bob")
    assert model.shape == (SIZE,) and not model.any()
    first = client.post(ann, content=body(), headers=FLOATS)
    assert first.status_code == 200 and first.json() == {"version": 0, "applied": False}
    assert client.post(ann, content=body(), headers=FLOATS).json() == first.json()  # again: it counts once
    half = {**FLOATS, "Content-Type": "application/x-float16"}
    assert client.post(bob, content=body(3.0, np.float16), headers=half).json()["version"] == 1
    assert (task(client, "ann")[1] == 2.0).all()
    assert client.get("/health").json()["version"] == 1


def test_health_is_503_on_a_full_disk(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    assert client.get("/health").status_code == 200
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=0))
    found = client.get("/health")
    assert found.status_code == 503 and not found.json()["open"] and "full" in found.json()["error"]


def test_every_bad_request_has_a_status_and_changes_nothing(client: TestClient) -> None:
    ann, _ = task(client, "ann")
    for url, content, headers, status in (
        (ann, body(), {**FLOATS, "Authorization": "Bearer other"}, 401),
        (ann, body(), {"Content-Type": "application/x-float32"}, 401),
        (ann, body(), {**FLOATS, "Content-Type": "text/plain"}, 415),
        (ann, body()[:-1], FLOATS, 400),
        (ann, body() + b"x", FLOATS, 413),
        (ann, iter([body()]), FLOATS, 411),
        (ann, body(float("nan")), FLOATS, 422),
        ("/update/ann/x", body(), FLOATS, 400),
        ("/update/ann/-1", body(), FLOATS, 400),
        ("/update/ann/5", body(), FLOATS, 410),
        (f"{ann}?num_samples=many", body(), FLOATS, 400),
        (f"{ann}?num_samples=-1", body(), FLOATS, 422),
        (ann.replace("/ann/", "/eve/"), body(), FLOATS, 409),
    ):
        found = client.post(url, content=content, headers=headers)
        assert found.status_code == status, (url, headers, found.text)
        assert found.json()["error"]
    assert client.get(ann, headers=TOKEN).status_code == 405
    assert client.get("/nothing").status_code == 404
    assert client.get("/task/" + "x" * 300, headers=TOKEN).status_code == 404
    assert client.post(ann, content=body(), headers=FLOATS).status_code == 200


def test_tasks_survive_a_restart_and_what_was_answered_is_answered_again(tmp_path: Path) -> None:
    with TestClient(service(tmp_path / "a").app()) as client:
        (ann, _), (bob, _) = task(client, "ann"), task(client, "bob")
        first = client.post(ann, content=body(), headers=FLOATS)
        assert first.status_code == 200
    with TestClient(service(tmp_path / "a").app()) as client:
        again = client.post(ann, content=body(), headers=FLOATS)
        assert again.status_code == 200 and again.json() == first.json()  # it counts once
        assert client.post(bob, content=body(), headers=FLOATS).json()["version"] == 1
        assert (task(client, "ann")[1] == 1.0).all()


def test_too_many_at_a_time_are_told_to_come_later(tmp_path: Path) -> None:
    with TestClient(service(tmp_path / "a", uploads=0).app()) as client:
        ann, _ = task(client, "ann")
        assert client.post(ann, content=body(), headers=FLOATS).status_code == 429
    with pytest.raises(SystemExit, match="a token is needed"):
        example().Service(str(tmp_path), lambda: None, "")


def test_versions_are_published_once_and_clients_are_sent_there(tmp_path: Path) -> None:
    put: list[tuple[int, bytes]] = []

    def publish(found: fastagg.Dispatch) -> str:
        if found.version == 1:
            raise OSError("the store is away")
        put.append((found.version, found.flat.numpy().tobytes()))
        return f"https://models.example.org/{found.incarnation}/{found.version}"

    with TestClient(service(tmp_path / "a", publish=publish).app(), follow_redirects=False) as client:
        for version in range(3):
            answers = [client.get(f"/task/{name}", headers=TOKEN) for name in ("ann", "bob")]
            sent = [answer.headers["x-task"] for answer in answers]
            if version == 1:  # it is not there, so the server sends it itself
                assert all(answer.status_code == 200 and len(answer.content) == 4 * SIZE for answer in answers)
            else:
                (where,) = {answer.headers["location"] for answer in answers}
                assert where.startswith("https://models.example.org/") and where.endswith(f"/{version}")
                assert all(answer.status_code == 303 and not answer.content for answer in answers)
            for name, name_of_task in zip(("ann", "bob"), sent, strict=True):
                url = f"/update/{name}/{name_of_task}"
                assert client.post(url, content=body(), headers=FLOATS).status_code == 200
    assert put == [(0, bytes(4 * SIZE)), (2, body(2.0))]


def test_the_commands_of_its_page_run_as_they_stand_there(tmp_path: Path) -> None:
    """The server, two clients that learn, and a client made of curl; the server is killed and started again."""
    pytest.importorskip("sklearn")
    pytest.importorskip("uvicorn")
    here = Path(__file__).parents[2] / "examples" / "http"
    shutil.copytree(here, tmp_path / "http")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    page = (here / "README.md").read_text().replace("8000", port)
    install, *lines = re.findall(r"^```bash\n(.*?)^```", page, re.DOTALL | re.MULTILINE)[0].splitlines()
    (curl,) = re.findall(r"^```bash\n(curl.*?)^```", page, re.DOTALL | re.MULTILINE)
    assert install.startswith("pip install") and lines[0] == "cd examples/http" and lines[-1] == "kill %1"
    export, server, ann, bob = lines[1:-1]
    again = "sleep 6; kill -9 $server; sleep 1"  # while ann and bob work
    script = [
        "set -e", export, server, "server=$!", ann, "ann=$!", f"{bob} &", "bob=$!", again, server, "server=$!",
        "trap 'kill $server' EXIT", "wait $ann", "wait $bob", curl,
    ]  # fmt: skip
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(Path(fastagg.__file__).parents[1])}
    environment["OMP_NUM_THREADS"] = "1"  # threads that wait for each other crawl on a busy machine
    done = subprocess.run(
        ["bash", "-c", "\n".join(script)],
        cwd=tmp_path / "http", env=environment, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    for name in ("ann", "bob"):
        found = [int(share) for share in re.findall(rf"{name}: version \d+ has accuracy (\d+)%", done.stdout)]
        assert len(found) >= 50 and found[-1] >= 80, found
        assert f"{name}: 50 updates counted" in done.stdout
    # Two updates make a version. Each counted once, although the server was killed meanwhile.
    assert '{"version":50,"applied":false}' in done.stdout


SCRIPT = """
import importlib.util, json, sys
import fastagg, torch
path, folder, port, settings = sys.argv[1:5]
settings = json.loads(settings)
spec = importlib.util.spec_from_file_location("http_example", path)
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
module.Connection.seconds = settings.pop("idle")
size = settings.pop("size")
make = lambda: fastagg.FedBuff(torch.zeros(size), buffer_size=1)
module.serve(module.Service(folder, make, "secret", **settings), int(port))
"""
LARGE = 4_000_000  # parameters, 16 MB, which no socket holds


class Served:
    """The example in a process of its own."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        path = Path(__file__).parents[2] / "examples" / "http" / "server.py"
        command = [sys.executable, "-c", SCRIPT, str(path), str(folder), str(self.port), json.dumps(settings)]
        environment = {**os.environ, "PYTHONPATH": str(Path(fastagg.__file__).parents[1])}
        self.process = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
        self.until(lambda: self.health()["open"])

    def health(self) -> Any:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=10) as answer:
            return json.load(answer)

    def until(self, true: Callable[[], bool]) -> None:
        for _ in range(600):
            with contextlib.suppress(OSError):
                if true():
                    return
            time.sleep(0.1)
        raise AssertionError("it never came true")

    def resident(self) -> int:
        """Bytes of memory that it has."""
        (found,) = re.findall(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{self.process.pid}/status").read_text())
        return 1024 * int(found)

    def begin(self, head: str, body: bytes = b"") -> socket.socket:
        """Send the beginning of a request, and read nothing."""
        found = socket.create_connection(("127.0.0.1", self.port), timeout=60)
        found.sendall(f"{head}\r\nHost: here\r\nAuthorization: Bearer secret\r\n\r\n".encode() + body)
        return found

    def stalled(self, name: str) -> socket.socket:
        """Ask for a task, wait until its model comes, and read nothing of it."""
        found = self.begin(f"GET /task/{name} HTTP/1.1")
        assert found.recv(1, socket.MSG_PEEK)
        return found


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Callable[..., Served]]:
    with contextlib.ExitStack() as stack:

        def begin(**settings: Any) -> Served:
            found = Served(tmp_path / "a", **settings)
            stack.callback(found.process.wait)
            stack.callback(found.process.kill)
            return found

        yield begin


def rest_of(connection: socket.socket) -> bytes:
    """Read until the server closes."""
    found = bytearray()
    with contextlib.suppress(ConnectionResetError):
        while piece := connection.recv(1 << 20):
            found += piece
    return bytes(found)


def test_clients_that_read_nothing_share_one_model_and_do_not_keep_it_from_ending(
    served: Callable[..., Served],
) -> None:
    server = served(size=LARGE, idle=600.0)
    server.stalled("first").close()
    before = server.resident()
    connections = [server.stalled(f"client{number}") for number in range(30)]
    assert server.health()["downloads"] >= 30
    assert server.resident() - before < 2 * 4 * LARGE
    whole = server.stalled("another")  # who reads, gets it meanwhile
    head, _, body = rest_of_length(whole).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200") and len(body) == 4 * LARGE
    server.process.terminate()
    assert server.process.wait(timeout=20) == -signal.SIGTERM
    assert all(len(rest_of(connection)) < 4 * LARGE for connection in connections)


def rest_of_length(connection: socket.socket) -> bytes:
    """Read an answer whose length its head says."""
    found = bytearray()
    while b"\r\n\r\n" not in found:
        found += connection.recv(1 << 16)
    length = int(re.findall(rb"content-length: (\d+)", bytes(found).lower())[0])
    length += found.index(b"\r\n\r\n") + 4
    while len(found) < length:
        found += connection.recv(1 << 20)
    return bytes(found)


def test_whoever_brings_and_takes_nothing_is_cut(served: Callable[..., Served]) -> None:
    server = served(size=LARGE, idle=0.5)
    half = socket.create_connection(("127.0.0.1", server.port), timeout=60)
    half.sendall(b"GET /ta")
    assert rest_of(half) == b""
    slow = server.stalled("slow")
    server.until(lambda: server.health()["downloads"] == 0)
    assert len(rest_of(slow)) < 4 * LARGE
    with asked(server, "ann") as answer:
        url = f"/update/ann/{answer.headers['X-Task']}"
    types = "Content-Type: application/x-float32\r\nContent-Length"
    stopped = server.begin(f"POST {url} HTTP/1.1\r\n{types}: {4 * LARGE}", bytes(70_000))
    assert rest_of(stopped) == b""
    head = "POST /update/slow/1 HTTP/1.1\r\nContent-Type: text/plain\r\nContent-Length: 1000000"
    assert rest_of(server.begin(head, b"x")).startswith(b"HTTP/1.1 415")  # and the rest never comes


def test_slow_downloads_end_and_those_of_many_versions_are_refused(served: Callable[..., Served]) -> None:
    server = served(size=LARGE, idle=600.0, versions=2, seconds=5.0, slowest=1e12)
    post = f"http://127.0.0.1:{server.port}/update/"
    slow = []
    for number in range(2):
        slow.append(server.stalled(f"slow{number}"))
        with asked(server, f"quick{number}") as answer:
            assert answer.status == 200
            url = f"{post}quick{number}/{answer.headers['X-Task']}"
            answer.read()
        request = urllib.request.Request(url, bytes(4 * LARGE), FLOATS)
        with urllib.request.urlopen(request, timeout=60) as answer:
            assert json.load(answer)["version"] == number + 1
    with pytest.raises(urllib.error.HTTPError) as refused, asked(server, "third"):
        pass
    assert refused.value.code == 503 and refused.value.headers["Retry-After"]
    server.until(lambda: server.health()["downloads"] == 0)
    with asked(server, "third") as answer:
        assert answer.headers["X-Version"] == "2"


def asked(server: Served, name: str) -> Any:
    url = f"http://127.0.0.1:{server.port}/task/{name}"
    return urllib.request.urlopen(urllib.request.Request(url, headers=TOKEN), timeout=60)
