"""The service in one process: tasks, updates, parts, waiting, bad requests by their status, tokens, what it tells."""

import base64
import json
import re
import shutil
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
pytest.importorskip("httpx")
pytest.importorskip("safetensors")
pytest.importorskip("prometheus_client")
from prometheus_client.parser import text_string_to_metric_families
from safetensors.torch import load
from starlette.testclient import TestClient
from support.served import write_model

import fastagg
from fastagg._checks import parse_change
from fastagg.durable import log
from fastagg.durable.uploads import StoredUpload
from fastagg.serve.service import Service
from fastagg.serve.start import maker, opened, read, serve
from fastagg.serve.tokens import Tokens

ARRAYS = {"a": torch.arange(12.0).reshape(3, 4), "b": torch.zeros(5), "c": torch.ones(2, 1)}
SIZE = 19
FLOATS = {"Content-Type": "application/x-float32"}
ENCODED = {"Content-Type": "application/x-fastagg-encoded"}
ANN, BOB, ALL = (letter * 16 for letter in "abo")


def service(folder: Path, parts: int = 1, tokens: Tokens | None = None, **limits: Any) -> Service:
    folder.mkdir(exist_ok=True)
    cut = read(write_model(folder / "model.safetensors", **ARRAYS), parts)
    return Service(opened(cut, "fedbuff", {"buffer_size": 2}, 2, folder), cut, folder, tokens, **limits)


@pytest.fixture
def client(tmp_path: Path) -> Iterator[TestClient]:
    with TestClient(service(tmp_path / "a").app()) as found:
        yield found


def task(client: TestClient, name: str, part: int = 0) -> tuple[str, np.ndarray]:
    found = client.get(f"/task/{name}?part={part}")
    assert found.status_code == 200
    return f"/update/{name}/{found.headers['x-task']}?part={part}", np.frombuffer(found.content, np.float32)


def body(value: float = 1.0, dtype: Any = np.float32, size: int = SIZE) -> bytes:
    return np.full(size, value, dtype).tobytes()


def test_updates_are_applied_once_and_are_durable(client: TestClient) -> None:
    (ann, model), (bob, _) = task(client, "ann"), task(client, "bob%2F1")  # an id may have slashes
    assert model.tolist() == torch.cat([one.reshape(-1) for one in ARRAYS.values()]).tolist()
    first = client.post(ann, content=body(), headers=FLOATS)
    assert first.status_code == 200 and first.json() == {"version": 0, "applied": False}
    assert client.post(ann, content=body(), headers=FLOATS).json() == first.json()  # again: it counts once
    half = torch.full((SIZE,), 3.0, dtype=torch.bfloat16).view(torch.uint8).numpy().tobytes()
    done = client.post(bob, content=half, headers={"Content-Type": "application/x-bfloat16"})
    assert done.json() == {"version": 1, "applied": True}
    assert client.post("/heartbeat/bob%2F1").json() == {"version": 1, "open": {}}
    assert (task(client, "ann")[1] == model + 2).all()


