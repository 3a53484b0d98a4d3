"""A run that was stopped at any point and resumed ends as if it had never stopped."""

import copy
import gc
import json
import signal
import subprocess
import sys
import time

import pytest
import torch
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from support.properties import examples

from fastagg.errors import CheckpointError, ConfigError, DataError
from fastagg.server import checkpoint
from fastagg.sim.one import output
from fastagg.sim.one.result import Folder
from fastagg.sim.one.run import run
from fastagg.sim.one.simulation import Simulation
from fastagg.sim.recipes.config import to_toml
from fastagg.sim.show.progress import Progress

EVERY = {"run.checkpoint_every": 0.0}
ALL = {"participation": {"rule": "all"}}
GRADIENTS = {**ALL, "client.steps": 1, "client.batch_size": 8}
CASES = {
    "FADAS": {"algorithm": {"name": "FADAS", "lr": 0.01, "buffer_size": 3, "delay_threshold": 2}},
    "FedBuff, CNN, suspension": {"model.name": "cnn", "model.widths": [4], "delay.suspension": 0.3},
    "ACE int8": {**GRADIENTS, "algorithm": {"name": "ACE", "lr": 0.1, "cache": "int8"}},
    "ACE, client caches": {**GRADIENTS, "algorithm": {"name": "ACE", "lr": 0.1, "mode": "client"}},
    "ACED, dropout": {**GRADIENTS, "algorithm": {"name": "ACED", "lr": 0.1}, "dropout.share": 0.5},
    "AsyncFedED": {
        **ALL,
        "algorithm": {"name": "AsyncFedED", "lam": 0.5, "eps": 0.5, "max_local_steps": 15},
        "delay": {"name": "exponential", "speed": 1e4},
    },
    "CA2FL": {"algorithm": {"name": "CA2FL", "buffer_size": 3}, "delay": {"name": "size-tied", "gamma": 0.5}},
    "FedAC": {"algorithm": {"name": "FedAC", "lr": 0.01, "buffer_size": 3}},
    "FedEcho": {
        "algorithm": {"name": "FedEcho", "buffer_size": 3},
        "unlabelled.share": 0.5,
        "model": {"name": "mlp", "widths": [8]},
    },
    "FedAvg": {"algorithm": {"name": "FedAvg", "clients_per_round": 4}, "participation": {"rule": "round"}},
    "FedAsync, version delay": {**ALL, "algorithm": {"name": "FedAsync"}, "delay": {"name": "version", "tau_max": 3}},
}


class Killed(BaseException):
    """Stands for kill -9: nothing of the package catches it."""


class KilledAt(Progress):
    def __init__(self, uploads: int) -> None:
        self.uploads = uploads
        self.calls = 0

    def advanced(self, share: float) -> None:
        self.calls += 1
        if self.calls > self.uploads:
            raise Killed


def ending(folder):
    """What a run ended with, wall-clock time aside."""
    summary = json.loads((folder / "summary.json").read_text())
    del summary["wall_seconds"], summary["server_share"]
    files = [(folder / name).read_bytes() for name in ("metrics.csv", "delays.csv", "config.toml")]
    if "distillation" in summary:
        summary["distillation"] = {k: v for k, v in summary["distillation"].items() if not k.endswith("seconds")}
    return summary, files, checkpoint.read(folder / "checkpoint.pt")["flat"]


def same(folder, other):
    (a, rows, model), (b, other_rows, other_model) = ending(folder), ending(other)
    assert a == b
    assert rows == other_rows
    assert torch.equal(model, other_model)


@pytest.mark.parametrize("name", CASES)
@examples(3, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cuts=st.lists(st.integers(0, 29), min_size=1, max_size=2))
def test_killed_at_any_update_a_run_ends_bit_identical(tiny, tmp_path_factory, name, cuts):
    folder = tmp_path_factory.mktemp("runs")
    config = tiny({**CASES[name], **EVERY})
    run(config, folder / "whole")
    for cut in cuts:
        with pytest.raises(Killed):
            run(config, folder / "cut", KilledAt(cut), resume="go on")
            raise Killed  # the run was over before the second cut
    run(config, folder / "cut", resume="go on")
    same(folder / "whole", folder / "cut")


