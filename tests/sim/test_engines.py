"""Where clients train changes nothing: in this process, its threads, or on Ray."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import Future
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from torch import nn

from fastagg import _extras
from fastagg.errors import ConfigError, MissingDependency, RunFailed
from fastagg.model import Layout
from fastagg.server.dispatch import Dispatch
from fastagg.sim import engines
from fastagg.sim.clients.own import Own
from fastagg.sim.clock.schedule import Job
from fastagg.sim.engines.ahead import Ahead
from fastagg.sim.many.cells import run_cells
from fastagg.sim.one.run import run, torch_settings
from fastagg.sim.one.simulation import Simulation
from fastagg.sim.recipes.config import to_toml
from fastagg.sim.recipes.tables import Cell
from fastagg.sim.show.progress import Watcher

from .engine_models import deadly, failing
from .test_resume import CASES, EVERY, TORCH, Killed, Stop, interrupt, same

needs_ray = pytest.mark.skipif(find_spec("ray") is None, reason="ray is not installed")


@pytest.fixture(scope="module", autouse=True)
def cluster():
    """One Ray for all tests: starting it takes seconds."""
    if find_spec("ray") is None:
        yield
        return
    import ray

    with pytest.MonkeyPatch.context() as patch:  # the models below are functions of a module that workers must find
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
        with contextlib.chdir(sys.prefix):  # whose package is the installed one: engines/ray.py does so, too
            ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


@needs_ray
@pytest.mark.parametrize(
    "name", ["FADAS", "FedBuff, BatchNorm", "ACE, client caches", "AsyncFedED", "FedAvg", "FedAsync, version delay"]
)
def test_by_torch_the_files_are_the_same_to_the_bit(tiny, tmp_path, name):
    config = tiny({**CASES[name], **TORCH})
    run(config, tmp_path / "here")
    run(config, tmp_path / "there", engine="ray", workers=2)
    same(tmp_path / "here", tmp_path / "there")


@needs_ray
@pytest.mark.parametrize(
    ("first", "second"), [({"engine": "ray", "workers": 2}, {"workers": 2}), ({}, {"engine": "ray", "workers": 2})]
)
def test_a_run_goes_on_with_any_engine(tiny, tmp_path, first, second):
    config = tiny({**CASES["FADAS"], **EVERY})
    run(config, tmp_path / "here")
    with pytest.raises(Killed):
        run(config, tmp_path / "cut", Stop(13), **first)
    run(config, tmp_path / "cut", resume="go on", **second)
    same(tmp_path / "here", tmp_path / "cut")


def test_an_engine_may_answer_at_any_time():
    """Nobody's update is taken for another's, and few are trained early."""

    class Late(Ahead):
        """Answers when it likes to."""

        def __init__(self, seed):
            super().__init__(most=3)
            self.draw, self.asked = random.Random(seed), []

        def submit(self, job):
            self.asked.append((Future(), (job.client, job.number)))
            return self.asked[-1][0]

        def result(self, job, future):
            while not future.done():
                late, value = self.asked.pop(self.draw.randrange(len(self.asked)))
                late.set_result(value)
            return future.result()

    layout = Layout.of(torch.zeros(2))
    for seed in (1, 2):
        ahead = Late(seed)
        order = random.Random(0)
        flying = [Job(client, 0, Dispatch(client, 0, None, None, layout, None)) for client in range(12)]
        for turn in range(100):
            job = flying.pop(0)
            assert ahead.take(job, lambda flying=flying: list(flying)) == (job.client, job.number)
            if turn == 50:
                ahead.forget([flying[0].client, flying[5].client])
            task = Dispatch(job.client, turn, None, None, layout, None)
            flying.insert(order.randrange(len(flying)), Job(job.client, job.number + 1, task))
            ahead.look(lambda flying=flying: list(flying))
            assert len(ahead.out) <= 6


@needs_ray
def test_a_large_model_is_the_same_and_goes_out_once_per_version(tiny, monkeypatch):
    """Updates of a megabyte."""
    import ray

    put, laid = ray.put, []

    def counted(value):
        laid.append(value)
        return put(value)

    monkeypatch.setattr(ray, "put", counted)
    config = tiny({"model.widths": [400, 400], **TORCH})
    result = run(config, engine="ray")
    assert result.rows == run(config).rows
    assert 5 < len(laid) <= result.rows[-1].version + 2  # the plan, and a model for each version


@needs_ray
def test_a_worker_that_dies_is_replaced_and_its_client_trained_again(tiny, tmp_path):
    flag = tmp_path / "flag"
    model = partial(deadly, flag=str(flag))
    run(tiny(), tmp_path / "here", model=model)
    flag.touch()
    run(tiny(), tmp_path / "there", model=model, engine="ray", workers=2)
    assert not flag.exists()
    same(tmp_path / "here", tmp_path / "there")


@needs_ray
def test_a_client_that_kills_every_worker_ends_the_run_by_name(tiny, tmp_path):
    (tmp_path / "flag").touch()
    model = partial(deadly, flag=str(tmp_path / "flag"), once=False)
    with pytest.raises(RunFailed, match=r"3 workers died while they trained client \d+ \(dispatch 0\), the last one: "):
        run(tiny(), model=model, engine="ray", workers=2)


@needs_ray
def test_an_exception_in_a_worker_comes_out_with_its_message(tiny):
    with pytest.raises(RunFailed, match=r"client \d+ \(dispatch 0\): ValueError: the weights went astray") as raised:
        run(tiny(), model=failing, engine="ray", workers=1)
    assert "engine_models.py" in raised.value.__notes__[0]


def test_what_cannot_be_done_is_said_before_anything_runs(tiny, monkeypatch):
    with pytest.raises(ConfigError, match="engine: expected one of 'here', 'ray', got 'pool'"):
        run(tiny(), engine="pool")
    with pytest.raises(ConfigError, match="workers: expected a whole number"):
        run(tiny(), workers=0)
    with pytest.raises(ConfigError, match=r"workers is 2, but torch trains this run's clients .*run\.fused is off"):
        run(tiny(TORCH), workers=2)
    with pytest.raises(ConfigError, match=r'run\.device is "meta": engine "ray" trains on CPUs'):
        engines.check_device("ray", torch.device("meta"))
    monkeypatch.setattr(_extras, "find_spec", lambda name: None)
    with pytest.raises(MissingDependency, match=r'engine ray needs ray, .*pip install "fastagg\[ray\]"'):
        run(tiny(), engine="ray")


@needs_ray
def test_what_a_program_passes_must_be_possible_to_pickle(tiny):
    run(tiny(), model=lambda shape, classes: nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), engine="ray")
    lock = threading.Lock()
    with pytest.raises(ConfigError, match="what was passed cannot be sent to Ray's workers"):
        run(tiny(), own=Own(loss=lambda logits, labels: lock), engine="ray")


@pytest.mark.parametrize("engine", ["here", pytest.param("ray", marks=needs_ray)])
def test_a_comparison_by_workers_is_the_same(tiny, tmp_path, engine):
    cells = [Cell(tiny({"seed": seed}), folder="tiny") for seed in (0, 1, 2)]

    told: list[str] = []

    class Telling(Watcher):
        def started(self, cell):
            told.append(cell.name)

        def advanced(self, cell, share):
            assert 0 <= share <= 1

        def ended(self, cell, outcome):
            told.append(cell.name)

    run_cells(cells, tmp_path / "here", None, Watcher())
    outcomes = run_cells(cells, tmp_path / "there", 2, Telling(), engine=engine)
    assert sorted(told) == sorted(2 * [cell.name for cell in cells])
    for cell in cells:
        assert outcomes[cell.name].summary["stopped"] == "finished"
        same(tmp_path / "here" / cell.name, tmp_path / "there" / cell.name)


def members(session: int) -> list[int]:
    """The processes of a session."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:  # it has just ended
            continue
        if int(fields[3]) == session and fields[0] != "Z":
            found.append(int(path.parent.name))
    return found


