"""HttpClient against a server that loses requests and answers, and refuses."""

import json
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
import pytest
import torch

import fastagg

MODEL = np.arange(5, dtype=np.float32)
Say = Callable[[BaseHTTPRequestHandler], None]


def says(status: int, body: bytes = b"", /, **headers: str) -> Say:
    def say(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        for name, value in {"Content_Length": str(len(body)), **headers}.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.end_headers()
        handler.wfile.write(body)

    return say


def gone(handler: BaseHTTPRequestHandler) -> None:
    handler.connection.shutdown(socket.SHUT_RDWR)


TASK = says(200, MODEL.tobytes(), X_Task="7-1", X_Version="7")
COUNTED = says(200, b'{"version": 8, "applied": true}')
PARTS = says(200, b'{"size": 5, "kind": "delta", "parts": [[["a", 0, [5]]]]}')


class Scripted:
    """Answers each request with the next line of a script, and keeps what came."""

    def __init__(self, *script: Say) -> None:
        self.script, self.seen = list(script), []  # type: tuple[list[Say], list[tuple[str, Any, bytes]]]
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                outer.seen.append((self.path, self.headers, body))
                outer.script.pop(0)(self)
                self.close_connection = True

            do_POST = do_GET

            def log_message(self, *given: Any) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}"
        threading.Thread(target=self.http.serve_forever, args=(0.01,), daemon=True).start()


Begin = Callable[..., Scripted]


@pytest.fixture
def begin() -> Iterator[Begin]:
    begun: list[Scripted] = []

    def make(*script: Say) -> Scripted:
        begun.append(Scripted(*script))
        return begun[-1]

    yield make
    for one in begun:
        one.http.shutdown()
        one.http.server_close()


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    found: list[float] = []
    monkeypatch.setattr("fastagg.clients.http.time.sleep", found.append)
    return found


def client(server: Scripted, **settings: Any) -> fastagg.clients.HttpClient:
    return fastagg.clients.HttpClient(server.url + "/", "eve/1", "secret", **settings)


def test_what_is_not_answered_is_sent_again(begin: Begin, slept: list[float]) -> None:
    short = says(200, MODEL.tobytes()[:9], X_Task="7-1", X_Version="7", Content_Length="20")
    server = begin(
        gone, PARTS, gone, says(503, b"", Retry_After="9"), short, TASK,
        gone, says(429), says(408), gone, says(500), COUNTED,
    )  # fmt: skip
    eve = client(server, num_samples=3)
    assert torch.equal(eve.task(), torch.from_numpy(MODEL)) and eve.version == 7
    update = torch.ones(5, dtype=torch.float64)
    assert eve.send(update) == {"version": 8, "applied": True}
    paths = ["/parts"] * 2 + ["/task/eve%2F1?part=0"] * 4 + ["/update/eve%2F1/7-1?part=0&num_samples=3"] * 6
    assert [path for path, *_ in server.seen] == paths
    assert {body for _, _, body in server.seen[6:]} == {np.ones(5, np.float32).tobytes()}
    assert all(headers["Authorization"] == "Bearer secret" for _, headers, _ in server.seen)
    assert all(headers["Content-Type"] == "application/x-float32" for _, headers, _ in server.seen[6:])
    limits = [0.5, 0.5, 9.0, 2.0, 0.5, 1.0, 2.0, 4.0, 8.0]
    assert all(limit / 2 <= pause <= limit for limit, pause in zip(limits, slept, strict=True)) and slept[2] == 9.0


def test_a_model_that_the_server_keeps_in_bf16_comes_so(begin: Begin) -> None:
    half = torch.from_numpy(MODEL).bfloat16()
    sent = half.view(torch.uint8).numpy().tobytes()
    task = says(200, sent, X_Task="7-1", X_Version="7", Content_Type="application/x-bfloat16")
    found = client(begin(PARTS, task)).task()
    assert found.dtype is torch.float32 and torch.equal(found, half.float())


def test_it_gives_up_when_its_patience_ends(begin: Begin, slept: list[float]) -> None:
    with pytest.raises(TimeoutError, match=r"no answer for 0 seconds; the last try: HTTP Error 503"):
        client(begin(says(503)), patience=0).task()
    assert not slept


