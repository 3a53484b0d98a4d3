"""Real servers and clients: kills, a full disk, TLS, parts at a time, and whoever lies, dawdles or reads nothing."""

import contextlib
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
pytest.importorskip("safetensors")
pytest.importorskip("prometheus_client")
from support.served import TOKEN, Breeder, Serve, certificate_in, rest_of, rest_of_answer, write_model

import fastagg
from fastagg import TopK
from fastagg.clients import HttpClient, http

ROOT = Path(__file__).parents[2]
LARGE = 4_000_000  # parameters, 16 MB, which no socket holds
EACH = ("--rule", "FedBuff", "--set", "buffer_size=1")
LOST = fastagg.UnknownVersion, fastagg.UnknownClient


def client_of(server: Breeder, name: str, **settings: Any) -> HttpClient:
    return HttpClient(server.url, name, TOKEN, patience=120, timeout=20, **settings)


@contextlib.contextmanager
def copies(server: Breeder, path: str, update: torch.Tensor, rng: random.Random) -> Iterator[None]:
    """Meanwhile there are copies of an update, as of a client whose connections break: whole or not, cut or not."""
    body = update.numpy().tobytes()
    head = f"POST {path} HTTP/1.1\r\nContent-Type: application/x-float32\r\nContent-Length: {len(body)}"
    with contextlib.ExitStack() as stack:
        for _ in range(rng.choice((0, 1, 1, 2))):
            with contextlib.suppress(OSError):  # the server was killed
                copy = server.begin(head, body[: rng.choice((len(body), len(body), len(body) // 2, 70_000))])
                if rng.random() < 0.3:
                    copy.close()
                else:
                    stack.enter_context(copy)
        yield


def kills(times: int, folder: Path, seed: int, workers: int = 3, large: int = 0) -> int:
    """Kill a server so often while clients push. Afterwards the model has each acknowledged push once, and nothing
    else, in every element. A large one comes through a file, a small one lies in the log; the first worker sends
    numbers, the others encode. Return how many were acknowledged.

    With ``large`` one part has so many parameters, its updates come as numbers, and copies of each overlap."""
    rng, most = random.Random(seed), 2 if large else 12
    arrays = {"small": torch.zeros(workers), "large": torch.zeros(large or 100_000)}
    model = write_model(folder / "m.safetensors", **arrays)
    server = Breeder(model, folder / "state", "--workers", workers, "--parts", 2, *EACH)
    acknowledged: Counter[int] = Counter()
    sums: dict[int, torch.Tensor] = {}
    counted = 0  # of those that a kill waits for
    over, failures, one = threading.Event(), [], threading.Lock()

    def work(number: int, part: int) -> None:
        nonlocal counted
        try:
            own = random.Random(f"{seed} {part} {number}")
            form = (None, TopK(0.7, "fp32"), TopK(1e-5, "fp32"))[number % 3]  # the second one's lies in a file
            client = HttpClient(
                server.url, f"{part}-{number}", format=None if large else form, patience=120, timeout=20
            )
            while not over.is_set():
                update = torch.zeros_like(client.task(part))
                update[number] = 1.0
                overlaps = len(update) == large
                if overlaps:
                    generator = torch.Generator().manual_seed(own.randrange(10**9))
                    update = torch.randint(-4, 5, update.shape, generator=generator).float()
                path = f"/update/{part}-{number}/{client._tasks[part].id}?part={part}"
                with contextlib.suppress(*LOST):  # a crash lost the task: it does not count
                    with copies(server, path, update, own) if overlaps else contextlib.nullcontext():
                        client.send(update, part)
                    with one:
                        counted += overlaps or not large
                        acknowledged[part] += 1
                        sums[part] = sums.get(part, torch.zeros(())) + update
        except BaseException as error:
            failures.append(error)

    pause, pairs = time.sleep, [(number, part) for number in range(workers) for part in (0, 1)]
    threads = [threading.Thread(target=work, args=pair) for pair in pairs]
    shorter = mock.patch.object(http.time, "sleep", lambda seconds: pause(min(seconds, 0.05)))
    try:
        shorter.start()
        server.start()
        for thread in threads:
            thread.start()
        for _ in range(times):
            enough = counted + rng.randint(0, most)
            server.until(lambda enough=enough: counted >= enough or bool(failures))
            time.sleep(rng.random() / 100)
            assert server.end() == -signal.SIGKILL
            server.start()
        over.set()
        for thread in threads:
            thread.join(120)
        assert not failures, failures
        reader = HttpClient(server.url, "reader")
        for part in (0, 1):
            found = reader.task(part)
            assert torch.equal(found, sums.get(part, torch.zeros_like(found)))
            assert reader._tasks[part].version == acknowledged[part]  # each was a step
        return acknowledged.total()
    finally:
        over.set()
        server.close()
        shorter.stop()


def test_kills_lose_no_acknowledged_push_and_count_none_twice(tmp_path: Path) -> None:
    assert kills(12, tmp_path, 1) >= 12


def test_copies_of_large_updates_that_overlap_count_once_and_as_what_was_sent(tmp_path: Path) -> None:
    assert kills(4, tmp_path, 2, workers=2, large=LARGE) >= 4


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 40 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    line = ["mount", "-t", "tmpfs", "-o", "size=40m", "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(line, capture_output=True, check=False).returncode:
        pytest.skip("no right to mount a disk")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


def test_a_full_disk_refuses_updates_by_503_until_there_is_room(serve: Serve, small_disk: Path) -> None:
    size = 500_000
    server = serve([size], folder=small_disk / "state")
    ann, *others = (client_of(server, name) for name in ("ann", "bob", "cid", "dan", "eve", "fay"))
    update, before = torch.ones(size), ann.task()
    for client in others:
        client.task()
    assert server.get("/ready") == b"ready\n"
    with open(small_disk / "other", "wb", buffering=0) as other:

        def fill() -> None:
            with contextlib.suppress(OSError):
                while True:
                    other.write(bytes(4096))

        def is_full() -> bool:
            """Fill the disk, of which the server itself gives back what it can, and ask whether it is ready."""
            fill()
            try:
                return not server.get("/ready")
            except urllib.error.HTTPError as error:
                return error.code == 503 and not json.loads(server.get("/health"))["open"]

        def head_of(client: HttpClient) -> str:
            path = f"/update/{client._client}/{client._tasks[0].id}"
            return f"POST {path} HTTP/1.1\r\nContent-Type: application/x-float32\r\nContent-Length: {4 * size}"

        server.until(is_full)
        body = update.numpy().tobytes()
        half = server.begin(head_of(ann), body[: 3 * size])  # mostly it has the file that was made ahead
        answers = []
        for client in others:  # what the server gives back meanwhile may be enough for one of them
            fill()
            answers.append(rest_of_answer(server.begin(head_of(client), body)))
        half.sendall(body[3 * size :])
        answers.append(rest_of_answer(half))
        refused = [said for said in answers if not said.startswith(b"HTTP/1.1 200")]
        for said in refused:
            assert said.startswith(b"HTTP/1.1 503") and b"retry-after" in said and b"NotDurable" in said
        taken = len(answers) - len(refused)
        assert refused
        server.until(is_full)
        other.truncate(0)
    server.until(lambda: server.get("/ready") == b"ready\n")
    bob = client_of(server, "bob")
    assert torch.equal(bob.task(), before + taken)
    assert bob.send(update)["version"] == taken + 1


def test_tls_with_a_certificate_that_the_client_trusts(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate, key = certificate_in(tmp_path)
    server = serve([LARGE], "--certificate", certificate, "--key", key, trusted=certificate)
    with pytest.raises(TimeoutError, match="CERTIFICATE_VERIFY_FAILED"):
        HttpClient(server.url, "ann", TOKEN, patience=0).task()
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    ann = client_of(server, "ann")
    update = torch.arange(LARGE) / LARGE
    assert torch.equal(ann.task(), torch.zeros(LARGE)) and ann.send(update)["applied"]
    assert torch.equal(ann.task(), update)


def test_uploads_of_different_parts_come_at_the_same_time(serve: Serve) -> None:
    """Each part takes its update while the other three are half there, and a whole model passes through its parts."""
    sizes = [300_000, 300_001, 300_002, 300_003]
    server = serve(sizes, "--parts", 4)
    ann = client_of(server, "ann")
    whole = ann.task()
    lengths = [sum(place.stop - place.start for place in ann._places(part)) for part in range(4)]
    heads = [
        f"POST /update/ann/{ann._tasks[part].id}?part={part} HTTP/1.1\r\nContent-Type: application/x-float32\r\n"
        f"Content-Length: {4 * lengths[part]}" for part in range(4)
    ]  # fmt: skip
    bodies = [torch.full((length,), 1.0).numpy().tobytes() for length in lengths]
    halves = [server.begin(head, body[: len(body) // 2]) for head, body in zip(heads, bodies, strict=True)]
    server.until(lambda: server.number("fastagg_serve_uploads") == 4)
    for part in (2, 0, 3, 1):
        halves[part].sendall(bodies[part][len(bodies[part]) // 2 :])
        assert rest_of_answer(halves[part]).startswith(b"HTTP/1.1 200")
    assert server.number("fastagg_version") == 4
    update = torch.arange(sum(sizes)) / 1000
    assert torch.equal(ann.task(), whole + 1)
    assert ann.send(update) == {"version": 8, "applied": True}
    assert torch.equal(ann.task(), whole + 1 + update)


def test_clients_that_read_nothing_share_one_model_and_do_not_keep_it_from_ending(serve: Serve) -> None:
    server = serve([LARGE], "--set", "max_clients=100")
    server.stalled("first").close()
    before = server.resident()
    connections = [server.stalled(f"client{number}") for number in range(30)]
    assert server.number("fastagg_serve_downloads") >= 30
    assert server.resident() - before < 2 * 4 * LARGE
    whole = rest_of_answer(server.stalled("another"))  # who reads, gets it meanwhile
    assert whole.startswith(b"HTTP/1.1 200") and len(whole.partition(b"\r\n\r\n")[2]) == 4 * LARGE
    begun = time.monotonic()
    server.end(signal.SIGTERM)
    assert time.monotonic() - begun < 20
    assert all(len(rest_of(connection)) < 4 * LARGE for connection in connections)


def test_whoever_brings_and_takes_nothing_is_cut(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IDLE", "0.5")
    server = serve([LARGE])
    half = socket.create_connection(("127.0.0.1", server.port), timeout=60)
    half.sendall(b"GET /ta")
    assert rest_of(half) == b""
    slow = server.stalled("slow")
    server.until(lambda: server.number("fastagg_serve_downloads") == 0)
    assert len(rest_of(slow)) < 4 * LARGE
    ann = client_of(server, "ann")
    ann.task()
    head = f"POST /update/ann/{ann._tasks[0].id} HTTP/1.1\r\nContent-Type: application/x-float32\r\nContent-Length"
    stopped = server.begin(f"{head}: {4 * LARGE}", bytes(70_000))
    assert rest_of(stopped) == b""
    lies = server.begin(f"{head}: {4 * LARGE}", bytes(70_000))  # says more than comes
    lies.shutdown(socket.SHUT_WR)
    rest_of(lies)
    refused = server.begin(f"{head.replace(ann._tasks[0].id, '5')}: {4 * LARGE}", bytes(70_000))
    assert rest_of_answer(refused).startswith(b"HTTP/1.1 410")  # at once, and who sends on can read it
    for _ in range(60):
        refused.sendall(bytes(250_000))
    for length, status in ((4 * LARGE + 1, b"413"), (10**18, b"413"), (4, b"400")):
        assert rest_of(server.begin(f"{head}: {length}", b"x")).startswith(b"HTTP/1.1 " + status)
    server.until(lambda: server.number("fastagg_serve_uploads") == 0)
    assert ann.send(torch.ones(LARGE))["version"] == 1  # the task is still open


@pytest.mark.slow  # two workers learn for a minute
def test_the_commands_of_the_examples_page_run_as_they_stand_there(tmp_path: Path) -> None:
    """DiLoCo with two workers that learn; the server is killed and started again meanwhile."""
    here = ROOT / "examples" / "diloco"
    shutil.copytree(here, tmp_path / "diloco")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    page = (here / "README.md").read_text().replace("8000", port)
    install, *lines = re.findall(r"^```bash\n(.*?)^```", page, re.DOTALL | re.MULTILINE)[0].splitlines()
    assert install.startswith("pip install") and lines[0] == "cd examples/diloco" and lines[-1] == "kill %1"
    init, server, ann, bob = lines[1:-1]
    where = f" --server http://127.0.0.1:{port}"
    again = "sleep 8; kill -9 $server; sleep 1"
    script = [
        "set -e", init, server, "server=$!", f"{ann[:-2]}{where} &", "ann=$!", f"{bob}{where} &", "bob=$!", again,
        server, "server=$!", "trap 'kill $server' EXIT", "wait $ann", "wait $bob",
    ]  # fmt: skip
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(Path(fastagg.__file__).parents[1])}
    environment["OMP_NUM_THREADS"] = "1"  # threads that wait for each other crawl on a busy machine
    done = subprocess.run(
        ["bash", "-c", "\n".join(script)],
        cwd=tmp_path / "diloco", env=environment, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    for name in ("ann", "bob"):
        losses = [float(loss) for loss in re.findall(rf"{name}: version \d+, loss ([\d.]+)", done.stdout)]
        assert len(losses) == 20 and losses[-1] < 1.6 < 2.4 < losses[0], losses
