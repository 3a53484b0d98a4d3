"""Two hosts: network namespaces with a link between them, and in each a rank of a sharded server.

    unshare --user --map-root-user --net --uts --mount --kill-child python tests/support/sharded/hosts.py 0 FOLDER

Rank 0 makes the link and starts rank 1. Each has its own name and its own /dev/shm. They write down what they saw.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))  # as in pytest

import torch
import torch.distributed as dist

import fastagg
from support.presets import PRESETS, model, update

SIZE = 4 * 65_536 + 5_001
ARRIVALS = 12
TIMEOUT = 6.0
NAME = "FADAS, moments in 8 bits"
UNSHARE = ("unshare", "--net", "--uts", "--mount")
LINK = ("ip", "link", "add", "name", "veth0", "type", "veth", "peer", "name", "veth1")
MEMORY = ("mount", "-t", "tmpfs", "tmpfs", "/dev/shm")


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


def wait_for(what: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def make(piece: Any) -> fastagg.Server:
    return PRESETS[NAME](piece, seed=1)


def begin_host(rank: int) -> None:
    """Give this host a name, memory of its own and an address."""
    socket.sethostname(f"host-{rank}")
    subprocess.run(MEMORY, check=True)
    ip("link", "set", "lo", "up")
    ip("addr", "add", f"10.77.0.{rank + 1}/24", "dev", f"veth{rank}")
    ip("link", "set", f"veth{rank}", "up")


def join(rank: int) -> None:
    torch.set_num_threads(1)
    fastagg.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = f"veth{rank}"
    dist.init_process_group(
        "gloo", init_method="tcp://10.77.0.1:29577", rank=rank, world_size=2, timeout=timedelta(seconds=60)
    )


def on_the_wire(interface: str) -> int:
    """Return the bytes that went through an interface, both ways."""
    line = next(line for line in Path("/proc/self/net/dev").read_text().splitlines() if f"{interface}:" in line)
    words = line.partition(":")[2].split()
    return int(words[0]) + int(words[8])


def raised(call: Callable[[], Any]) -> list[Any]:
    begun = time.monotonic()
    try:
        call()
        said = ""
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
    return [said, time.monotonic() - begun]


def lead(server: fastagg.Server, found: dict[str, Any]) -> None:
    alone = make(model(SIZE))
    _, begin, end, _ = server.slices()[0]

    def sent(number: int) -> int:
        alone.dispatch(number % 3)
        version = server.dispatch(number % 3).version
        server.deliver(number % 3, update(number, SIZE)[begin:end], version)
        return version

    def arrive(number: int) -> bool:
        version = sent(number)
        return server.receive(number % 3, None, version) == alone.receive(number % 3, update(number, SIZE))

    found["hosts"] = [part.host for part in server.slices()]
    server.dispatch(5)
    found["shared"] = raised(lambda: server.receive(5, fastagg.SharedVector(SIZE)))[0]
    found["whole"] = raised(lambda: server.receive(5, update(0, SIZE)))[0]
    alone.dispatch(5)
    before, counted = on_the_wire("veth0"), server.traffic
    found["same"] = all([arrive(number) for number in range(ARRIVALS)])
    found["wire"] = (on_the_wire("veth0") - before) / ARRIVALS
    found["traffic"] = (server.traffic - counted) / ARRIVALS
    found["equal"] = torch.equal(server.parameters(), alone.flat)

    ip("link", "set", "veth0", "down")  # for less than the timeout
    threading.Timer(TIMEOUT / 6, ip, ["link", "set", "veth0", "up"]).start()
    found["after a gap"] = arrive(ARRIVALS) and torch.equal(server.parameters(), alone.flat)

    version = sent(ARRIVALS + 1)
    ip("link", "set", "veth0", "down")
    found["cut"] = raised(lambda: server.receive((ARRIVALS + 1) % 3, None, version))
    found["again"] = raised(lambda: server.dispatch(1))


def follow(server: fastagg.Server, found: dict[str, Any]) -> None:
    """A front end on this host gives every answer's slice to its rank."""
    _, begin, end, _ = server.slices()[1]
    count, last = iter(range(-1, ARRIVALS + 2)), 0.0

    def sent(task: fastagg.Dispatch) -> None:
        nonlocal last
        last = time.monotonic()
        if (number := next(count)) >= 0:  # the first task is not answered
            server.deliver(task.client, update(number, SIZE)[begin:end], task.version)

    said, _ = raised(lambda: server.follow(sent))
    found["cut"], found["version"] = [said, time.monotonic() - last], server.version


def main(rank: int, folder: Path) -> None:
    other = None
    if rank == 0:
        subprocess.run(LINK, check=True)
        other = subprocess.Popen([*UNSHARE, sys.executable, __file__, "1", str(folder)])
        wait_for((folder / "ready").exists)  # it has left this namespace
        ip("link", "set", "veth1", "netns", str(other.pid))
    else:
        (folder / "ready").touch()
        wait_for(lambda: "veth1" in dict(socket.if_nameindex()).values())
    begin_host(rank)
    join(rank)
    found: dict[str, Any] = {}
    server = fastagg.sharded(make, model(SIZE), timeout=TIMEOUT)
    (follow if rank else lead)(server, found)
    (folder / f"found-{rank}.json").write_text(json.dumps(found))
    if other is not None:
        other.wait(60)
    os._exit(0)  # the group cannot be closed without its link


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