def test_the_servers_errors_are_raised_here(begin: Begin, slept: list[float], caplog: pytest.LogCaptureFixture) -> None:
    def refuses(status: int, error: str) -> Say:
        return says(status, json.dumps({"error": error, "says": "because"}).encode())

    server = begin(
        PARTS, TASK, refuses(422, "NonFiniteUpdate"), refuses(401, "Unauthorized"), says(404, b"<html>"),
        refuses(409, "UnknownVersion"), TASK, refuses(410, "StaleIncarnation"), TASK, refuses(404, "UnknownClient"),
        TASK,
    )  # fmt: skip
    eve, update = client(server), torch.ones(5)
    with pytest.raises(fastagg.UnknownVersion, match="there is no task"):
        eve.send(update)
    eve.task()
    for error, text in (
        (fastagg.NonFiniteUpdate, "^because$"), (OSError, "401 Unauthorized"), (OSError, "404 Not Found: <html>"),
        (fastagg.UnknownVersion, "^because$"),
    ):  # fmt: skip
        with pytest.raises(error, match=text):
            eve.send(update)
    assert eve.version is None  # the task is gone, so the next one is not waited for
    assert torch.equal(eve.task(newer=True), torch.from_numpy(MODEL))
    for _ in range(2):
        assert torch.equal(eve.exchange(update), torch.from_numpy(MODEL))
    assert sum(said.endswith("an update was dropped: because") for said in caplog.messages) == 2
    assert server.seen[6][0] == "/task/eve%2F1?part=0"
    assert not server.script and not slept


def test_a_client_encodes_and_keeps_what_it_has_not_sent(begin: Begin, slept: list[float]) -> None:
    numbered = says(200, MODEL.tobytes(), X_Task="9", X_Version="7")
    lost, cut = says(409, b'{"error": "UnknownVersion", "says": "late"}'), says(410, b"", Content_Length="9")
    server = begin(PARTS, numbered, lost, numbered, cut, COUNTED, numbered, COUNTED)
    eve, update = client(server, format=fastagg.TopK(0.4, "fp32")), torch.tensor([1.0, -5.0, 2.0, 4.0, 3.0])
    with pytest.raises(fastagg.EncodingError, match="cannot be cut"):
        eve.send(fastagg.encode(update, "int8", seed=0))
    eve.task(speed=2.5)
    with pytest.raises(fastagg.UnknownVersion):
        eve.send(update)  # it does not count, so it leaves nothing behind
    for given in (update, torch.zeros(5)):
        eve.task()
        eve.send(given)
    assert eve.feedback[0].residual.tolist() == [1.0, 0.0, 0.0, 0.0, 0.0]
    came = [fastagg.Encoded.from_bytes(server.seen[at][2]).decode().tolist() for at in (2, 4, 5, 7)]
    assert came == [[0.0, -5.0, 0.0, 4.0, 0.0]] * 3 + [[0.0, 0.0, 2.0, 0.0, 3.0]]
    assert server.seen[1][0] == "/task/eve%2F1?part=0&speed=2.5"
    assert server.seen[2][1]["Content-Type"] == "application/x-fastagg-encoded"
    assert not server.script and len(slept) == 1


def test_a_task_is_read_as_it_comes(begin: Begin, slept: list[float]) -> None:
    sent = fastagg.encode(torch.from_numpy(MODEL), "int8", seed=0)
    coded = {"X_Task": "7", "X_Version": "7", "Content_Type": "application/x-fastagg-encoded"}
    server = begin(PARTS, says(200, sent.to_bytes(), **coded), TASK, says(200, sent.to_bytes()[:-1], **coded))
    eve = client(server, download="int8")
    assert torch.equal(eve.task(), sent.decode())
    assert server.seen[1][0] == "/task/eve%2F1?part=0&format=int8"
    assert torch.equal(eve.task(), torch.from_numpy(MODEL))  # an older server's
    with pytest.raises(fastagg.EncodingError):
        eve.task()


def test_a_token_does_not_follow_a_redirection(begin: Begin, slept: list[float]) -> None:
    other = begin()
    server = begin(PARTS, says(303, Location=f"{other.url}/9"))
    with pytest.raises(OSError, match="303"):
        client(server).task()
    assert not other.seen


