"""A run that is stopped anywhere, in any way, and goes on ends as if it had never stopped, wherever clients train."""

import gc
import json
import signal
import threading

import pytest
import torch
from hypothesis import HealthCheck, Phase, example, given
from hypothesis import strategies as st
from support.properties import examples

from fastagg.errors import CheckpointError, DataError
from fastagg.server import checkpoint
from fastagg.sim.runs import output
from fastagg.sim.runs.interrupt import on_ctrl_c
from fastagg.sim.runs.result import Folder
from fastagg.sim.runs.run import run
from fastagg.sim.runs.simulation import Simulation
from fastagg.sim.show.progress import Progress

EVERY = {"run.checkpoint_every": 0.0}
TORCH = {"run.fused": False}
ALL = {"participation": {"rule": "all"}}
GRADIENTS = {**ALL, "client.steps": 1, "client.batch_size": 8}
CLIENTS = {"dropout.share": 0.4, "delay.suspension": 0.3}
UPLOADS = 30
CASES = {
    "FADAS": {**CLIENTS, "algorithm": {"name": "FADAS", "lr": 0.01, "buffer_size": 3, "delay_threshold": 2}},
    "FedBuff, BatchNorm": {**CLIENTS, "model.name": "cnn", "model.widths": [4]},
    "FedBuff, a network that draws": {**CLIENTS, **TORCH, "model": {"name": "tests.sim.engine_models:drawing"}},
    "ACE int8": {**GRADIENTS, "algorithm": {"name": "ACE", "lr": 0.1, "cache": "int8"}},
    "ACE, client caches": {**GRADIENTS, "algorithm": {"name": "ACE", "lr": 0.1, "mode": "client"}},
    "ACED": {
        **GRADIENTS,
        "algorithm": {"name": "ACED", "lr": 0.1},
        "delay": {"name": "exponential", "speed": 1e4, "suspension": 0.3},
        "dropout.share": 0.4,
    },
    "AsyncFedED": {
        **ALL,
        "algorithm": {"name": "AsyncFedED", "lam": 0.5, "eps": 0.5, "max_local_steps": 15},
        "delay": {"name": "exponential", "speed": 1e4},
    },
    "CA2FL": {"algorithm": {"name": "CA2FL", "buffer_size": 3}, "delay": {"name": "size-tied", "gamma": 0.5}},
    "FedAC": {"algorithm": {"name": "FedAC", "lr": 0.01, "buffer_size": 3}},
    "FedEcho": {**CLIENTS, "algorithm": {"name": "FedEcho", "buffer_size": 3}, "unlabelled.share": 0.5},
    "FedAvg": {**CLIENTS, "algorithm": {"name": "FedAvg", "clients_per_round": 4}, "participation": {"rule": "round"}},
    "FedAsync, version delay": {
        **ALL,
        "algorithm": {"name": "FedAsync"},
        "delay": {"name": "version", "tau_max": 3},
        "dropout.share": 0.4,
    },
    "rounded models by version": {**ALL, "delay": {"name": "version", "tau_max": 3}, "encoding.download": "bf16"},
    "FedBuff, liars who encode": {
        "attack.name": "alie",
        "encoding": {"format": "topk", "feedback": True, "download": "int8"},
    },
    "sent at the flush": {"delay.counting": "authors"},
    "measured": {"delay": {"name": "measured"}},
    "made before it is due": {
        **TORCH,
        "delay": {"name": "exponential", "jitter": 0.0, "up": 1e3},
        "own.train": "tests.sim.engine_models:train",
        "own.change": "tests.sim.engine_models:halved",
    },
}


class Killed(BaseException):
    """Stands for kill -9: nothing of the package catches it."""


def kill() -> None:
    raise Killed


def interrupt() -> None:
    """Ctrl-C, as a terminal sends it."""
    signal.raise_signal(signal.SIGINT)


class Stop(Progress):
    """Does ``act`` after so many updates. ``shares``: what it was told, from where the run began or went on."""

    def __init__(self, updates: int, act=kill) -> None:
        self.updates, self.act, self.shares = updates, act, []

    def advanced(self, share: float) -> None:
        self.shares.append(share)
        if len(self.shares) == self.updates + 1:
            self.act()