@pytest.mark.parametrize("name", CASES)
def test_a_checkpoint_written_seldom_costs_repeated_work_and_no_row(tiny, tmp_path, name):
    config = tiny({**CASES[name], "run.checkpoint_every": 1e6, "run.evaluate_every": 1})
    run(config, tmp_path / "whole")

    class Twice(Progress):
        calls = 0

        def advanced(self, share):
            self.calls += 1
            if self.calls == 9:
                Folder(tmp_path / "cut", config).keep(simulation[0])
            if self.calls == 14:
                raise Killed

    simulation = []
    begin = Simulation.__init__

    def kept(self, *given):
        begin(self, *given)
        simulation.append(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Simulation, "__init__", kept)
        with pytest.raises(Killed):
            run(config, tmp_path / "cut", Twice())
    assert not (tmp_path / "cut" / "summary.json").exists()
    run(config, tmp_path / "cut", resume="go on")
    same(tmp_path / "whole", tmp_path / "cut")


def test_a_state_is_of_one_config_and_leaves_another_alone(tiny):
    simulation = Simulation(tiny({**CASES["ACE int8"], "run.uploads": 60}))
    for _ in range(10):
        simulation.step()
    state = simulation.state_dict()
    other = Simulation(tiny({**CASES["ACE int8"], "run.uploads": 60, "seed": 1}))
    begun, before = other.uploads, other.server.flat.clone()
    with pytest.raises(CheckpointError, match="another run"):
        other.load_state_dict(state)
    assert other.uploads == begun and torch.equal(other.server.flat, before)
    again = Simulation(simulation.config)
    again.load_state_dict(copy.deepcopy(state))
    for _ in range(10):
        simulation.step()
        again.step()
    assert again.uploads == simulation.uploads == 20
    assert torch.equal(again.server.flat, simulation.server.flat)
    assert not torch.equal(again.server.flat, before)


def test_killed_by_the_operating_system(tiny, tmp_path):
    config = tiny({"run": {"uploads": 250, "evaluate_every": 2, "checkpoint_every": 0.0}})
    run(config, tmp_path / "whole")
    (tmp_path / "mine.toml").write_text(to_toml(config))
    program = "from fastagg.cli import main; main()"
    command = [sys.executable, "-c", program, "run", "mine.toml", "--out", "cut", "--resume"]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not (tmp_path / "cut" / "checkpoint.pt").exists():
        assert process.poll() is None
        time.sleep(0.01)
    time.sleep(0.2)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    assert not (tmp_path / "cut" / "summary.json").exists()
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    same(tmp_path / "whole", tmp_path / "cut")
    assert not list((tmp_path / "cut").glob("*.partial"))


def test_an_interrupted_run_goes_on_without_the_row_the_interrupt_added(tiny, tmp_path):
    config = tiny({"run.uploads": 60})
    run(config, tmp_path / "whole")

    class Interrupting(Progress):
        calls = 0

        def advanced(self, share):
            self.calls += 1
            if self.calls == 20:
                signal.raise_signal(signal.SIGINT)

    result = run(config, tmp_path / "cut", Interrupting())
    assert result.summary["interrupted"] and result.rows[-1].uploads % 12 != 0
    run(config, tmp_path / "cut", resume="go on")
    same(tmp_path / "whole", tmp_path / "cut")


def test_a_finished_run_is_read_and_not_run_again(tiny, tmp_path, monkeypatch):
    first = run(tiny(), tmp_path)
    monkeypatch.setattr(Simulation, "step", lambda self: pytest.fail("trained again"))
    again = run(tiny(), tmp_path, resume="go on")
    assert (again.rows, again.summary, again.unit) == (first.rows, first.summary, first.unit)


def test_resuming_where_nothing_is_starts_from_the_beginning(tiny, tmp_path):
    run(tiny(), tmp_path / "a", resume="go on")
    run(tiny(), tmp_path / "b")
    same(tmp_path / "a", tmp_path / "b")


def test_with_replace_an_old_run_is_deleted(tiny, tmp_path):
    run(tiny(), tmp_path)
    with pytest.raises(Killed):
        run(tiny({"seed": 1}), tmp_path, KilledAt(0), replace=True)
    assert {path.name for path in tmp_path.iterdir()} == {"config.toml"}  # nothing of the old run under a new config