def test_it_says_what_it_tries_again(begin: Begin, slept: list[float], caplog: pytest.LogCaptureFixture) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{probe.getsockname()[1]}"
        with pytest.raises(TimeoutError, match="refused"):
            fastagg.clients.HttpClient(url, "eve", patience=0.7).task()
    assert len(slept) >= 1 and len(caplog.messages) == 1
    assert url in caplog.messages[0] and "refused" in caplog.messages[0]


def test_a_tied_parameter_has_any_of_its_names(begin: Begin, slept: list[float]) -> None:
    parts = {"size": 5, "kind": "delta", "parts": [[["b", 0, [2]], ["head", 2, [3]]]], "tied": {"wte": "head"}}
    say = says(200, json.dumps(parts).encode())
    for names in (["wte", "b"], ["head", "b"], ["wte", "b", "head"]):
        eve = client(begin(say, TASK), names=names)
        assert eve.task().tolist() == [2.0, 3.0, 4.0, 0.0, 1.0]
    for names, said in (
        (["wte"], r"only the server's model has 'b', of 1 such; .*--set 'buffers=\{\"b\"=\"keep\"\}'"),
        (["wte", "b", "c", "d"], "only this model has 'c', of 2 such$"),
    ):
        with pytest.raises(fastagg.ShapeMismatch, match=said):
            client(begin(say), names=names).task()


def test_too_soon_is_waited_for(begin: Begin, slept: list[float]) -> None:
    soon = says(409, b'{"error": "TooSoon", "says": "wait for version 8", "part": 0, "version": 7}')
    beat, late = says(200, b'{"version": 8, "open": {}}'), says(409, b'{"error": "UnknownVersion", "says": "late"}')
    server = begin(PARTS, TASK, soon, says(204), soon, beat, COUNTED, soon, beat, TASK, soon, beat, late, TASK, soon)
    eve, update = client(server), torch.ones(5)
    eve.exchange(None)
    for _ in range(2):  # the second time it is too late then
        assert torch.equal(eve.exchange(update), torch.from_numpy(MODEL))
    paths = [path for path, *_ in server.seen if "heartbeat" in path]
    assert len(paths) == 4 and all(path.startswith("/heartbeat/eve%2F1?part=0&after=7&wait=") for path in paths)
    with pytest.raises(fastagg.TooSoon, match="wait for version 8"):
        eve.send(update)  # only an exchange waits
    for patience, script in ((0.0, [soon]), (60.0, [says(409, b'{"error": "TooSoon", "says": "never"}')])):
        server.script[:] = script
        eve._patience = patience
        with pytest.raises(fastagg.TooSoon):
            eve.exchange(None)
    assert not server.script and not slept


def test_a_version_that_the_server_has_lost_is_not_waited_for(begin: Begin, slept: list[float]) -> None:
    task = says(200, MODEL.tobytes(), X_Task="9-1", X_Version="7", X_Incarnation="55")
    gone = says(410, b'{"error": "StaleIncarnation", "says": "lost"}')
    server = begin(PARTS, task, gone, TASK, gone)
    eve = client(server)
    eve.task()
    eve.task(newer=True)
    assert [path for path, *_ in server.seen[2:]] == [
        "/task/eve%2F1?part=0&after=7&wait=30.0&incarnation=55", "/task/eve%2F1?part=0",
    ]  # fmt: skip
    with pytest.raises(fastagg.StaleIncarnation):
        eve.task()


def test_it_waits_for_a_newer_version_as_long_as_it_takes(begin: Begin, slept: list[float]) -> None:
    newer = says(200, MODEL.tobytes(), X_Task="8-1", X_Version="8", X_Local_Steps="3")
    server = begin(PARTS, TASK, says(204), says(204), newer, says(204))
    eve = client(server)
    eve.task()
    eve.task(newer=True)
    assert eve.version == 8 and eve.local_steps == 3
    assert [path for path, *_ in server.seen[2:]] == ["/task/eve%2F1?part=0&after=7&wait=30.0"] * 3
    eve._patience = 0.0
    with pytest.raises(TimeoutError, match="no version after 8 for 0 seconds"):
        eve.task(newer=True)
    assert not slept