def ending(folder):
    """What a run ended with, wall-clock time aside."""
    summary = json.loads((folder / "summary.json").read_text())
    del summary["wall_seconds"], summary["server_share"]
    files = [(folder / name).read_bytes() for name in ("metrics.csv", "delays.csv", "clients.csv", "config.toml")]
    if "distillation" in summary:
        summary["distillation"] = {k: v for k, v in summary["distillation"].items() if not k.endswith("seconds")}
    return summary, files, checkpoint.read(folder / "checkpoint.pt")["flat"]


def same(folder, other):
    (a, rows, model), (b, other_rows, other_model) = ending(folder), ending(other)
    assert a == b
    assert rows == other_rows
    assert torch.equal(model, other_model)


def full(*args):
    raise OSError(28, "No space left on device")


SELDOM = 4  # updates between two checkpoints


def stopped(config, out, way, updates, workers=1) -> tuple[float, int]:
    """Let a run go on for so many updates. Return the share where it began, and how many updates were kept."""
    with pytest.MonkeyPatch.context() as patch:
        acts = {"Ctrl-C": interrupt, "a full disk": lambda: patch.setattr("fastagg.storage.files.sync", full)}
        stop, kept = Stop(updates, acts.get(way, kill)), updates
        if way == "killed, with few checkpoints":
            patch.setattr(Folder, "due", lambda folder: len(stop.shares) % SELDOM == 0)
            kept -= updates % SELDOM
        try:
            result = run(config, out, stop, resume="go on", workers=workers)
            assert way == "Ctrl-C" and result.summary["interrupted"]
        except (Killed, CheckpointError, DataError) as error:
            assert isinstance(error, Killed) == way.startswith("killed"), error
    interrupted = (output.read_summary(out / "summary.json") or {"interrupted": True})["interrupted"]
    assert interrupted  # by Ctrl-C, perhaps earlier: a run that was killed or had no room has no end
    return stop.shares[0], kept


def ended(config, out, workers=1) -> float:
    """Let a run go on to its end. Return the share where it began."""
    stop = Stop(10**9)
    run(config, out, stop, resume="go on", workers=workers)
    return stop.shares[0]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """``whole(name)``: a case's config and its run that was never stopped, in one thread."""
    found, place = {}, tmp_path_factory.mktemp("whole")
    lines = [f"{c},{9 * n},{9 * n + 1 + c % 5 + n / 7}" for c in range(12) for n in range(4)]
    (place / "times.csv").write_text("\n".join(["client,dispatched,answered", *lines]))

    def of(name, tiny):
        if name not in found:
            times = {"delay.file": str(place / "times.csv")} if name.startswith("measured") else {}
            config = tiny({**CASES[name], **times, **EVERY})
            result = run(config, place / str(len(found)))
            assert (result.summary["fused"] is True) == ("run.fused" not in CASES[name])
            found[name] = config, result.folder
        return found[name]

    return of


WAYS = ["killed", "killed, with few checkpoints", "Ctrl-C", "a full disk"]


@pytest.mark.parametrize("name", CASES)
@example(stops=[("killed, with few checkpoints", 9, 2)], last=2)
@examples(  # a failing one is small already, and to shrink it takes minutes
    2, suppress_health_check=[HealthCheck.function_scoped_fixture], phases=[Phase.explicit, Phase.generate]
)
@given(
    stops=st.lists(
        st.tuples(st.sampled_from(WAYS), st.integers(0, 14), st.sampled_from([1, 2])), min_size=1, max_size=2
    ),
    last=st.sampled_from([1, 2]),
)
def test_stopped_anywhere_in_any_way_it_ends_bit_identical_and_repeats_nothing_that_was_kept(
    tiny, whole, tmp_path_factory, name, stops, last
):
    config, unbroken = whole(name, tiny)
    out, done = tmp_path_factory.mktemp("cut"), 0
    threads = "run.fused" not in CASES[name]  # torch trains one client at a time
    for way, updates, workers in stops:
        began, kept = stopped(config, out, way, updates, workers if threads else 1)
        assert began == done / UPLOADS
        done += kept
    assert ended(config, out, last if threads else 1) == done / UPLOADS
    same(unbroken, out)


