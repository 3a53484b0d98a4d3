"""The home-made server of docs/integrations/own.md, as it stands there: real data, and what goes wrong."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import numpy as np
import pytest
import torch

import fastagg
from fastagg.sim.data import digits

PAGE = (Path(__file__).parents[2] / "docs" / "integrations" / "own.md").read_text()
BLOCK = re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)
assert BLOCK


@pytest.fixture
def scope() -> Iterator[dict[str, Any]]:
    torch.manual_seed(0)
    scope: dict[str, Any] = {}
    exec(BLOCK[1], scope)
    scope["Handler"].log_message = lambda *_: None
    thread = threading.Thread(target=scope["http"].serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield scope
    scope["http"].shutdown()
    scope["http"].server_close()
    thread.join()


def url(scope: dict[str, Any], path: str) -> str:
    return f"http://127.0.0.1:{scope['http'].server_port}/{path}"


def get(scope: dict[str, Any], client: str) -> tuple[torch.Tensor, int]:
    with urlopen(url(scope, client)) as answer:
        return torch.frombuffer(bytearray(answer.read()), dtype=torch.float32), int(answer.headers["Version"])


def post(scope: dict[str, Any], client: str, version: int, update: Any) -> int:
    body = np.asarray(update, np.float16).tobytes()
    with urlopen(Request(url(scope, f"{client}/{version}"), body, method="POST")) as answer:
        return int(answer.headers["Version"])


def train(flat: torch.Tensor, samples: Any) -> torch.Tensor:
    model = torch.nn.Linear(64, 10)
    torch.nn.utils.vector_to_parameters(flat.clone(), model.parameters())
    model = torch.nn.Sequential(torch.nn.Flatten(), model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in torch.arange(len(samples)).split(32):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(samples.x[batch]), samples.y[batch]).backward()
        optimizer.step()
    return torch.nn.utils.parameters_to_vector(model.parameters()).detach() - flat


def accuracy(flat: torch.Tensor, test: Any) -> float:
    weight, bias = flat[:640].view(10, 64), flat[640:]
    return ((test.x.flatten(1) @ weight.T + bias).argmax(1) == test.y).float().mean().item()


def test_clients_in_threads_learn_the_digits(scope: dict[str, Any]) -> None:
    data = digits.load(4, alpha=10.0, seed=0)
    server, events = scope["server"], []
    start, receive = server.state_dict(), server.receive
    recording = threading.Lock()

    def recorded(client: str, update: Any, version: int) -> Any:
        with recording:
            receipt = receive(client, update, version)
            events.append((client, version, update.copy()))
            return receipt

    server.receive = recorded

    def client(number: int, turns: int) -> None:
        for _ in range(turns):
            flat, version = get(scope, f"c{number}")
            post(scope, f"c{number}", version, train(flat, data.clients[number]))

    turns = [4, 12, 12, 12]  # one is slow and comes less often
    threads = [threading.Thread(target=client, args=(n, turns[n])) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert server.version == 20 and len(events) == 40
    assert accuracy(server.flat, data.test) > 0.9
    second = fastagg.FedBuff(torch.nn.Linear(64, 10), buffer_size=2)  # the same events once more
    second.load_state_dict(start)
    ahead = {name: [v for c, v, _ in events if c == name] for name in {c for c, _, _ in events}}
    for name, version, update in events:
        for other, versions in ahead.items():
            if versions and versions[0] == second.version:
                second.dispatch(other)
        second.receive(name, update, version)
        ahead[name].pop(0)
    assert torch.equal(second.flat, server.flat)


BAD = {
    "shape": ("ann", 0, np.zeros(649), "expected shape [650], got [649]"),
    "NaN": ("ann", 0, np.full(650, np.nan), "NaN or infinity"),
    "old version": ("ann", 3, np.zeros(650), "an update from version 3 came, but it owes versions [0]"),
    "twice": ("bob", 0, np.zeros(650), "it has answered everything it was sent"),
    "stranger": ("eve", 0, np.zeros(650), "'eve' was never sent a model"),
}


@pytest.mark.parametrize("what", BAD)
def test_what_is_refused_is_said_and_changes_nothing(what: str, scope: dict[str, Any]) -> None:
    client, version, update, words = BAD[what]
    for name in ("ann", "bob", "gone"):  # the last one dies, and nobody waits for it
        get(scope, name)
    post(scope, "bob", 0, np.ones(650))
    before = scope["server"].state_dict()
    with pytest.raises(HTTPError) as caught:
        post(scope, client, version, update)
    assert caught.value.code == 409 and words in caught.value.read().decode()
    assert torch.equal(scope["server"].state_dict()["direction"]["acc"], before["direction"]["acc"])
    assert post(scope, "ann", 0, np.ones(650)) == 1


def test_a_restart_while_clients_train_loses_and_repeats_nothing(scope: dict[str, Any], tmp_path: Path) -> None:
    for name in ("ann", "bob", "cid"):
        get(scope, name)
    post(scope, "ann", 0, np.full(650, 0.5))
    scope["server"].save(tmp_path / "server.pt")
    scope["server"] = fastagg.load(tmp_path / "server.pt")
    with pytest.raises(HTTPError):  # ann never heard the answer and sends it again
        post(scope, "ann", 0, np.full(650, 0.5))
    assert post(scope, "bob", 0, np.full(650, 0.25)) == 1
    flat, version = get(scope, "ann")
    assert version == 1 and torch.equal(flat, scope["server"].flat)
    assert post(scope, "cid", 0, np.zeros(650)) == 1
