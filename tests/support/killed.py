"""A process that gets killed. It opens a folder, reports the state it found, takes updates, and reports each."""

import hashlib
import json
import os
import sys
import time
import traceback
from pathlib import Path

import fastagg
from fastagg.durable.disk import Disk
from fastagg.durable.opening import open_on
from support.presets import PRESETS, calls, model, update

SIZE = 2000
ARRIVALS = 240


def mark(server: fastagg.Server) -> str:
    """Return a mark of the model and all that the rule stores, but not of the tasks."""
    state = server.state_dict(copy=False)
    digest = hashlib.sha256(state["flat"].numpy().tobytes())
    for moment in state["moments"].values():
        digest.update(moment.numpy().tobytes())
    digest.update(repr(sorted((k, str(v)) for k, v in state["direction"].items() if k != "scrub")).encode())
    digest.update(str((state["version"], state["steps"])).encode())
    return digest.hexdigest()


def answers(name: str) -> list[int]:
    """Return who sends the first update, the second, and so on."""
    return [call.client for call in calls(name, ARRIVALS) if call.number is not None]


def states(name: str) -> list[str]:
    """Return the marks of a server that is not killed: before its first update and after each."""
    server = PRESETS[name](model(SIZE))
    found = [mark(server)]
    for number, client in enumerate(answers(name)):
        server.dispatch(client)
        server.receive(client, update(number, SIZE), num_samples=1)
        found.append(mark(server))
    return found


def main(folder: str, name: str, marks: str) -> None:
    """Run until it is killed."""
    server = open_on(
        Disk(Path(folder), create=True),
        lambda: PRESETS[name](model(SIZE)),
        "arrival",
        segment=1 << 17,
        checkpoint_every=1 << 18,
    )
    found = json.loads(Path(marks).read_text()).index(mark(server))
    os.write(1, f"found {found}\n".encode())
    for number, client in list(enumerate(answers(name)))[found:]:
        server.dispatch(client)
        server.receive(client, update(number, SIZE), num_samples=1)
        os.write(1, f"{number + 1}\n".encode())
    os.write(1, b"done\n")
    time.sleep(600)


def breed(name: str, marks: str) -> None:
    """For every line of stdin, a folder, start a process that runs :func:`main`, and report when it has ended. Modules
    are not imported again, and this process itself never computes."""
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            os.write(1, f"pid {os.getpid()}\n".encode())
            try:
                main(line.strip(), name, marks)
            except BaseException:
                traceback.print_exc()
            os._exit(1)
        _, status = os.waitpid(child, 0)
        os.write(1, f"ended {os.waitstatus_to_exitcode(status)}\n".encode())


if __name__ == "__main__":
    breed(*sys.argv[1:])
