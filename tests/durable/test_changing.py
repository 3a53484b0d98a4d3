"""The sender's memory changes between every two reads of it: what is checked, what steps and what is in the log are the
same bytes all the same."""

import ctypes
import mmap
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_open import again, equal, opened, without_lives

import fastagg

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="pages are closed as on Linux")

SOURCE = Path(__file__).parents[1] / "native" / "changing.c"
PAGE = 4096
SIZES = {"small": 6 * PAGE // 4, "large": 300 * PAGE // 4}  # below and above 8,192, from which a step reads by itself
RULES: dict[str, Callable[[Any], fastagg.Server]] = {
    "ASGD": lambda x: fastagg.ASGD(x, lr=1.0),
    "FedBuff": lambda x: fastagg.FedBuff(x, buffer_size=2),
    "FADAS": lambda x: fastagg.FADAS(x, buffer_size=2, lr=1e-3),
    "FedAsync": lambda x: fastagg.FedAsync(x),
    "FedBuff, clipped": lambda x: fastagg.FedBuff(x, buffer_size=2, clip_norm=1.0),
    "ACE, int8": lambda x: fastagg.ACE(x, lr=0.1, num_clients=3, cache="int8", warmup="partial"),
    "CA2FL, int4": lambda x: fastagg.CA2FL(x, num_clients=3, buffer_size=2, cache="int4"),
    "AsyncFedED": lambda x: fastagg.AsyncFedED(x, lam=1.0, eps=1.0),
}


class Sender:
    """A buffer of ``size`` numbers that may change between two reads."""

    def __init__(self, library: Any, size: int) -> None:
        self.library, self.nbytes = library, 4 * size
        self.memory = mmap.mmap(-1, self.nbytes)
        self.array = np.frombuffer(self.memory, np.float32)
        self.pages = self.nbytes // PAGE

    def during(self, call: Callable[[], Any], seed: int) -> tuple[Any, int]:
        """Return what a call returns, and how often it read a page."""
        self.array[:] = np.random.default_rng(seed).standard_normal(self.array.size) * 0.01
        self.library.watch(ctypes.c_void_p(self.array.ctypes.data), ctypes.c_long(self.nbytes))
        try:
            found = call()
        finally:
            reads = self.library.unwatch()
        return found, reads


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needed to compile the memory that changes, and not found: cc")
    made = tmp_path_factory.mktemp("changing") / "changing.so"
    subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-o", made, SOURCE], check=True)
    found = ctypes.CDLL(str(made))
    found.unwatch.restype = ctypes.c_long
    yield found


def test_a_second_read_sees_other_numbers(library: Any) -> None:
    sender = Sender(library, SIZES["small"])
    sums, reads = sender.during(lambda: [float(sender.array.sum()) for _ in range(2)], 1)
    assert sums[0] != sums[1] and reads == 2 * sender.pages


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", RULES)
def test_what_is_recovered_is_what_was_there(name: str, size: str, library: Any, tmp_path: Path) -> None:
    sender = Sender(library, SIZES[size])

    def make() -> fastagg.Server:
        return RULES[name](torch.zeros(SIZES[size]))

    server = opened(tmp_path / "a", make)
    given = torch.from_numpy(sender.array)
    for k in range(5):
        server.dispatch(k % 3)
        receipt, reads = sender.during(lambda k=k: server.receive(k % 3, given), k)  # type: ignore[misc]
        assert receipt.durable
        assert (
            sender.pages <= reads <= sender.pages + 8 + 16
        )  # threads may share a page; a few numbers are compared with the model
        if k == 3:
            server.checkpoint()
    found = again(server, tmp_path / "b", make)
    assert equal(without_lives(found), without_lives(server))
    found.close()
    server.close()


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", RULES)
def test_without_a_folder_each_page_is_read_once(name: str, size: str, parts: int, library: Any) -> None:
    sender, each = Sender(library, SIZES[size]), SIZES[size] // parts
    server = RULES[name](torch.zeros(each) if parts == 1 else [torch.zeros(each) for _ in range(parts)])
    whole = torch.from_numpy(sender.array)
    given = whole if parts == 1 else list(whole.split(each))
    for k in range(4):
        server.dispatch(k % 3)
        before = server.flat.clone()
        receipt, reads = sender.during(lambda k=k: server.receive(k % 3, given), k)  # type: ignore[misc]
        looked = 16  # a few numbers are compared with the model
        assert sender.pages <= reads <= sender.pages + 8 + looked
        if name == "ASGD":  # the norm is that of what has stepped
            moved = float((before.double() - server.flat.double()).norm())
            assert receipt.update_norm == pytest.approx(moved, rel=1e-6)
