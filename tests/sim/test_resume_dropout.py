"""A run with dropout, and clients that hang and leave, ends the same after a kill and a resume."""

import os
import signal
import subprocess
import sys
import time

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from support.properties import examples
from torch import nn

from fastagg.sim import models
from fastagg.sim.one.run import run
from fastagg.sim.recipes.config import to_toml

from .fake_data import save_pretrained, write_rte
from .test_resume import EVERY, GRADIENTS, Killed, KilledAt, same

CLIENTS = {"dropout.share": 0.4, "delay.suspension": 0.3}
CASES = {
    "FADAS": {**CLIENTS, "algorithm": {"name": "FADAS", "lr": 0.01, "buffer_size": 3, "delay_threshold": 2}},
    "ACED, exponential": {
        **GRADIENTS,
        "algorithm": {"name": "ACED", "lr": 0.1},
        "delay": {"name": "exponential", "speed": 1e4, "suspension": 0.3},
        "dropout.share": 0.4,
    },
    "FedEcho": {**CLIENTS, "algorithm": {"name": "FedEcho", "buffer_size": 3}, "unlabelled.share": 0.5},
    "FedAvg": {
        **CLIENTS,
        "algorithm": {"name": "FedAvg", "clients_per_round": 4},
        "participation": {"rule": "round"},
    },
    "FedAsync, version delay": {
        "participation": {"rule": "all"},
        "algorithm": {"name": "FedAsync"},
        "delay": {"name": "version", "tau_max": 3},
        "dropout.share": 0.4,
    },
}


class Norm(nn.BatchNorm1d):
    """Takes a lone sample, the rest of an epoch, by its running statistics: a batch of one has no variance."""

    def forward(self, x):
        if len(x) > 1:
            return super().forward(x)
        return nn.functional.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias)


def drawing(shape, classes, widths):
    """A model with dropout and running statistics, in the place of the MLP.

    Its masks must come from the dispatch, and not from how often this process has drawn before.
    """
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), Norm(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, classes))


@pytest.fixture
def drawing_model(monkeypatch):
    monkeypatch.setitem(models.PLAIN, "mlp", drawing)


@pytest.mark.parametrize("name", CASES)
@examples(3, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cuts=st.lists(st.integers(0, 29), min_size=1, max_size=2))
def test_killed_at_any_update(tiny, drawing_model, tmp_path_factory, name, cuts):
    folder = tmp_path_factory.mktemp("runs")
    config = tiny({**CASES[name], **EVERY})
    run(config, folder / "whole")
    for cut in cuts:
        with pytest.raises(Killed):
            run(config, folder / "cut", KilledAt(cut), resume="go on")
            raise Killed  # the run was over before the second cut
    run(config, folder / "cut", resume="go on")
    same(folder / "whole", folder / "cut")


PROGRAM = f"""
from fastagg.cli import main
from fastagg.sim import models
from {__name__} import drawing

models.PLAIN["mlp"] = drawing
main()
"""


@pytest.mark.slow
def test_killed_by_the_operating_system(tiny, drawing_model, tmp_path):
    changes = {**CASES["FADAS"], "run": {"uploads": 250, "evaluate_every": 2, "checkpoint_every": 0.0}}
    config = tiny(changes)
    run(config, tmp_path / "whole")
    (tmp_path / "mine.toml").write_text(to_toml(config))
    command = [sys.executable, "-c", PROGRAM, "run", "mine.toml", "--out", "cut", "--resume"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    process = subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    while not (tmp_path / "cut" / "checkpoint.pt").exists():
        assert process.poll() is None
        time.sleep(0.01)
    time.sleep(0.2)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    assert not (tmp_path / "cut" / "summary.json").exists()
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    same(tmp_path / "whole", tmp_path / "cut")


@pytest.mark.parametrize("lora_rank", [None, 1])
def test_killed_while_a_transformer_trains(tiny, tmp_path, lora_rank):
    pytest.importorskip("peft")
    save_pretrained(tmp_path / "data" / "bert-base-uncased")
    write_rte(tmp_path / "data")
    model = {"name": "transformer:classifier", **({} if lora_rank is None else {"lora_rank": lora_rank})}
    changes = {
        **CASES["FADAS"],
        **EVERY,
        "data": {"name": "texts:glue", "task": "rte", "dir": str(tmp_path / "data"), "clients": 6, "max_length": 16},
        "model": model,
        "client": {"lr": 1e-3, "batch_size": 2, "optimizer": "adamw"},
        "participation.concurrency": 3,
        "run.uploads": 12,
    }
    config = tiny(changes)
    run(config, tmp_path / "whole")
    for cut in (3, 5):
        with pytest.raises(Killed):
            run(config, tmp_path / "cut", KilledAt(cut), resume="go on")
    run(config, tmp_path / "cut", resume="go on")
    same(tmp_path / "whole", tmp_path / "cut")
