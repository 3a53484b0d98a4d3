"""What the machine refuses: in turn, every allocation, every start of a thread and every call for a file of every
public call. It runs with tests/native/refusing.c loaded before all else; ``run`` starts such a process.

Each call is made in a child of its own, on a server in the middle of its work. Then nothing is refused any more, and
the server must be as before the call, or as after it. Where it raised, it is as before, and raises what the machine
says.
"""

import collections
import ctypes
import errno
import faulthandler
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from test_open import equal, without_lives

import fastagg
from fastagg.durable import log
from fastagg.durable.disk import Disk
from fastagg.durable.opening import open_on
from support import operations
from support.operations import CHANGES, READS, Operation
from support.presets import PRESETS, model, update

SOURCE = Path(__file__).parents[1] / "native/refusing.c"
MEMORY, THREAD, FILE = 1, 2, 4
MINE, OTHERS = 1, 2
SIZE, CLIENTS = 300, 3
FOREVER = 1 << 40
NAMES = "FedBuff;ACE, int8;AsyncFedED;FedAC;CA2FL, int4;FADAS, extended, in 8 bits;FedAvg, deterministic"


def built(folder: Path) -> Path:
    """Compile the library that refuses."""
    library = folder / "refusing.so"
    subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", library, SOURCE, "-ldl"], check=True)
    return library


def run(library: Path, *arguments: object) -> str:
    """Run :func:`main` in a process with the library, or code after "-c". Return what it says."""
    root = Path(__file__).parents[1]
    paths = os.pathsep.join([str(root), str(root / "durable"), *filter(None, [os.environ.get("PYTHONPATH")])])
    env = {**os.environ, "LD_PRELOAD": str(library), "PYTHONMALLOC": "malloc", "PYTHONPATH": paths,
           "OMP_NUM_THREADS": "1", "REFUSING": str(library)}  # fmt: skip
    command = [sys.executable, "-P", *([] if arguments[0] == "-c" else [__file__]), *map(str, arguments)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-6000:]
    return done.stdout


Call = Callable[["Scene"], Any]
WRONG: list[str] = []  # what was, for the end of the output


class Scene:
    """A server in the middle of its work, with or without a folder in ``root``, and what a call is given."""

    def __init__(self, name: str, root: Path, stored: bool) -> None:
        self.name, self.root, self.folder = name, root, root / "state" if stored else None
        self.server = self.make() if self.folder is None else self.opened()
        for k in range(4):
            self.server.dispatch(k % CLIENTS)
            self.server.receive(k % CLIENTS, update(k, SIZE), num_samples=3)
        for client in range(CLIENTS):
            self.server.dispatch(client)
        for number in (7, 8):  # of the operations, which then find them made
            update(number, SIZE)
        self.file = root / "saved.pt"
        self.server.flush()

    def make(self) -> fastagg.Server:
        return PRESETS[self.name](model(SIZE))

    def opened(self) -> fastagg.Server:
        assert self.folder is not None
        return open_on(Disk(self.folder, create=True), self.make, "arrival", segment=1 << 16)

    def seen(self) -> Any:
        return without_lives(self.server)


def on_server(operation: Operation) -> Call:
    return lambda on: operation(on.server, 0, 7)


CALLS: dict[str, Call] = {
    **{name: on_server(operation) for name, operation in {**CHANGES, **READS}.items()},
    "save": lambda on: on.server.save(on.file),
}
PLAIN: dict[str, Call] = {
    "make": lambda on: on.make(),
    "load": lambda on: (on.server.save(on.file), fastagg.load(on.file)),
}
STORED: dict[str, Call] = {
    **{name: on_server(operation) for name, operation in operations.STORED.items()},
    "close and open": lambda on: closed_and_opened(on),
}
READING = {*READS, "save", "make", "load", *STORED}  # what changes no state


def closed_and_opened(on: Scene) -> None:
    """The folder's server again."""
    on.server.close()
    on.server = on.opened()


def point(scene: Callable[[], Scene], call: Call, plan: tuple[int, int, int, int, int], name: str) -> str:
    """Make one call while something is refused, and return what came of it. It ends with "!" if that is wrong."""
    library = ctypes.CDLL(os.environ["REFUSING"])
    kind, whose, after, count, number = plan
    on = scene()
    before = on.seen()
    refuse, allow, error = library.refuse, library.allow, None
    refuse(kind, whose, ctypes.c_long(after), ctypes.c_long(count), number)
    try:
        call(on)
    except BaseException as raised:
        error = raised
    calls = allow()
    if calls <= after:
        return "not reached"
    said = "" if error is None else f"{type(error).__name__}: {error!s:.150}"
    if error is not None and not is_named(error, kind):
        traceback.print_exception(error)
        return f"{said}!"
    if name == "close and open":
        return stored(on, before, before, said)
    after_it = on.seen()
    if error is not None and not equal(before, after_it):
        told = any(isinstance(one, fastagg.Receipt) for one in getattr(error, "outcomes", ()))
        if not (told or isinstance(error, fastagg.NotDurable)):  # which says that the answer may count
            return f"changed by a call that raised {said}!"
        if on.folder is None:
            return "raised, and said what counts"
    elif error is None and name in READING and not equal(before, after_it):
        return "changed by a call that reads!"
    if on.folder is not None:
        return stored(on, before, after_it, said)
    if error is not None and name not in READING:  # it works now
        call(on)
    return "raised" if error is not None else "the same"