def test_a_state_of_another_config_is_refused_and_changes_nothing(tiny):
    one, other = (Simulation(tiny({**CASES["ACE int8"], "seed": seed})) for seed in (0, 1))
    for _ in range(10):
        one.step()
    before = other.server.flat.clone()
    with pytest.raises(CheckpointError, match="another run"):
        other.load_state_dict(one.state_dict())
    assert other.uploads == 0 and torch.equal(other.server.flat, before)


def untrained(monkeypatch):
    """Nobody trains from here on."""
    monkeypatch.setattr(Simulation, "step", lambda self: pytest.fail("trained again"))


def test_with_replace_an_old_run_is_deleted(tiny, tmp_path):
    run(tiny(), tmp_path)
    with pytest.raises(Killed):
        run(tiny({"seed": 1}), tmp_path, Stop(0), replace=True)
    assert {path.name for path in tmp_path.iterdir()} == {"config.toml"}  # nothing of the old run under a new config


def test_damaged_files_are_said(tiny, tmp_path):
    stopped(tiny(EVERY), tmp_path, "killed", 5)
    kept = (tmp_path / "checkpoint.pt").read_bytes()
    (tmp_path / "checkpoint.pt").write_bytes(kept[: len(kept) // 2])
    with pytest.raises(CheckpointError, match=r"checkpoint.pt"):
        run(tiny(EVERY), tmp_path, resume="go on")
    (tmp_path / "summary.json").write_text("{")
    with pytest.raises(DataError, match=r"summary.json"):
        run(tiny(EVERY), tmp_path, resume="go on")


@pytest.mark.parametrize("file", ["delays.csv", "summary.json"])
def test_a_full_disk_at_the_end_costs_no_training(tiny, tmp_path, monkeypatch, file):
    run(tiny(), tmp_path / "whole")
    write = output.write_text
    monkeypatch.setattr(output, "write_text", lambda path, text: full() if path.name == file else write(path, text))
    with pytest.raises(DataError, match="No space left"):
        run(tiny(), tmp_path / "cut")
    monkeypatch.undo()
    untrained(monkeypatch)
    run(tiny(), tmp_path / "cut", resume="go on")
    same(tmp_path / "whole", tmp_path / "cut")


@pytest.mark.parametrize("name", ["FADAS", "AsyncFedED", "FedAsync, version delay", "ACE int8", "FedAvg"])
def test_neither_memory_nor_checkpoints_grow_with_the_number_of_updates(tiny, tmp_path, name):
    simulation = Simulation(tiny({**CASES[name], "dropout.share": 0.0, "run": {"uploads": 2000}}))
    counts, held, sizes = [], [], []
    for upload in range(1, 801):  # ACE's clients have all answered, and its model steps, after some 300
        simulation.step()
        if upload % 10 == 0:
            memory = simulation.server.memory()
            held.append(memory["total"] - memory["clients"])
            assert memory["clients"] < 300_000  # with the last 16,384 tasks that ended
        if upload % 40 == 0:
            Folder(tmp_path, simulation.config).keep(simulation)
            ids = simulation.server.state_dict()["ids"]  # of the last 16,384 tasks that ended
            known = sum(t.nbytes for t in ids.values() if isinstance(t, torch.Tensor))
            sizes.append((tmp_path / "checkpoint.pt").stat().st_size - known)
        if upload in (400, 800):
            gc.collect()
            counts.append(len(gc.get_objects()))
    assert counts[1] < counts[0] + 300
    assert max(held[40:]) <= 1.3 * max(held[:40])
    assert max(sizes[10:]) < 1.3 * max(sizes[:10])


@pytest.fixture(autouse=True)
def usual_handler():
    """Python's own handler: a process started in the background may ignore ctrl-C from the start."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_the_first_ctrl_c_asks_and_the_second_interrupts():
    before = signal.getsignal(signal.SIGINT)
    with on_ctrl_c() as stop:
        assert not stop.is_set()
        signal.raise_signal(signal.SIGINT)
        assert stop.is_set()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_the_handler_is_restored_after_an_error():
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(ValueError), on_ctrl_c():
        raise ValueError
    assert signal.getsignal(signal.SIGINT) is before


def test_other_threads_run_without_a_handler():
    seen = []

    def work():
        with on_ctrl_c() as stop:
            seen.append(stop.is_set())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [False]