@pytest.mark.parametrize(("good", "others"), [(True, 3), (False, 1)])
def test_a_copy_of_a_complete_update_waits_for_its_receipt(
    good: bool, others: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first copy is complete and waits for its step. Others come, with other bytes, which do not count, unless the
    first one is refused."""
    gate, whole = threading.Event(), StoredUpload._whole

    def wait(upload: StoredUpload) -> Any:
        gate.wait(60)
        return whole(upload)

    monkeypatch.setattr(log, "SMALL", 0)  # each is a file
    monkeypatch.setattr(StoredUpload, "_whole", wait)
    made = service(tmp_path / "a")
    with TestClient(made.app()) as client, ThreadPoolExecutor(5) as pool:
        (ann, model), (bob, _) = task(client, "ann"), task(client, "bob")

        def post(url: str, value: float) -> Any:
            return pool.submit(client.post, url, content=body(value), headers=FLOATS)

        posts = [post(ann, 1.0 if good else np.nan)]
        while not made.parts[0].steps:
            time.sleep(0.01)
        posts += [post(ann, 5.0) for _ in range(others)]
        time.sleep(0.3)
        assert not any(found.done() for found in posts) and len(list((tmp_path / "a").rglob("upload-*"))) == 1
        gate.set()
        assert [found.result().status_code for found in posts] == [200 if good else 422] + others * [200]
        assert [found.result().json() for found in posts[1:]] == others * [{"version": 0, "applied": False}]
        assert post(bob, 3.0).result().json() == {"version": 1, "applied": True} and not made.parts[0].steps
        assert (task(client, "ann")[1] == model + (2.0 if good else 4.0)).all()


def test_an_encoded_update_is_the_one_it_stands_for(client: TestClient) -> None:
    (ann, model), (bob, _) = task(client, "ann"), task(client, "bob")
    numbers = torch.linspace(-1.0, 1.0, SIZE)
    one, other = (fastagg.encode(numbers, form, seed=0) for form in ("int8", fastagg.TopK(0.3)))
    for content, error in (
        (one.to_bytes()[:-1], "EncodingError"), (bytes(300), "EncodingError"), (b"", "EncodingError"),
        (fastagg.encode(torch.ones(SIZE + 1), "sign", seed=0).to_bytes(), "ShapeMismatch"),
    ):  # fmt: skip
        found = client.post(ann, content=content, headers=ENCODED)
        assert found.status_code == 422 and found.json()["error"] == error
    assert client.post(ann, content=bytes(17 * SIZE + 1024), headers=ENCODED).status_code == 413
    for url, encoded in ((ann, one), (bob, other), (ann, one)):  # the last one again: it counts once
        assert client.post(url, content=encoded.to_bytes(), headers=ENCODED).status_code == 200
    mean = (one.decode() + other.decode()).numpy() / 2
    np.testing.assert_allclose(task(client, "ann")[1], model + mean, rtol=1e-6)


@pytest.mark.parametrize(("format", "nbytes"), [("bf16", 64 + 2 * 256), ("int8", 64 + 256 + 64)])
def test_a_task_comes_in_a_format_the_same_for_all(tmp_path: Path, format: str, nbytes: int) -> None:
    usual = fastagg.FedBuff(ARRAYS, buffer_size=1, seed=0)
    with TestClient(service(tmp_path / "a").app()) as client:
        got = [client.get(f"/task/{name}?format={format}") for name in ("ann", "bob", "ann")]
        assert {one.headers["content-type"] for one in got} == {ENCODED["Content-Type"]}
        assert {one.content for one in got} == {usual.dispatch("eve", format=format).encoded.to_bytes()}
        assert len(got[0].content) <= nbytes + 64 and got[0].headers["x-task"] == got[2].headers["x-task"]
        for name, answer in (("ann", got[0]), ("bob", got[1])):
            content = (torch.zeros(SIZE) - fastagg.Encoded.from_bytes(answer.content).decode()).numpy().tobytes()
            client.post(f"/update/{name}/{answer.headers['x-task']}", content=content, headers=FLOATS)
        start = torch.cat([one.reshape(-1) for one in ARRAYS.values()])
        had = fastagg.Encoded.from_bytes(got[0].content).decode()  # the difference is from that, not from the model
        assert torch.equal(torch.from_numpy(task(client, "ann")[1].copy()), start - had)
        refused = client.get("/task/ann?format=int4")
        assert refused.status_code == 422 and refused.json()["error"] == "ConfigError"


def test_a_model_in_bf16_is_sent_as_it_is_kept(tmp_path: Path) -> None:
    cut = read(write_model(tmp_path / "model.safetensors", **ARRAYS), 1)
    servers = opened(cut, "HeLoCo", {"model_dtype": "bf16"}, 2, tmp_path)
    with TestClient(Service(servers, cut, tmp_path).app()) as client:
        sent, whole = client.get("/task/ann"), load(client.get("/model").content)
        assert sent.headers["content-type"] == "application/x-bfloat16" and len(sent.content) == 2 * SIZE
        assert all(torch.equal(whole[name], array.bfloat16()) for name, array in ARRAYS.items())
        assert client.get("/task/bob?format=bf16").headers["content-type"] == ENCODED["Content-Type"]


def test_a_client_that_tells_its_speed_is_told_its_steps(tmp_path: Path) -> None:
    cut = read(write_model(tmp_path / "model.safetensors", **ARRAYS), 1)
    servers = opened(cut, "AsyncDiLoCo", {"fastest_steps": 40, "period": 2}, 2, tmp_path)
    with TestClient(Service(servers, cut, tmp_path).app()) as client:
        for name, speed, steps in (("ann", 8, "40"), ("bob", 2, "10")):
            assert client.get(f"/task/{name}?speed={speed}").headers["x-local-steps"] == steps
        assert client.get("/task/ann?speed=fast").status_code == 400
        assert client.get("/task/ann?speed=0").status_code == 422


def test_a_model_is_a_safetensors_file_of_one_version_and_opens_no_task(tmp_path: Path) -> None:
    with TestClient(service(tmp_path / "a", parts=2).app()) as client:
        whole = client.get("/model")
        assert whole.headers["x-version"] == "0"
        assert {name: array.tolist() for name, array in load(whole.content).items()} == {
            name: array.tolist() for name, array in ARRAYS.items()
        }
        layout = client.get("/parts").json()
        assert layout["size"] == SIZE and layout["kind"] == "delta" and len(layout["parts"]) == 2
        for number, part in enumerate(layout["parts"]):
            assert set(load(client.get(f"/model?part={number}").content)) == {name for name, *_ in part}
        assert client.post("/heartbeat/ann").json() == {"version": 0, "open": {}}


def test_parts_step_apart_and_a_client_that_comes_back_finds_its_tasks(tmp_path: Path) -> None:
    with TestClient(service(tmp_path / "a", parts=2).app()) as client:
        sizes = [sum(np.prod(shape) for *_, shape in part) for part in client.get("/parts").json()["parts"]]
        for name in ("ann", "bob"):
            url, _ = task(client, name, 1)
            assert client.post(url, content=body(size=int(sizes[1])), headers=FLOATS).status_code == 200
        assert [client.get(f"/model?part={part}").headers["x-version"] for part in (0, 1)] == ["0", "1"]
        assert client.get("/model").headers["x-version"] == "1"
        urls = [task(client, "ann", part)[0] for part in (0, 1)]
        found = client.post("/heartbeat/ann").json()["open"]
        assert [f"/update/ann/{found[str(part)]['task']}?part={part}" for part in (0, 1)] == urls
    with pytest.raises(fastagg.ConfigError, match="is of 2 parts; write --parts 2"):
        service(tmp_path / "a", parts=3)


def test_who_waits_for_a_newer_version_gets_it_when_it_is_there(client: TestClient) -> None:
    (ann, _), (bob, _) = task(client, "ann"), task(client, "bob")
    begun = time.monotonic()
    assert client.get("/model?after=0&wait=0.2").status_code == 204 and time.monotonic() - begun >= 0.2
    assert client.get("/task/eve?after=0").status_code == 204  # and no task
    assert client.post("/heartbeat/eve").json()["open"] == {}
    found: list[Any] = []
    waiting = threading.Thread(target=lambda: found.append(client.get("/task/ann?after=0&wait=50")))
    waiting.start()
    for url in (ann, bob):
        client.post(url, content=body(), headers=FLOATS)
    waiting.join(30)
    assert found[0].headers["x-version"] == "1"


def test_a_round_that_is_due_ends_while_nobody_calls(tmp_path: Path) -> None:
    cut = read(write_model(tmp_path / "model.safetensors", **ARRAYS), 1)
    settings = {"buffer_size": 5, "at_least": 1, "grace": 0.1}
    servers = opened(cut, "FedBuff", settings, 5, tmp_path)
    close, failures = servers[0].close_round, [OSError("the system refuses a thread")]

    def fails_once(**given: bool) -> object:
        if failures:
            raise failures.pop()
        return close(**given)

    with (
        TestClient(Service(servers, cut, tmp_path).app()) as client,
        mock.patch.object(servers[0], "close_round", fails_once),
    ):
        client.post(task(client, "ann")[0], content=body(), headers=FLOATS)
        assert client.get("/model?after=0&wait=30").headers["x-version"] == "1"
    assert not failures


def test_every_bad_request_has_a_status_and_changes_nothing(client: TestClient) -> None:
    ann, _ = task(client, "ann")
    for url, content, headers, status in (
        (ann, body(), {"Content-Type": "text/plain"}, 415),
        (ann, body(), FLOATS | {"Content-Encoding": "gzip"}, 415),
        (ann.replace("/ann/", "/%ff/"), body(), FLOATS, 400),
        (ann, body()[:-1], FLOATS, 400),
        (ann, body() + b"x", FLOATS, 413),
        (ann, iter([body()]), FLOATS, 411),
        (ann, body(float("nan")), FLOATS, 422),
        ("/update/ann/x", body(), FLOATS, 400),
        ("/update/ann/-1", body(), FLOATS, 400),
        ("/update/ann/5", body(), FLOATS, 410),
        (ann.replace("part=0", "part=1"), body(), FLOATS, 404),
        (ann.replace("part=0", "part=x"), body(), FLOATS, 400),
        (f"{ann}&num_samples=many", body(), FLOATS, 400),
        (f"{ann}&num_samples=-1", body(), FLOATS, 422),
        (ann.replace("/ann/", "/eve/"), body(), FLOATS, 403),
        (f"{ann}&x={'x' * 5000}", body(), FLOATS, 414),
    ):
        found = client.post(url, content=content, headers=headers)
        assert found.status_code == status, (url, headers, found.text)
        assert found.json()["error"]
    assert client.get(ann).status_code == 405
    assert client.get("/nothing").status_code == 404
    assert client.get("/task/" + "x" * 300).status_code == 404
    assert client.get("/model?after=x").status_code == 400
    assert client.get("/model?after=9&wait=nan").status_code == 400
    for path in ("/model?after=9", "/task/ann?after=9", "/task/ann?after=0&incarnation=1"):  # of another life
        assert client.get(path).status_code == 410
    assert client.post(ann, content=body(), headers=FLOATS).status_code == 200


def test_only_get_and_post_do_what_they_say(client: TestClient) -> None:
    ann, _ = task(client, "ann")
    paths = ["/task/zoe", ann, "/heartbeat/zoe", "/model", "/parts", "/metrics", "/health", "/ready"]
    for path in paths:
        for method in ("HEAD", "OPTIONS", "PUT", "DELETE", "PATCH", "TRACE"):
            found = client.request(method, path)
            assert found.status_code == (200 if (method, path) in {("HEAD", "/health"), ("HEAD", "/ready")} else 405)
            assert found.status_code == 200 or found.headers["allow"]
    assert client.get("/metrics").text.count("zoe") == 0
    assert client.post("/heartbeat/zoe").json()["open"] == {}
    for _ in range(4):  # two tasks of a client may be open
        assert client.head("/task/ann").status_code == 405
    assert client.post(ann, content=body(), headers=FLOATS).status_code == 200


def test_a_task_of_another_client_is_refused_by_name(tmp_path: Path) -> None:
    with TestClient(service(tmp_path / "a").app()) as client:
        ann, _ = task(client, "ann")
        as_bob = ann.replace("/ann/", "/bob/")
        for _ in range(2):  # bob was never there, and is
            for _ in range(2):  # it is open, and answered
                found = client.post(as_bob, content=body(), headers=FLOATS)
                assert found.status_code == 403 and found.json()["error"] == "OtherClient"
                assert "another client's" in found.json()["says"]
                assert client.post(ann, content=body(), headers=FLOATS).status_code == 200
            task(client, "bob")
    with TestClient(service(tmp_path / "a").app()) as client:  # after a restart, too
        assert client.post(as_bob, content=body(), headers=FLOATS).status_code == 403
        assert client.post(ann, content=body(), headers=FLOATS).status_code == 200


def test_a_refusal_that_a_newer_version_may_end_says_which_version_this_is(tmp_path: Path) -> None:
    cut = read(write_model(tmp_path / "model.safetensors", **ARRAYS), 1)
    privacy = {"noise_multiplier": 0.0, "clip_norm": 9.0, "min_separation": 2}
    servers = opened(cut, "FedBuff", {"buffer_size": 1, "privacy": privacy}, 2, tmp_path)
    with TestClient(Service(servers, cut, tmp_path).app()) as client:
        assert client.post(task(client, "ann")[0], content=body(), headers=FLOATS).status_code == 200
        found = client.get("/task/ann")
        assert found.status_code == 409 and found.json()["error"] == "TooSoon" and found.json()["version"] == 1
        assert client.post("/heartbeat/ann?part=0&after=1&wait=0").status_code == 204
        assert client.post(task(client, "bob")[0], content=body(), headers=FLOATS).status_code == 200
        assert client.post("/heartbeat/ann?part=0&after=1&wait=0").json()["version"] == 2
        task(client, "ann")


def test_the_log_has_no_letters_of_a_clients_own(client: TestClient, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    client.get("/task/" + "%1b%5b31m" * 20, headers={"X-Forwarded-For": "\x1b[31mroot"})
    client.get("/nothing?" + "x" * 60_000)
    lines = [record.getMessage() for record in caplog.records if record.name.startswith("fastagg")]
    assert len(lines) == 2 and all(len(line) < 400 and "\x1b" not in line for line in lines)


def test_a_model_in_several_files_and_what_is_none(tmp_path: Path) -> None:
    for number, names in enumerate(("ac", "b")):
        write_model(tmp_path / f"model-{number}.safetensors", **{name: ARRAYS[name] for name in names})
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {name: f"model-{int(name == 'b')}.safetensors" for name in "abc"}}))
    cut = read(index, 1)
    assert {entry.name for entry in cut.layout.entries} == set(ARRAYS) and cut.layout.size == SIZE
    for text in ("{}", "[1]", '{"weight_map": 3}', "{", '{"weight_map": {"a": "gone.safetensors"}}'):
        index.write_text(text)
        with pytest.raises(fastagg.ConfigError, match="expected a safetensors file, or the index of several"):
            read(index, 1)
    index.rename(tmp_path / "model.bin")
    with pytest.raises(fastagg.ConfigError, match="index of several"):
        read(tmp_path / "model.bin", 1)


def test_equal_arrays_are_named_and_tied_by_a_setting(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    numbers = torch.arange(12.0).reshape(4, 3)
    arrays = {
        "a": numbers, "b": numbers.clone(), "c": numbers.T.contiguous(), "d": numbers.half(), "ids.0": numbers.long(),
        "ids.1": numbers.long(), "norm.0": torch.ones(5), "norm.1": torch.ones(5),
    }  # fmt: skip
    model = write_model(tmp_path / "model.safetensors", **arrays)
    assert read(model, 1).layout.size == 3 * 12 + 12 + 10
    (line,) = caplog.messages
    assert "'a' and 'b'" in line
    name, setting = parse_change(re.findall(r"--set '(.*)'", line)[0])
    assert (name, setting) == ("tied", [["a", "b"]])
    caplog.clear()
    for tied, size in ((setting, 46), ([], 58)):
        assert read(model, 2, tied=tied).layout.size == size and not caplog.messages
    buffers = {"c": "mean", "a": "keep", "b": "keep"}
    cut = read(model, 1, buffers=buffers)
    servers = opened(cut, "FedBuff", {"buffers": buffers}, 2, tmp_path)
    with TestClient(Service(servers, cut, tmp_path).app()) as client:
        assert {name for name, *_ in client.get("/parts").json()["parts"][0]} == {"d", "norm.0", "norm.1"}
        assert len(client.get("/task/ann").content) == 4 * 22


def test_a_client_that_comes_back_without_its_work_is_not_locked_out(client: TestClient) -> None:
    for _ in range(5):  # at most two tasks of a client are open
        task(client, "ann")
        for name in ("bob", "eve"):
            client.post(task(client, name)[0], content=body(), headers=FLOATS)
    assert client.post(task(client, "ann")[0], content=body(), headers=FLOATS).status_code == 200


def test_tasks_survive_a_restart_and_what_was_answered_is_answered_again(tmp_path: Path) -> None:
    with TestClient(service(tmp_path / "a").app()) as client:
        (ann, start), (bob, _) = task(client, "ann"), task(client, "bob")
        first = client.post(ann, content=body(), headers=FLOATS)
    with TestClient(service(tmp_path / "a").app()) as client:
        again = client.post(ann, content=body(), headers=FLOATS)
        assert again.status_code == 200 and again.json() == first.json()  # it counts once
        assert client.post(bob, content=body(), headers=FLOATS).json()["version"] == 1
        assert (task(client, "ann")[1] == start + 1).all()


def test_too_many_at_a_time_are_told_to_come_later(tmp_path: Path) -> None:
    with TestClient(service(tmp_path / "a", uploads=0).app()) as client:
        found = client.post(task(client, "ann")[0], content=body(), headers=FLOATS)
        assert found.status_code == 429 and found.headers["retry-after"]


def test_a_full_disk_is_not_ready_and_no_reason_to_start_again(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert client.get("/ready").status_code == client.get("/health").status_code == 200
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=0))
    found = client.get("/ready")
    assert found.status_code == 503 and "full" in found.text
    health = client.get("/health")
    assert health.status_code == 200 and not health.json()["open"] and "full" in health.json()["why"]
    assert "fastagg_serve_ready 0.0" in client.get("/metrics").text


def test_metrics_are_of_every_part(tmp_path: Path) -> None:
    with TestClient(service(tmp_path / "a", parts=3).app()) as client:
        found = {family.name: family for family in text_string_to_metric_families(client.get("/metrics").text)}
        for name in ("arrivals", "version", "open_tasks", "journal_durable", "serve_uploads", "serve_downloads"):
            assert {sample.labels["model_part"] for sample in found[f"fastagg_{name}"].samples} == {"0", "1", "2"}


def test_a_token_is_for_its_client_and_the_operators_for_everything(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text(f"# who may come\nann {ANN}\nbob {BOB}\n* {ALL}\n")
    both = base64.b64encode(f"x:{ANN}".encode()).decode()
    with TestClient(service(tmp_path / "a", tokens=Tokens(file)).app()) as client:
        for path, given, status in (
            ("/task/ann", f"Bearer {ANN}", 200), ("/task/ann", f"Basic {both}", 401),
            ("/task/ann", f"bearer {ALL}", 200),
            ("/task/ann", f"Bearer {BOB}", 401), ("/task/ann", "", 401), ("/task/ann", f"Bearer {ANN}x", 401),
            ("/task/ann", "Bearer ", 401), ("/task/*", f"Bearer {ANN}", 401),
            ("/model", f"Bearer {BOB}", 200), ("/model", "", 401), ("/parts", f"Bearer {BOB}", 200),
            ("/metrics", f"Bearer {ANN}", 401), ("/metrics", f"Bearer {ALL}", 200),
            ("/health", "", 200), ("/ready", "", 200),
        ):  # fmt: skip
            found = client.get(path, headers={"Authorization": given})
            assert found.status_code == status, (path, given)
    for text, said in (("ann short", "line 1"), ("ann", "line 1"), ("\n", "no token"), (f"a {ANN} b", "line 1")):
        file.write_text(text)
        with pytest.raises(fastagg.ConfigError, match=said):
            Tokens(file)
    with pytest.raises(fastagg.ConfigError, match="cannot read"):
        Tokens(tmp_path)


def test_rules_by_their_names_get_the_number_of_workers() -> None:
    model = {"a": torch.zeros(3)}
    assert maker("ace", {"lr": 0.1, "cache": "int8"}, 3)(model).num_clients == 3
    assert maker("FedAvgM", {}, 3)(model).direction.size == 3
    assert maker("fedbuff", {"max_clients": 9}, 3)(model).max_clients == 9
    assert maker("fadas", {"betas": [0.8, 0.9]}, 3)(model).max_clients == 12
    for rule, settings, said in (
        ("fedbuf", {}, "did you mean 'FedBuff'"), ("fedbuff", {"bufer": 1}, "unknown setting .bufer."),
        ("fedac", {"lr": 0.1}, "sends control variates"),
    ):  # fmt: skip
        with pytest.raises(fastagg.ConfigError, match=said):
            maker(rule, settings, 3)(model)


def test_clients_of_a_rule_with_a_number_of_clients_are_numbers(tmp_path: Path) -> None:
    cut = read(write_model(tmp_path / "model.safetensors", **ARRAYS), 1)
    servers = opened(cut, "ACE", {"lr": 0.1}, 2, tmp_path)
    with TestClient(Service(servers, cut, tmp_path).app()) as client:
        assert client.post(task(client, "1")[0], content=body(), headers=FLOATS).status_code == 200
        assert client.get("/task/2").status_code == client.get("/task/ann").status_code == 404


def test_a_start_is_refused_by_name(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model.safetensors", **ARRAYS)
    given: dict[str, Any] = {
        "model": model, "rule": "FedBuff", "settings": {}, "workers": 2, "parts": 1, "folder": tmp_path / "a",
        "host": "127.0.0.1", "port": 0, "tokens": None, "certificate": None, "key": None, "by_part": False,
        "limits": {},
    }  # fmt: skip
    for change, said in (
        ({"host": "0.0.0.0"}, "others reach 0.0.0.0; write --tokens FILE"), ({"certificate": model}, "needs its key"),
        ({"certificate": tmp_path / "no", "key": model}, "there is no file"), ({"parts": 4}, "3 tensors"),
        ({"model": tmp_path / "no"}, "expected a safetensors file"), ({"rule": "Fed"}, "rule: expected one of"),
    ):  # fmt: skip
        with pytest.raises(fastagg.ConfigError, match=said):
            serve(**{**given, **change})
    assert not (tmp_path / "a").exists()
