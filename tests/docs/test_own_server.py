"""The home-made server of docs/integrations/own.md, as it stands there: real data, and what goes wrong."""

import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
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


def get(scope: dict[str, Any], client: str) -> tuple[torch.Tensor, int, int]:
    with urlopen(url(scope, client)) as answer:
        flat = torch.frombuffer(bytearray(answer.read()), dtype=torch.float32)
        return flat, int(answer.headers["Version"]), int(answer.headers["Task"])


def post(scope: dict[str, Any], client: str, task: int, update: Any) -> int:
    body = np.asarray(update, np.float16).tobytes()
    with urlopen(Request(url(scope, f"{client}/{task}"), body, method="POST")) as answer:
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
    server = scope["server"]

    def client(number: int, turns: int) -> None:
        for _ in range(turns):
            flat, _, task = get(scope, f"c{number}")
            post(scope, f"c{number}", task, train(flat, data.clients[number]))

    turns = [4, 12, 12, 12]  # one is slow and comes less often
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(client, range(4), turns))
    assert server.version == 20  # two updates each, none lost
    assert accuracy(server.flat, data.test) > 0.9


BAD = {
    "shape": ("ann", "ann", np.zeros(649), "expected shape [650], got [649]"),
    "no task": ("ann", "none", np.zeros(650), "this server has sent no task with this id"),
    "another's": ("ann", "gone", np.zeros(650), "this task is another client's"),
    "twice": ("bob", "bob", np.zeros(650), "its answer to this task was counted already"),
}


@pytest.mark.parametrize("what", BAD)
def test_what_is_refused_is_said_and_changes_nothing(what: str, scope: dict[str, Any]) -> None:
    client, task, update, words = BAD[what]
    tasks = {name: get(scope, name)[2] for name in ("ann", "bob", "gone")}  # the last one dies, nobody waits for it
    post(scope, "bob", tasks["bob"], np.ones(650))
    get(scope, "bob")  # the same version once more
    before = scope["server"].state_dict()
    with pytest.raises(HTTPError) as caught:
        post(scope, client, tasks.get(task, 1), update)
    assert caught.value.code == 409 and words in caught.value.read().decode()
    assert torch.equal(scope["server"].state_dict()["direction"]["acc"], before["direction"]["acc"])
    assert post(scope, "ann", tasks["ann"], np.ones(650)) == 1


def test_a_restart_while_clients_train_loses_and_repeats_nothing(scope: dict[str, Any], tmp_path: Path) -> None:
    tasks = {name: get(scope, name)[2] for name in ("ann", "bob", "cid")}
    post(scope, "ann", tasks["ann"], np.full(650, 0.5))
    scope["server"].save(tmp_path / "server.pt")
    scope["server"] = fastagg.load(tmp_path / "server.pt")
    with pytest.raises(HTTPError):  # ann never heard the answer and sends it again
        post(scope, "ann", tasks["ann"], np.full(650, 0.5))
    assert post(scope, "bob", tasks["bob"], np.full(650, 0.25)) == 1
    flat, version, _ = get(scope, "ann")
    assert version == 1 and torch.equal(flat, scope["server"].flat)
    assert post(scope, "cid", tasks["cid"], np.zeros(650)) == 1