def test_a_folder_with_another_run_is_refused_and_left_alone(tiny, tmp_path):
    run(tiny(), tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(ConfigError, match=r"other settings \(client.lr, seed\)"):
        run(tiny({"seed": 1, "client.lr": 0.2}), tmp_path, resume="go on")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_damaged_files_are_said(tiny, tmp_path):
    with pytest.raises(Killed):
        run(tiny(EVERY), tmp_path, KilledAt(5))
    whole = (tmp_path / "checkpoint.pt").read_bytes()
    (tmp_path / "checkpoint.pt").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(CheckpointError, match=r"checkpoint.pt"):
        run(tiny(EVERY), tmp_path, resume="go on")
    (tmp_path / "summary.json").write_text("{")
    with pytest.raises(DataError, match=r"summary.json"):
        run(tiny(EVERY), tmp_path, resume="go on")


def test_a_full_disk_ends_the_run_and_leaves_the_last_checkpoint_whole(tiny, tmp_path, monkeypatch):
    config = tiny(EVERY)
    run(config, tmp_path / "whole")

    def full(*args):
        raise OSError(28, "No space left on device")

    class FullAfter(Progress):
        calls = 0

        def advanced(self, share):
            self.calls += 1
            if self.calls == 8:
                monkeypatch.setattr("fastagg.server.checkpoint.os.fsync", full)

    with pytest.raises((CheckpointError, DataError), match="No space left"):
        run(config, tmp_path / "cut", FullAfter())
    monkeypatch.undo()
    run(config, tmp_path / "cut", resume="go on")
    same(tmp_path / "whole", tmp_path / "cut")


@pytest.mark.parametrize("file", ["delays.csv", "summary.json"])
def test_a_full_disk_at_the_end_costs_no_training(tiny, tmp_path, monkeypatch, file):
    run(tiny(), tmp_path / "whole")
    write = output.write_text

    def full(path, text):
        if path.name == file:
            raise OSError(28, "No space left on device")
        write(path, text)

    monkeypatch.setattr(output, "write_text", full)
    with pytest.raises(DataError, match="No space left"):
        run(tiny(), tmp_path / "cut")
    monkeypatch.undo()
    monkeypatch.setattr(Simulation, "step", lambda self: pytest.fail("trained again"))
    run(tiny(), tmp_path / "cut", resume="go on")
    same(tmp_path / "whole", tmp_path / "cut")


@pytest.mark.parametrize("name", ["FADAS", "AsyncFedED", "FedAsync, version delay", "ACE int8", "FedAvg"])
def test_memory_does_not_grow_with_the_number_of_updates(tiny, name):
    simulation = Simulation(tiny({**CASES[name], "run": {"uploads": 2000}}))
    counts, held = [], []
    for upload in range(1, 601):
        simulation.step()
        if upload % 10 == 0:
            memory = simulation.server.memory()
            held.append(memory["total"] - memory["clients"])
            assert memory["clients"] < 300_000  # with the last 16,384 tasks that ended
        if upload in (300, 600):
            gc.collect()
            counts.append(len(gc.get_objects()))
    assert counts[1] < counts[0] + 300
    assert max(held[30:]) <= 1.3 * max(held[:30])


@pytest.mark.parametrize("name", ["FADAS", "AsyncFedED", "FedAsync, version delay", "ACE int8"])
def test_checkpoints_do_not_grow_with_the_number_of_updates(tiny, tmp_path, name):
    sizes = []
    simulation = Simulation(tiny({**CASES[name], "run": {"uploads": 1000}}))
    for upload in range(1, 801):  # ACE's clients have all answered, and its model steps, after some 300
        simulation.step()
        if upload % 40 == 0:
            Folder(tmp_path, simulation.config).keep(simulation)
            ids = simulation.server.state_dict()["ids"]  # of the last 16,384 tasks that ended
            known = sum(t.nbytes for t in ids.values() if isinstance(t, torch.Tensor))
            sizes.append((tmp_path / "checkpoint.pt").stat().st_size - known)
    assert max(sizes[10:]) < 1.3 * max(sizes[:10])
