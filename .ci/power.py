"""Runs some tests for a long time. Each run prints its progress, and ends with an error if a promise is broken.

python .ci/power.py power 100000      at least so many simulated losses of power (tests/support/simulated.py)
python .ci/power.py kill 10000        so many kills with SIGKILL (tests/durable/test_killed.py)
python .ci/power.py serve 1000        so many kills of `fastagg serve` (tests/serve/test_process.py)
python .ci/power.py uploads 500       the same, during uploads of 16 MB at the same time, some of which are cut
python .ci/power.py uploads 60 1 100  the same with the seed 1 and 100 MB
python .ci/power.py arrivals 10000000 so many arrivals at a server with a folder; memory and folder must not grow
python .ci/power.py silent 1000000    so many clients of such a server with leases; most clients never answer

python .ci/power.py damage 10000      so many damages to a folder's files (tests/support/damaged.py)

python .ci/power.py memory 600        for so many seconds, one allocation of each public call fails
python .ci/power.py threads 60        the same, but the system refuses threads: once, a few times, or always
python .ci/power.py files 600         the same, but a system call for a file fails, with every error

The third argument is the first seed, except for `arrivals` and `silent`. Runs with different seeds may run at the same
time. The fourth argument, for `uploads`, is the size of an update in MB.
"""

from __future__ import annotations

import logging
import sys
import tempfile
import time
from pathlib import Path
from unittest import mock

TESTS = Path(__file__).resolve().parents[1] / "tests"
sys.path[:0] = [str(TESTS), str(TESTS / "durable"), str(TESTS / "serve")]


def resident() -> int:
    """Return the resident bytes of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def flat(what: str, count: int) -> None:
    """Run `arrivals` or `silent`. Memory must not grow in the second half."""
    import torch

    import fastagg

    torch.set_num_threads(1)
    size, begun, first, most = 64, time.monotonic(), 0, 0
    update = torch.full((size,), 1e-6)

    def make() -> fastagg.Server:
        if what == "arrivals":
            return fastagg.FADAS(torch.zeros(size), buffer_size=5)
        return fastagg.FedAsync(torch.zeros(size), lease=0.5, max_open_per_client=1)

    with tempfile.TemporaryDirectory() as folder:
        with fastagg.open(folder, make, durability="none", checkpoint_every=1 << 26) as server:
            for done in range(1, count + 1):
                if what == "arrivals":
                    client: int | str = done % 1000
                    server.dispatch(client)
                    server.receive(client, update)
                else:
                    client = f"client {done}"
                    server.dispatch(client)
                    if done % 100 == 0:
                        server.receive(client, update)
                if done % (count // 20) == 0:
                    server.flush()  # up to 256 MiB of records wait while the disk is slow
                    on_disk = sum(file.stat().st_size for file in Path(folder).rglob("*") if file.is_file())
                    clients = server.memory()["clients"]
                    held = f"{resident() / 1e6:.0f} MB of memory ({clients / 1e6:.1f} of them for clients)"
                    took = f"{time.monotonic() - begun:.0f} s"
                    print(f"{what}: {done}, {held}, {on_disk / 1e6:.0f} MB of folder, {took}", flush=True)
                    most = max(most, resident())
                    if done == count // 20 * 10:
                        first = most
            if most > first + (16 << 20):
                raise SystemExit(f"memory grew from {first} to {most} bytes")
            version = server.version
        again = time.monotonic()
        with fastagg.open(folder, make) as server:
            assert server.version == version
        print(f"{what}: recovered version {version} in {time.monotonic() - again:.1f} s", flush=True)


def refuse(what: str, seconds: int, seed: int) -> None:
    """Let the machine refuse memory, threads or files to this or to fastagg's threads (tests/support/refusing.py)."""
    from support import refusing

    kind = {"memory": "memory", "threads": "thread", "files": "file"}[what]
    ways = [("mine", "plain"), ("mine", "stored"), ("others", "stored")]
    with tempfile.TemporaryDirectory() as folder:
        library = refusing.built(Path(folder))
        for whose, where in ways[what == "files" :]:
            share = 0.05 if what == "memory" else 0.3
            print(refusing.run(library, kind, whose, where, "", share, seed, seconds / len(ways)), flush=True)


def main(what: str, count: int, seed: int = 100, megabytes: int = 16) -> None:
    """Run the test ``what``, and print the progress after each part."""
    if what in ("arrivals", "silent"):
        return flat(what, count)
    if what in ("memory", "threads", "files"):
        return refuse(what, count, seed)
    if what == "damage":
        from support import damaged

        for done in range(0, count, 100):
            name = list(damaged.RULES)[done // 100 % len(damaged.RULES)]
            print(f"damage: {name}, seed {seed + done}: {dict(damaged.run(name, 100, seed + done))}", flush=True)
        return
    from support import simulated
    from test_killed import NAMES, kill

    from fastagg.durable import log

    if what in ("serve", "uploads"):  # they need the extra `serve`
        from test_process import kills

    begun, done, seen = time.monotonic(), 0, 0
    while done < count:
        name, seed = NAMES[seed % len(NAMES)], seed + 1
        if what == "power":
            logging.getLogger("fastagg").setLevel(logging.CRITICAL)  # errors are expected
            with mock.patch.object(log, "SMALL", 2 * simulated.SIZE):
                did = simulated.live(name, seed, 80, ("power", "kill_and_power"))
            part = sum("power" in action for action in did)
            seen += len(did)
        elif what == "serve":
            part = min(100, count - done)
            with tempfile.TemporaryDirectory() as folder:
                seen += kills(part, Path(folder), seed)
        elif what == "uploads":
            part = min(25, count - done)
            with tempfile.TemporaryDirectory() as folder:
                seen += kills(part, Path(folder), seed, workers=2, large=megabytes * 250_000)
        else:
            part = min(100, count - done)
            with tempfile.TemporaryDirectory() as folder:
                seen += kill(name, part, Path(folder), seed)[1]
        done += part
        told = "actions" if what == "power" else "acknowledgements"
        print(f"{what}: {done} of {count}, {seen} {told}, {time.monotonic() - begun:.0f} s, as promised", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
