"""examples/http: tasks and updates, every bad request by its status, posts that come twice, a restart."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fastagg

pytest.importorskip("starlette")
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
    return f"/update/{name}/{found.headers['x-version']}?incarnation={found.headers['x-incarnation']}", np.frombuffer(
        found.content, np.float32
    )


def body(value: float = 1.0, dtype: Any = np.float32) -> bytes:
    return np.full(SIZE, value, dtype).tobytes()


def test_updates_are_applied_once_and_are_durable(client: TestClient) -> None:
    (ann, model), (bob, _) = task(client, "ann"), task(client, "bob")
    assert model.shape == (SIZE,) and not model.any()
    first = client.post(ann, content=body(), headers=FLOATS)
    assert first.status_code == 200 and first.json() == {"version": 0, "applied": False, "delay": 0, "durable": True}
    assert client.post(ann, content=body(), headers=FLOATS).json() == first.json()  # again: it counts once
    half = {**FLOATS, "Content-Type": "application/x-float16"}
    assert client.post(bob, content=body(3.0, np.float16), headers=half).json()["version"] == 1
    assert (task(client, "ann")[1] == 2.0).all()
    assert client.get("/health").json()["version"] == 1


def test_every_bad_request_has_a_status_and_changes_nothing(client: TestClient) -> None:
    ann, _ = task(client, "ann")
    path = ann.partition("?")[0]
    for url, content, headers, status in (
        (ann, body(), {**FLOATS, "Authorization": "Bearer other"}, 401),
        (ann, body(), {"Content-Type": "application/x-float32"}, 401),
        (ann, body(), {**FLOATS, "Content-Type": "text/plain"}, 415),
        (ann, body()[:-1], FLOATS, 400),
        (ann, body() + b"x", FLOATS, 413),
        (ann, iter([body()]), FLOATS, 411),
        (ann, body(float("nan")), FLOATS, 422),
        (path, body(), FLOATS, 400),
        (f"{path}?incarnation=-1", body(), FLOATS, 400),
        (f"{path}?incarnation=5", body(), FLOATS, 410),
        (f"{ann}&num_samples=many", body(), FLOATS, 400),
        (f"{ann}&num_samples=-1", body(), FLOATS, 422),
        (ann.replace("ann/0", "ann/x"), body(), FLOATS, 400),
        (ann.replace("ann/0", "ann/7"), body(), FLOATS, 409),
        (ann.replace("/ann/", "/eve/"), body(), FLOATS, 404),
    ):
        found = client.post(url, content=content, headers=headers)
        assert found.status_code == status, (url, headers, found.text)
        assert found.json()["error"]
    assert client.get(ann, headers=TOKEN).status_code == 405
    assert client.get("/nothing").status_code == 404
    assert client.get("/task/" + "x" * 300, headers=TOKEN).status_code == 404
    assert client.post(ann, content=body(), headers=FLOATS).status_code == 200


def test_tasks_survive_a_restart_and_what_was_answered_is_not_taken_again(tmp_path: Path) -> None:
    with TestClient(service(tmp_path / "a").app()) as client:
        (ann, _), (bob, _) = task(client, "ann"), task(client, "bob")
        assert client.post(ann, content=body(), headers=FLOATS).status_code == 200
    with TestClient(service(tmp_path / "a").app()) as client:
        assert client.post(ann, content=body(), headers=FLOATS).status_code == 409
        assert client.post(bob, content=body(), headers=FLOATS).json()["version"] == 1
        assert (task(client, "ann")[1] == 1.0).all()


def test_too_many_at_a_time_are_told_to_come_later(tmp_path: Path) -> None:
    with TestClient(service(tmp_path / "a", uploads=0).app()) as client:
        ann, _ = task(client, "ann")
        assert client.post(ann, content=body(), headers=FLOATS).status_code == 429
    with pytest.raises(SystemExit, match="a token is needed"):
        example().Service(str(tmp_path), lambda: None, "")


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
    done = subprocess.run(
        ["bash", "-c", "\n".join(script)],
        cwd=tmp_path / "http", env=environment, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    counted = 0
    for name in ("ann", "bob"):
        found = [int(share) for share in re.findall(rf"{name}: version \d+ has accuracy (\d+)%", done.stdout)]
        assert len(found) >= 3 and found[-1] >= 80, found
        counted += int(re.findall(rf"{name}: (\d+) updates counted", done.stdout)[0])
    version = int(re.findall(r'\{"version":(\d+),"applied":\w+,"delay":0,"durable":true\}', done.stdout)[-1])
    # Two updates make a version. An acknowledged one is never lost; one that was not may have counted all the same.
    assert (counted + 1) // 2 <= version <= (counted + 1) // 2 + 1