def begin(folder: Path, *arguments: str) -> subprocess.Popen:
    """Start the command line as a terminal does, in a session of its own; return when it has written a checkpoint."""
    file = folder / "cut" / "tiny" / "seed0" / "checkpoint.pt"
    before = file.stat().st_mtime_ns if file.exists() else 0
    command = [sys.executable, "-c", "from fastagg.cli import main; main()", *arguments]
    process = subprocess.Popen(
        command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    while not file.exists() or file.stat().st_mtime_ns == before:
        assert process.poll() is None
        time.sleep(0.01)
    return process


def all_end(session: int) -> None:
    deadline = time.monotonic() + 120
    while members(session):
        assert time.monotonic() < deadline, members(session)
        time.sleep(0.05)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are looked up in /proc")
def test_a_kill_and_ctrl_c_leave_no_process_and_the_run_goes_on(tiny, tmp_path):
    config = tiny({**TORCH, "run.checkpoint_every": 0.2, "run.uploads": 1000, "run.evaluate_every": 50})
    (tmp_path / "mine.toml").write_text(to_toml(config))
    for how in (signal.SIGKILL, signal.SIGINT):
        process = begin(tmp_path, "compare", "mine.toml", "--out", "cut", "--seeds", "2", "-j", "2")
        assert len(members(process.pid)) >= 3
        if how == signal.SIGINT:
            os.killpg(process.pid, how)  # as a terminal does, workers included
            assert process.wait(240) == 130
        else:
            process.kill()
            process.wait(60)
        all_end(process.pid)
    run(config, tmp_path / "whole")
    cut = tmp_path / "cut" / "tiny" / "seed0"
    assert run(config, cut, resume="go on").summary["uploads"] == 1000
    same(tmp_path / "whole", cut)


@needs_ray
def test_ctrl_c_with_ray(tiny, tmp_path):
    config = tiny({**TORCH, "run.uploads": 60})
    run(config, tmp_path / "whole")
    result = run(config, tmp_path / "cut", Stop(20, interrupt), engine="ray", workers=2)
    assert result.summary["interrupted"]
    run(config, tmp_path / "cut", resume="go on", engine="ray", workers=1)
    same(tmp_path / "whole", tmp_path / "cut")


@needs_ray
def test_more_workers_than_the_cluster_has_are_refused(tiny):
    with pytest.raises(ConfigError, match="workers is 3, more than the 2 CPUs of Ray's cluster"):
        run(tiny(), engine="ray", workers=3)


@needs_ray
def test_a_second_simulation_may_run_beside_the_first(tiny):
    """Workers belong to a simulation, not to the process."""
    one, other = (Simulation(tiny({**TORCH, "seed": seed}), engine="ray", workers=1) for seed in (0, 1))
    try:
        for _ in range(5):
            one.step()
            other.step()
    finally:
        one.close()
        other.close()
    with torch_settings(1):  # as workers have: a product may round by how many threads there are
        for simulation in (one, other):
            alone = Simulation(simulation.config)
            for _ in range(5):
                alone.step()
            assert torch.equal(alone.server.flat, simulation.server.flat)
