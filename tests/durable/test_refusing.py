"""The machine refuses memory, a thread or a call for a file: the server is as before, or as after the call, and says
what was refused. A small share of all points; ``.ci/power.py memory|threads|files SECONDS`` takes more."""

import os
import signal
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support import refusing

import fastagg

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="calls are refused as on Linux")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return refusing.built(tmp_path_factory.mktemp("refusing"))


# What Python reads, what the engine reads, and rows.
@pytest.mark.parametrize(
    ("kind", "whose", "where", "names", "share"),
    [
        ("memory", "mine", "plain", "AsyncFedED", 0.001),
        ("memory", "mine", "stored", "FedBuff;ACE, int8", 0.0005),
        ("memory", "others", "stored", "FedBuff", 0.003),
        ("thread", "mine", "stored", "FedBuff", 0.5),
        ("file", "mine", "stored", "ACE, int8", 0.02),
        ("file", "others", "stored", "FedBuff", 0.03),
    ],
)
def test_what_is_refused_is_said_and_changes_nothing(
    kind: str, whose: str, where: str, names: str, share: float, library: Path
) -> None:
    said = refusing.run(library, kind, whose, where, names, share, 1, 60)
    assert "'raised'" in said or "'the same'" in said


def test_nothing_is_needed_after_a_round_was_closed(library: Path) -> None:
    """Every point of it: a call that raised has made no step."""
    assert "'raised'" in refusing.run(library, "memory", "mine", "stored", "FedBuff", 1, 1, 60, "close_round")


def test_without_threads_the_results_are_the_same(library: Path) -> None:
    code = """
import ctypes, os, sys, torch, fastagg
from fastagg._build import native
from support.presets import update
library = ctypes.CDLL(os.environ["REFUSING"])
library.refuse(2, 3, ctypes.c_long(int(sys.argv[1])), ctypes.c_long(1 << 40), 11)
fastagg.set_num_threads(4)
server = fastagg.FADAS(torch.zeros(300_000), buffer_size=1)
for k in range(3):
    server.dispatch(0)
    server.receive(0, update(k, 300_000))
print(server.flat.double().sum().item().hex(), flush=True)
os._exit(0)
"""
    found = {refusing.run(library, "-c", code, threads) for threads in (0, 1, 1 << 40)}
    assert len(found) == 1


def call_without_memory(call: refusing.Call, on: refusing.Scene, after: int) -> tuple[Any, BaseException | None]:
    """Make a call in which all allocations of Python's fail from one on."""
    hooks = pytest.importorskip("_testcapi")
    begin, end, got, error = hooks.set_nomemory, hooks.remove_mem_hooks, None, None
    begin(after, 0)
    try:
        got = call(on)
    except BaseException as raised:
        error = raised
    end()
    return got, error


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.parametrize("what", {**refusing.CALLS, **refusing.PLAIN, **refusing.STORED})
def test_where_python_has_no_memory_left_a_call_ends_with_an_error(what: str) -> None:
    """It ends the process nowhere, and says what counts."""
    call = {**refusing.CALLS, **refusing.PLAIN, **refusing.STORED}[what]

    def act(after: int, folder: Path) -> str:
        on = refusing.Scene("FedBuff", folder, what in refusing.STORED)
        before = on.seen()
        # with no memory CPython 3.11 may try for ever to begin a handler that lies far behind its function's begin
        signal.alarm(10)
        got, error = call_without_memory(call, on, after)
        signal.alarm(0)
        if error is None:
            outcomes = got if what == "receive_many" else []
            return "the same" if all(isinstance(one, (fastagg.Receipt, MemoryError)) for one in outcomes) else f"{got}!"
        if not isinstance(error, (MemoryError, OSError, fastagg.FastaggError)):
            return f"{error!r}!"
        if what != "close and open" and not refusing.equal(before, on.seen()):
            return f"{error!r} changed it!"
        return "raised"

    for after in (0, 1, 2, 4, 9, 22):
        with tempfile.TemporaryDirectory() as folder:
            said = refusing.in_child(partial(act, after, Path(folder)))
        assert not said.endswith("!") or said == "ended by SIGALRM!", (after, said)
