"""Where runs go on changes nothing: in this process, or in others beside it."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from torch import nn

from fastagg import sim
from fastagg.errors import ConfigError
from fastagg.sim.comparison.cells import run_cells
from fastagg.sim.data.federated import FederatedData, Samples
from fastagg.sim.recipes.config import to_toml
from fastagg.sim.recipes.tables import Cell
from fastagg.sim.runs.run import run
from fastagg.sim.show.progress import Watcher

from .test_resume import TORCH, same


def test_what_cannot_be_done_is_said_before_anything_runs(tiny, tmp_path):
    with pytest.raises(ConfigError, match="workers: expected a whole number"):
        sim.run(tiny(), workers=0)
    with pytest.raises(ConfigError, match=r"workers is 2, but torch trains this run's clients .*run\.fused is off"):
        sim.run(tiny(TORCH), workers=2)
    with pytest.raises(ConfigError, match="jobs: expected a whole number"):
        sim.compare(tiny(), jobs=0, out=tmp_path)


def test_a_comparison_by_processes_is_the_same(tiny, tmp_path):
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
    outcomes = run_cells(cells, tmp_path / "there", 2, Telling())
    assert sorted(told) == sorted(2 * [cell.name for cell in cells])
    for cell in cells:
        assert outcomes[cell.name].summary["stopped"] == "finished"
        same(tmp_path / "here" / cell.name, tmp_path / "there" / cell.name)


def linear(shape, classes):
    return nn.Sequential(nn.Linear(shape[0], 4), nn.ReLU(), nn.Linear(4, classes))


def test_a_program_s_data_goes_to_the_processes_whole_whatever_their_load(tmp_path):
    """More tensors than a process may be sent files, and results that outlive the process that made them."""
    clients = [Samples(torch.full((2, 3), float(n)), torch.tensor([0, 1])) for n in range(200)]
    data = FederatedData(clients, clients[0], 2)
    short = {"run.uploads": 4, "participation.concurrency": 5}
    apart, here = (sim.compare("fedbuff-digits-large", short, data=data, model=linear, seeds=3, jobs=jobs,
                               out=tmp_path / str(jobs)) for jobs in (2, None))  # fmt: skip
    assert not apart.failed and [result.rows for result in apart.results] == [result.rows for result in here.results]


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
