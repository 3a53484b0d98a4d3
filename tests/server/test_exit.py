"""A program may end while daemon threads, those of a gRPC server for example, are in the middle of calls."""

from __future__ import annotations

import subprocess
import sys
import time

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
