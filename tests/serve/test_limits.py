"""Limits that hold whatever the other side does: answers to whoever still sends, silent and half-open connections, slow
transfers, a restored backup, and who has to wait."""

import contextlib
import json
import resource
import signal
import socket
import threading
import time
import urllib.error
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
pytest.importorskip("safetensors")
pytest.importorskip("prometheus_client")
from support.served import TOKEN, Breeder, Serve, certificate_in, rest_of, rest_of_answer

from fastagg.clients import HttpClient
from fastagg.serve.connection import FAIR, SPARE

SIZES = [250_000, 4_000_000, 25_000_000]  # parameters: 1, 16 and 100 MB
LARGE = 4_000_000
FLOATS = "Content-Type: application/x-float32"
MANY = 600


@pytest.fixture(autouse=True)
def files() -> Iterator[None]:
    """Let this process have many sockets."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(before[0], min(before[1], 8192)), before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def client_of(server: Breeder, name: str, **settings: object) -> HttpClient:
    return HttpClient(server.url, name, TOKEN, **{"patience": 60, "timeout": 30, **settings})


def posted(server: Breeder, path: str, nbytes: int, seconds: float = 0.0, *, token: str = TOKEN,
           head: str = FLOATS, length: str = "") -> tuple[int, bytes]:  # fmt: skip
    """Post zeros as urllib does: all of them first, in so many seconds, then the answer is read. Return its status and
    its body."""
    connection = server.begin(
        f"POST {path} HTTP/1.1\r\nConnection: close\r\n{head}\r\n{length or f'Content-Length: {nbytes}'}", token=token
    )
    piece = bytes(max(nbytes // 64, 1))
    for sent in range(0, nbytes, len(piece)):
        connection.sendall(piece[: nbytes - sent])
        time.sleep(seconds / 64)
    answer = rest_of(connection)
    assert answer, (path, nbytes, seconds)
    return int(answer.split()[1]), answer.partition(b"\r\n\r\n")[2]


def seconds_of(server: Breeder, path: str) -> float:
    """How long a request takes that is answered with 200."""
    begun = time.monotonic()
    server.get(path)
    return time.monotonic() - begun


def test_whoever_sends_all_of_a_body_gets_an_answer_that_was_known_before(serve: Serve) -> None:
    server = serve(SIZES, "--parts", 3)
    ann, paths = client_of(server, "ann"), {}
    for part, array in enumerate(ann.layout["parts"]):
        size = array[0][2][0]
        ann.task(part)
        paths[4 * size] = f"/update/ann/{ann._tasks[part].id}?part={part}"
        assert ann.send(torch.ones(size), part) == {"version": 1, "applied": True}
    for nbytes, path in paths.items():
        for seconds in (0.0, 1.0):
            status, said = posted(server, path, nbytes, seconds)
            assert (status, json.loads(said)) == (200, {"version": 1, "applied": True})  # it counts once
            assert posted(server, path, nbytes, seconds, token="another-token-of-16")[0] == 401
    nbytes = 4 * LARGE
    path = paths[nbytes]
    number, of = path.split("/")[3].split("?")
    for status, other in (
        (403, {"path": f"/update/bob/{number}?{of}"}), (404, {"path": path.replace(of, "part=9")}),
        (404, {"path": "/nothing"}), (405, {"path": "/model"}), (405, {"path": "/health"}),
        (410, {"path": f"/update/ann/5?{of}"}), (400, {"path": path.replace(of, "part=x")}),
        (413, {"nbytes": nbytes + 4}), (400, {"nbytes": nbytes - 4}), (415, {"head": "Content-Type: text/plain"}),
        (415, {"head": f"{FLOATS}\r\nContent-Encoding: gzip"}), (414, {"path": f"{path}&x={'x' * 5000}"}),
    ):  # fmt: skip
        assert posted(server, **{"path": path, "nbytes": nbytes, **other})[0] == status
    assert server.number("fastagg_version") == 3
    log = server.log.read_text()
    assert "again: AlreadyCounted" in log and "refused: AlreadyCounted" not in log
    assert max(map(len, log.splitlines())) < 1000 and "Traceback" not in log


def test_a_body_that_is_no_chunk_ends_its_connection_and_nothing_else(serve: Serve) -> None:
    server = serve([100])
    for token in (TOKEN, "x" * 16):
        bad = server.begin(f"POST /update/ann/5 HTTP/1.1\r\n{FLOATS}\r\nTransfer-Encoding: chunked", token=token)
        time.sleep(0.3)
        bad.sendall(b"this is no chunk\r\n" * 10)
        assert rest_of(bad).startswith((b"HTTP/1.1 4", b""))
    assert b"version" in server.get("/health") and "Traceback" not in server.log.read_text()


@pytest.mark.parametrize(
    ("count", "limit", "said"),
    [
        (MANY, None, b"GET /ta"),
        (1500, 1024, b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n"),
    ],
    ids=["half a head", "half a body"],
)
def test_connections_that_stay_silent_keep_nobody_out(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, count: int, limit: int | None, said: bytes
) -> None:
    monkeypatch.setenv("IDLE", "3")
    server = serve([1000], files=limit)
    silent = []
    for _ in range(count):
        silent.append(socket.create_connection(("127.0.0.1", server.port), timeout=60))
        silent[-1].sendall(said)
    ann = client_of(server, "ann", patience=5, timeout=5)
    for _ in range(3):
        assert seconds_of(server, "/health") < 5 and seconds_of(server, "/model") < 5
        ann.task()
        ann.send(torch.ones(1000))
    assert len(list(Path(f"/proc/{server.pid}/fd").iterdir())) < (limit or 512 + SPARE + 100)
    text = server.log.read_text()
    assert "Traceback" not in text and text.count("\n") < 2 * count + 100
    begun = time.monotonic()
    for connection in silent[-10:]:  # the last ones are cut in a while, too
        rest_of(connection)
    assert time.monotonic() - begun < 10
    for connection in silent:
        connection.close()


def test_handshakes_that_do_not_end_keep_nobody_out(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate, key = certificate_in(tmp_path)
    server = serve([1000], "--certificate", certificate, "--key", key, trusted=certificate)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    hello = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"  # the beginning of a ClientHello
    for said in (b"GET / HTTP/1.1\r\n\r\n", hello):
        half = [socket.create_connection(("127.0.0.1", server.port), timeout=60) for _ in range(MANY)]
        with contextlib.suppress(OSError):
            for connection in half:
                connection.sendall(said)
        for _ in range(3):
            assert seconds_of(server, "/health") < 5
            client_of(server, "ann", patience=10, timeout=5).task()
        begun = time.monotonic()
        rest_of(half[-1])
        assert time.monotonic() - begun < 15
        for connection in half:
            connection.close()
    assert "Traceback" not in server.log.read_text()
    begun = time.monotonic()
    server.end(signal.SIGTERM)
    assert time.monotonic() - begun < 10


def test_health_is_answered_while_no_other_request_is(serve: Serve) -> None:
    server = serve([1000], files=400)
    busy = [server.begin("GET /model?after=0&wait=60 HTTP/1.1") for _ in range(250)]  # more than 400 files allow
    server.until(lambda: '" 503\n' in server.log.read_text())
    assert all(seconds_of(server, path) < 5 for path in ("/health", "/ready") for _ in range(5))
    with pytest.raises(urllib.error.HTTPError, match="503") as refused:
        server.get("/model")
    assert refused.value.headers["Retry-After"] == "1"
    for connection in busy:
        connection.close()
    server.until(lambda: bool(server.get("/model")))


def test_slow_downloads_of_many_versions_keep_nobody_waiting(serve: Serve) -> None:
    """Eight stand still, another is slow and steady. Memory is for four versions, and no request is refused."""
    server = serve([LARGE], "--reading", 4 * 4 * LARGE / 1e6, "--set", "max_clients=100")
    ann = client_of(server, "ann", patience=5)
    connections, steady = [], bytearray()

    def read_steadily() -> None:
        connection = server.begin("GET /task/steady HTTP/1.1\r\nConnection: close")
        while piece := connection.recv(1 << 20):
            steady.extend(piece)
            time.sleep(len(piece) / 2e6)

    reader = threading.Thread(target=read_steadily)
    for version in range(8):
        connections.append(server.stalled(f"slow{version}"))
        ann.task()
        assert ann.send(torch.ones(LARGE))["version"] == version + 1
        assert server.number("fastagg_serve_downloads") <= 5  # two of one version among them
        if version == 1:
            time.sleep(FAIR)
            reader.start()
        time.sleep(2)
    reader.join(60)
    assert steady.startswith(b"HTTP/1.1 200") and len(steady) > 4 * LARGE
    assert '" 503\n' not in server.log.read_text()
    for connection in connections[:4]:
        assert len(rest_of(connection)) < 4 * LARGE  # it was cut
    assert torch.equal(ann.task(), torch.full((LARGE,), 8.0))


def test_slow_uploads_keep_nobody_waiting(serve: Serve) -> None:
    server = serve([LARGE], "--uploads", 3, "--set", "max_clients=100")
    slow = []
    for number in range(3):
        client = client_of(server, f"slow{number}")
        client.task()
        head = f"POST /update/slow{number}/{client._tasks[0].id} HTTP/1.1\r\n{FLOATS}\r\nContent-Length: {4 * LARGE}"
        slow.append(server.begin(head, bytes(100 * number + 70_000)))
    time.sleep(FAIR + 0.5)
    ann = client_of(server, "ann", patience=10)
    ann.task()
    assert ann.send(torch.ones(LARGE))["version"] == 1
    assert rest_of_answer(slow[0]).startswith(b"HTTP/1.1 408")  # the slowest
    slow[2].sendall(bytes(4 * LARGE - 70_200))
    assert rest_of_answer(slow[2]).startswith(b"HTTP/1.1 200")