def stored(on: Scene, before: Any, live: Any, said: str) -> str:
    """Open the folder again. It has what the server had, or if that could not be written, what it had before."""
    last = None
    try:
        on.server.close()
    except fastagg.FastaggError as error:
        last = error
    on.server = on.opened()
    found = on.seen()
    if not equal(live, found) and not (last and equal(before, found)):
        return f"after {said or 'no error'}, {last or 'closed'}: the folder has another state!"
    return "raised" if said else "the same"


def is_named(error: BaseException, kind: int) -> bool:
    """Whether an error says what the machine refused."""
    if isinstance(error, MemoryError):
        return kind == MEMORY
    if isinstance(error, (OSError, fastagg.FastaggError)):
        return True
    if isinstance(error.__cause__, MemoryError):
        return True
    last = traceback.extract_tb(error.__traceback__)[-1].filename
    # torch's own words, and what others' code makes of it. The last three are the interpreter's, which lost the error:
    # a frame that it cannot make, os.PathLike, which it takes for a class without __fspath__, and a lock.
    words = ("Failed to allocate", "can't allocate memory", "TensorBase", "Py_BuildValue",
             "error return without exception set", "path should be string", "can't allocate lock")  # fmt: skip
    return any(part in str(error) for part in words) or "fastagg" not in Path(last).parts[-4:]


def every(
    name: str, what: str, plan: tuple[int, int], share: float, seed: int, ends: float, stored_too: bool
) -> collections.Counter[str]:
    """All points of a call, or a share of them. Memory is refused once; all else once, a few times, or for good."""
    kind, whose = plan
    rng, found, after = random.Random(f"{name} {what} {seed}"), collections.Counter[str](), 0
    times = [1] if kind == MEMORY else [1, 3, FOREVER]
    call = {**CALLS, **PLAIN, **STORED}[what]
    errors = {
        MEMORY: [errno.ENOMEM],
        THREAD: [errno.EAGAIN],
        FILE: [errno.EIO, errno.ENOSPC, errno.EMFILE, errno.ENOMEM, errno.EDQUOT, errno.EROFS],
    }[kind]
    while time.monotonic() < ends:
        if share < 1:
            after += int(rng.expovariate(share))
        with tempfile.TemporaryDirectory() as folder:
            now = (kind, whose, after, rng.choice(times), rng.choice(errors))
            outcome = in_child(partial(point, partial(Scene, name, Path(folder), stored_too), call, now, what))
        if outcome == "not reached":
            break
        found["wrong" if outcome.endswith("!") else outcome] += 1
        if outcome.endswith("!"):
            WRONG.append(f"{name}, {what}, {'stored' if stored_too else 'plain'}, {after}: {outcome}")
        after += 1
    return found


# What ends a process though none of our code asked for the memory: glibc cannot register a thread's first variable of
# torch's, torch does not look at what Python gave it, and CPython's Thread.start waits for a thread that has not begun.
NOT_OURS = r"Fatal glibc error|cannot allocate memory for thread-local data|threading\.py\", line \d+ in start\n"


def in_child(act: Callable[[], str]) -> str:
    """Return what ``act`` returns in a forked process, or how that ended."""
    with tempfile.TemporaryFile("w+", errors="replace") as words:
        said = _in_child(act, words.fileno())
        words.seek(0)
        text = words.read()
    refused = text.rpartition("refused at:")[2]
    ours = "_native" in refused if refused != text else True
    if said.startswith("ended by") and (re.search(NOT_OURS, text) or not ours):
        return "ended by Python's, torch's or the C library's own code"
    if said.endswith("!"):
        print(text, flush=True)
    return said


def _in_child(act: Callable[[], str], words: int) -> str:
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        os.dup2(words, 2)
        said = "!"
        try:
            faulthandler.dump_traceback_later(60, exit=True)
            said = act()
        except BaseException as error:
            traceback.print_exc()
            said = f"afterwards: {type(error).__name__}: {error!s:.300}!"
        finally:
            os.write(writes, said.encode())
            os._exit(0)
    os.close(writes)
    with os.fdopen(reads) as pipe:
        said = pipe.read()
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return f"ended by {signal.Signals(os.WTERMSIG(status)).name}!"
    return said if status == 0 else f"ended by {status}, {said}!"


def main(kind: str, whose: str, where: str, names: str, share: str, seed: str, seconds: str, only: str = "") -> None:
    """Refuse, and print how many points had which outcome. It ends with an error if one was wrong."""
    ends = time.monotonic() + float(seconds)
    log.SMALL = 0  # so that an update in chunks has a file
    plan = {"memory": MEMORY, "thread": THREAD, "file": FILE}[kind], {"mine": MINE, "others": OTHERS}[whose]
    total = collections.Counter[str]()
    stored_too = where == "stored"
    calls = {**CALLS, **(STORED if stored_too else PLAIN)}
    for name in (names or NAMES).split(";"):
        for what, call in calls.items():
            if only not in ("", what):
                continue
            with tempfile.TemporaryDirectory() as folder:  # what is imported or made once
                warm = Scene(name, Path(folder), stored_too)
                try:
                    call(warm)
                except fastagg.FastaggError:
                    continue  # not a call of this rule
                finally:
                    warm.server.close()
            found = every(name, what, plan, float(share), int(seed), ends, stored_too)
            total.update(found)
            print(f"{kind}, {whose}, {where}, {name}, {what}: {dict(found)}", flush=True)
    print(*WRONG, f"sum: {dict(total)}", sep="\n")
    sys.exit(1 if total["wrong"] else 0)


if __name__ == "__main__":
    main(*sys.argv[1:])
