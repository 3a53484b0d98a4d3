"""The worker threads: calls from many threads, changes of their number, forks, and other pools beside them."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from support.kernels import same_bits, vector

import fastagg
from fastagg import ops

pytestmark = [pytest.mark.skipif(ops.on_cuda(torch.device("cpu")), reason="of the CPU's kernels"), pytest.mark.kernel]
SIZE = 300_001  # enough for a call to be shared


def steps(count: int, seed: int) -> torch.Tensor:
    """The model after some steps of two kinds."""
    x, m, given = vector(SIZE, seed), torch.zeros(SIZE), vector(SIZE, seed + 1)
    for step in range(count):
        ops.step_(x, given, optimizer="momentum", lr=0.1, m=m, gain=1.0 / (1 + step))
        ops.accumulate_(m, given, ops.inspect(x).norm * 1e-6)
    return x


@pytest.fixture
def alone(threads: None) -> list[torch.Tensor]:
    """The result of each of four callers on one thread."""
    fastagg.set_num_threads(1)
    return [steps(20, 10 * caller) for caller in range(4)]


def test_many_callers_at_once_while_the_number_changes(alone: list[torch.Tensor]) -> None:
    found: dict[int, torch.Tensor] = {}
    fastagg.set_num_threads(2)
    callers = [
        threading.Thread(target=lambda c=caller: found.update({c: steps(20, 10 * c)})) for caller in range(len(alone))
    ]
    for caller in callers:
        caller.start()
    changes = 0
    while any(caller.is_alive() for caller in callers):
        fastagg.set_num_threads((1, 2, 5, 3)[changes % 4])
        changes += 1
        time.sleep(1e-3)
    for caller in callers:
        caller.join()
    assert changes > 4
    assert all(same_bits(found[caller], expected) for caller, expected in enumerate(alone))


@pytest.mark.parametrize("spin", [0, 1000])
@pytest.mark.parametrize("count", [2, 5])
def test_workers_that_stay_awake_or_do_not(
    spin: int, count: int, alone: list[torch.Tensor], tuning: Callable[..., None]
) -> None:
    tuning(spin=spin)
    fastagg.set_num_threads(count)
    assert same_bits(steps(20, 10), alone[1])
    time.sleep(0.01)  # asleep again, however long they stayed
    assert same_bits(steps(20, 20), alone[2])


def test_right_after_a_parallel_operation_of_torch(alone: list[torch.Tensor]) -> None:
    """torch's own threads stay awake for a while and take the cores."""
    fastagg.set_num_threads(2)
    a = torch.ones(400, 400)
    for caller, expected in enumerate(alone):
        b = a @ a
        got = steps(20, 10 * caller)
        assert same_bits(got, expected)
        assert float(b[0, 0]) == 400.0


def test_the_number_of_threads_is_the_callers_own(threads: None) -> None:
    """After changes of the thread count (more, fewer, none, more again) no work is left to threads that are gone."""
    x, given = torch.zeros(SIZE), torch.ones(SIZE)
    for step, count in enumerate((1, 4, 2, 1, 3, 2), start=1):
        fastagg.set_num_threads(count)
        ops.step_(x, given, optimizer="sgd", lr=1.0)
        assert bool((x == step).all())


FORK = """
import os, signal, sys, time
import numpy as np
import torch
import fastagg
from fastagg import ops
fastagg._build.native.set_tuning({"spin": 100000})
fastagg.set_num_threads(2)
x, given = torch.zeros(500_000), torch.ones(500_000)
for turn in range(1, 9):
    ops.step_(x, given, optimizer="sgd", lr=1.0)
    child = os.fork()  # a worker of the parent's is awake
    if child == 0:
        signal.alarm(60)  # a child that hangs
        ops.step_(x, given, optimizer="sgd", lr=1.0)
        ops.step_(x, given, optimizer="sgd", lr=1.0)
        os._exit(0 if fastagg.get_num_threads() == 2 and (x.numpy() == turn + 2).all() else 1)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status != 0:
        sys.exit(f"turn {turn}: the child ended with {status}")
assert (x.numpy() == 8).all()
print("all is well")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_fork_while_a_worker_is_awake(tmp_path: Path) -> None:
    path = os.pathsep.join(filter(None, [str(Path(fastagg.__file__).parents[1]), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, "-c", FORK], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120,
        env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip
    assert (done.returncode, done.stdout.strip()) == (0, "all is well"), done.stderr
