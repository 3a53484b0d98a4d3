"""Threads that call a server while others change what they call it with, with Python's global lock and without one."""

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import torch

import fastagg

D = 300
free = getattr(sys, "_is_gil_enabled", lambda: True)() is False


def together(*works: Callable[[], None], times: int = 60) -> None:
    """Repeat each of these in a thread of its own. All begin at once, and an error of any is raised."""
    begin = threading.Barrier(len(works))

    def repeat(work: Callable[[], None]) -> None:
        begin.wait()
        for _ in range(times):
            work()

    with ThreadPoolExecutor(len(works)) as pool:
        for done in [pool.submit(repeat, work) for work in works]:
            done.result()


@pytest.mark.skipif(not free, reason="this Python has a global lock, or it is switched on")
def test_the_extension_leaves_the_lock_off() -> None:
    code = "import sys, fastagg; sys.exit(sys._is_gil_enabled())"
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)


def test_lists_that_other_threads_change_while_they_are_read() -> None:
    server = fastagg.ASGD(torch.zeros(D), lr=0.0)
    answers: list[tuple[int, torch.Tensor]] = []
    arrays = [torch.ones(100), torch.ones(200)]
    counted: list[int] = []

    def add() -> None:
        for client in range(8):
            answers.append((server.dispatch(client).client, torch.ones(D)))
        del answers[:]

    def receive() -> None:
        outcomes = server.receive_many(answers)
        counted.append(sum(isinstance(one, fastagg.Receipt) for one in outcomes))

    layered = fastagg.ASGD([torch.zeros(100), torch.zeros(200)], lr=0.0)

    def replace() -> None:
        arrays[0] = torch.ones(100)
        arrays.append(torch.ones(3))
        arrays.pop()

    def send() -> None:
        task = layered.dispatch("sender")
        try:
            assert layered.receive(task.client, arrays, task.version, task=task.id).applied
        except fastagg.ShapeMismatch:  # there were three arrays at this moment
            layered.forget("sender")

    together(add, receive, receive, replace, send)
    assert server.version == sum(counted)


@pytest.mark.parametrize(("size", "numpy"), [(D, False), (40_000, False), (40_000, True)])
def test_what_is_handed_out_is_one_version_for_as_long_as_it_is_held(size: int, numpy: bool) -> None:
    """Every element of the version t is t, statistics too. Several steps come without a dispatch: they are in place."""
    model = {"w": torch.zeros(size), "bn.running_mean": torch.zeros(2), "v": torch.zeros(2, 2)}
    given = {name: value.clone().numpy() if numpy else value for name, value in model.items()}
    server = fastagg.ASGD(given, lr=1.0, buffers="latest")
    target, over, mixed = {name: value.clone() for name, value in model.items()}, threading.Event(), []

    def loaded() -> list[torch.Tensor]:
        for name, value in server.parameters().items():
            target[name].copy_(torch.tensor(value) if numpy else value)
        return list(target.values())

    reads: dict[str, Callable[[], list[torch.Tensor]]] = {
        "load_state_dict": loaded,
        "parameters": lambda: list(server.parameters().values()),
        "flat": lambda: [server.flat],
        "params": lambda: list(server.dispatch("reader").params.values()),
        "views": lambda: list(server.dispatch("viewer").views.values()),
        "state_dict": lambda: [server.state_dict()["flat"]],
        "state": lambda: [(state := server.state_dict())["flat"], state["buffers"]["values"]],
    }

    def read(name: str) -> None:
        held: list[tuple[float, list[torch.Tensor]]] = []
        while not over.is_set():
            one = reads[name]()
            found = {float(value) for array in one for value in (array.min(), array.max())}
            if name != "load_state_dict":
                held = [*held[-3:], (min(found), one)]
            if len(found) != 1 or any(bool((array != value).any()) for value, arrays in held for array in arrays):
                mixed.append(name)

    def write() -> None:
        try:
            for turn in range(60):
                for client in range(1 + turn % 4):
                    server.dispatch(client)
                for client in range(1 + turn % 4):
                    new = torch.full((2,), server.version + 1.0)
                    server.receive(client, {"w": -torch.ones(size), "v": -torch.ones(2, 2), "bn.running_mean": new})
        finally:
            over.set()

    together(write, *(partial(read, name) for name in reads), times=1)
    assert not mixed and server.version == 150 and float(server.flat.max()) == 150.0


def test_a_state_is_loaded_while_others_send() -> None:
    server = fastagg.FedBuff(torch.zeros(D), lr=1.0, buffer_size=2)
    saved = server.state_dict()
    outcomes: list[str] = []

    def send(client: str) -> Callable[[], None]:
        def answer() -> None:
            task = server.dispatch(client)
            try:
                outcomes.append(str(server.receive(client, torch.ones(D), task.version, task=task.id).task == task.id))
            except fastagg.errors.FastaggError as error:  # its task was lost with the state before
                outcomes.append(type(error).__name__)

        return answer

    together(send("a"), send("b"), send("c"), lambda: server.load_state_dict(saved))
    assert set(outcomes) <= {"True", "UnknownClient", "UnknownVersion", "StaleIncarnation", "AlreadyCounted"}
    assert "True" in outcomes and torch.isfinite(server.flat).all()


PROGRAM = """
import threading, time
import torch, fastagg

def work(server, client):
    update = torch.full((server.layout.size,), 1e-3)
    while True:
        task = server.dispatch(client)
        server.receive_model(task, update) if KIND[server] == "model" else server.receive(client, update)

KIND = {
    fastagg.FADAS(torch.zeros(20_000), buffer_size=3): "update",
    fastagg.FedAsync(torch.zeros(20_000)): "model",
    fastagg.ACE(torch.zeros(200_000), lr=0.1, num_clients=8, cache="int8"): "update",
}
for server in KIND:
    for client in range(8):
        threading.Thread(target=work, args=(server, client), daemon=True).start()
time.sleep(0.5)
while not all(server.version > 0 for server in KIND):
    time.sleep(0.1)
"""


def ends(program: str) -> float:
    """Run it, check that it ended as it should, and return the seconds that it took."""
    begun = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-P", "-c", program], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    return time.monotonic() - begun


def test_calls_of_daemon_threads_do_not_abort_the_end() -> None:
    """Torch's own methods let the GIL go, and a thread that Python ends there takes the process along."""
    ends(PROGRAM)


def test_the_end_may_call_itself() -> None:
    """What was registered with atexit before fastagg was imported runs after the end of calls."""
    ends(
        "import atexit\n"
        "atexit.register(lambda: (server.dispatch(1), server.receive(1, torch.ones(2)), print(server.version)))\n"
        "import threading, torch, fastagg\n"
        "server = fastagg.ASGD(torch.zeros(2), lr=0.1)\n"
        "thread = threading.Thread(target=server.dispatch, args=(0,))\n"
        "thread.start(), thread.join()"
    )
