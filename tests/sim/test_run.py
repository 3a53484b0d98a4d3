import csv
import json
import signal

import pytest
import torch

import fastagg
from fastagg.errors import UpdateTooLarge
from fastagg.sim.clients.client import rated
from fastagg.sim.recipes.config import load
from fastagg.sim.runs.metrics import EvaluationRow
from fastagg.sim.runs.output import rows_csv
from fastagg.sim.runs.run import run, summary
from fastagg.sim.runs.simulation import Simulation
from fastagg.sim.show.progress import Progress

FADAS = {"algorithm": {"name": "FADAS", "lr": 0.01, "buffer_size": 3}}
FEDASYNC = {"algorithm": {"name": "FedAsync", "alpha": 0.5, "policy": "polynomial", "a": 0.5}}


class Watching(Progress):
    """Calls `at_row` with every new row."""

    def __init__(self, at_row):
        self.evaluated = at_row


def test_the_folder_holds_everything(tiny, tmp_path):
    config = tiny({"run.uploads": 60, "client.epochs": 5})
    result = run(config, tmp_path / "new" / "folder")
    folder = tmp_path / "new" / "folder"
    names = [
        "accuracy.png", "checkpoint.pt", "clients.csv", "config.toml", "delays.csv", "metrics.csv", "report.html",
        "summary.json",
    ]  # fmt: skip
    assert sorted(p.name for p in folder.iterdir()) == names
    assert load(folder / "config.toml") == config
    lines = list(csv.DictReader((folder / "metrics.csv").open()))
    assert [int(line["version"]) for line in lines] == [0, 4, 8, 12, 16, 17, 18, 19, 20]
    assert [int(line["uploads"]) for line in lines] == [0, 12, 24, 36, 48, 51, 54, 57, 60]
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["interrupted"] is False
    assert summary["final_accuracy"] == float(lines[-1]["accuracy"]) == result.rows[-1].accuracy
    assert summary["final_accuracy"] > float(lines[0]["accuracy"]) + 0.2  # it learns
    wall = summary["wall_seconds"]
    assert wall["training"] > 0 and wall["server"] > 0 and wall["evaluation"] > 0
    assert (folder / "accuracy.png").read_bytes().startswith(b"\x89PNG")
    # The checkpoint is the server at the end.
    restored = fastagg.load(folder / "checkpoint.pt")
    tested = Simulation(config)
    tested.module.load_state_dict(restored.parameters())
    assert restored.version == result.rows[-1].version == 20
    last = result.rows[-1]
    assert rated(tested.module, tested.data.test) == pytest.approx((last.accuracy, last.loss), rel=1e-4)


def test_rows_and_summary_count_the_delays_that_the_server_said_and_the_uploads_of_every_client(tiny):
    simulation = Simulation(tiny({"run.evaluate_every": 1}))
    largest, clients, delays, receive = [], [], [], simulation.server.receive

    def recording(client, *args, **keywords):
        receipt = receive(client, *args, **keywords)
        clients.append(client)
        delays.append(receipt.delay)
        return receipt

    simulation.server.receive = recording
    for _ in range(30):
        if simulation.step():
            row, recent = simulation.evaluate(), delays[3 * len(largest) :]  # since the row before
            assert row.uploads == len(delays) == 3 * len(largest) + 3
            assert (row.delay_mean, row.delay_max) == (pytest.approx(sum(recent) / 3), max(recent))
            largest.append(max(recent))
    found = summary(simulation, "finished")
    assert found["delay_max"] == found["tau_max"] == max(largest) > 0
    assert found["tau_avg"] == pytest.approx(sum(largest) / 10)
    assert found["tau_median"] == pytest.approx(float(torch.tensor(sorted(largest)[4:6]).float().mean()))
    assert [row.uploads for row in simulation.clients()] == [clients.count(client) for client in range(12)]


def test_methods_with_one_seed_see_the_same_arrivals(tiny):
    def arrivals(changes):
        simulation = Simulation(tiny(changes))
        seen = []
        for _ in range(30):
            job = simulation.schedule.in_flight()[0]
            seen.append((job.client, job.number, simulation.schedule.next_time()))
            simulation.step()
        return seen

    assert arrivals({}) == arrivals(FADAS) == arrivals(FEDASYNC)


@pytest.mark.parametrize(
    ("limits", "check"),
    [
        ({"versions": 5}, lambda row: row.version == 5 and row.uploads == 15),
        ({"uploads": 7}, lambda row: row.version == 2 and row.uploads == 7),
        ({"time": 6.0}, lambda row: 3.0 < row.time <= 6.0),
        ({"versions": 100, "uploads": 4}, lambda row: row.uploads == 4),
    ],
)
def test_a_run_ends_at_its_limit_and_evaluates_there(tiny, limits, check):
    result = run(tiny({"run": limits}))
    assert check(result.rows[-1])
    assert result.summary["stopped"] == "finished"


def test_ctrl_c_still_writes_the_results(tiny, tmp_path):
    def interrupt(row: EvaluationRow) -> None:
        if row.version == 4:
            signal.raise_signal(signal.SIGINT)

    whole = run(tiny())
    result = run(tiny(), tmp_path, Watching(interrupt))
    assert result.summary["interrupted"] is True
    assert result.rows == whole.rows[:2]
    assert json.loads((tmp_path / "summary.json").read_text())["stopped"] == "interrupted"
    assert (tmp_path / "metrics.csv").read_text() == rows_csv(EvaluationRow, whole.rows[:2])
    assert fastagg.load(tmp_path / "checkpoint.pt").version == 4


@pytest.mark.parametrize("too_large", [False, True])
def test_a_diverged_run_is_written_and_says_so(tiny, tmp_path, monkeypatch, too_large):
    """Whether the client's update is not finite, or the server's step would make the model so."""
    config = tiny() if too_large else tiny({"client.lr": 1e30})
    if too_large:

        def step(simulation):
            if simulation.uploads == 4:
                raise UpdateTooLarge("step: it made the model infinite")
            return one_step(simulation)

        one_step = Simulation.step
        monkeypatch.setattr(Simulation, "step", step)
    result = run(config, tmp_path)
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["stopped"] == result.summary["stopped"] == "diverged"
    assert summary["final_accuracy"] is summary["last5_accuracy_mean"] is None
    assert any(note.startswith("diverged after") for note in summary["notes"])
    page = (tmp_path / "report.html").read_text()
    assert "(diverged)" in page and "diverged after" in page
    assert run(config, tmp_path, resume="go on").summary == result.summary


def test_accuracies_of_a_folder_from_before_are_those_of_the_last_five_versions(tiny, tmp_path):
    result = run(tiny({"run.uploads": 31}), tmp_path)  # version 10 was made by update 30 and is tested twice
    summary = json.loads((tmp_path / "summary.json").read_text()) | {"last5_accuracy_mean": 0.5, "last5_versions": 7}
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    again = run(tiny({"run.uploads": 31}), tmp_path, resume="go on").summary
    assert again["last5_accuracy_mean"] == result.summary["last5_accuracy_mean"] and again["last5_versions"] == 5


def test_torch_threads_are_set_for_the_run_and_restored(tiny):
    before = torch.get_num_threads()
    inside = []
    run(tiny({"run.torch_threads": 2}), progress=Watching(lambda row: inside.append(torch.get_num_threads())))
    assert set(inside) == {2}
    assert torch.get_num_threads() == before


def test_the_server_is_told_seed_and_number_of_clients(tiny):
    server = Simulation(tiny({"seed": 5})).server
    assert (server.seed, server.num_clients) == (5, 12)
    server = Simulation(tiny({"seed": 5, "algorithm.seed": 8})).server
    assert server.seed == 8


@pytest.mark.parametrize("end", [{"run.versions": 13}, {"run.uploads": 39}, {"run.uploads": 41}, {"run.time": 12.0}])
def test_the_last_five_versions_are_tested_one_by_one(end, tiny):
    config = tiny({**end, "run.evaluate_every": 50})
    if "run.uploads" not in end:
        config = config.model_copy(update={"run": config.run.model_copy(update={"uploads": None})})
    result = run(config)
    by_version = {row.version: row.accuracy for row in result.rows}
    made = result.rows[-1].version
    last = [by_version[version] for version in range(made - 4, made + 1)]
    assert made == 13 or "run.time" in end
    assert result.summary["last5_versions"] == 5
    assert result.summary["last5_accuracy_mean"] == pytest.approx(sum(last) / 5)


def test_a_run_says_how_many_clients_are_slow_and_that_none_is(tiny):
    notes = run(tiny({"delay.counts": [6, 4, 2]})).summary["notes"]
    assert "clients: 6 with short, 4 with medium and 2 with long delays" in notes
    notes = run(tiny({"delay.counts": [8, 4, 0]})).summary["notes"]
    assert any("no client is in the class of large delays" in note for note in notes)


def test_the_updates_of_a_full_warm_up_are_reported(tiny):
    ace = {"algorithm": {"name": "ACE", "lr": 0.1}, "client.steps": 1, "participation": {"rule": "all"}}
    full = run(tiny({**ace, "run.uploads": 200})).summary
    assert full["warm_up_share"] > 0.05 and full["versions"] == full["uploads"] - round(full["warm_up_share"] * 200)
    ace["algorithm"] = {"name": "ACE", "lr": 0.1, "warmup": "partial"}
    partial = run(tiny({**ace, "run.uploads": 200})).summary
    assert partial["warm_up_share"] == 0 and partial["versions"] == 200


def test_trackers_are_told_every_row_once(tiny, tmp_path):
    class Keeping:
        def __init__(self):
            self.logged, self.closed = [], 0

        def log(self, metrics, step):
            self.logged.append((step, metrics))

        def close(self):
            self.closed += 1

    one, other = Keeping(), Keeping()
    result = run(tiny(), trackers=[one, other])
    assert one.logged == other.logged and [step for step, _ in one.logged] == [row.version for row in result.rows]
    assert one.logged[-1][1]["accuracy"] == result.rows[-1].accuracy and one.closed == other.closed == 1
    said = {"time", "uploads", "accuracy", "loss", "delay_mean", "delay_max", "bytes_up", "bytes_down"}
    assert set(one.logged[0][1]) == said


@pytest.mark.parametrize("every", [1.0, 0.1])
def test_what_arrives_at_the_limit_of_time_counts(every, tiny, tmp_path):
    (tmp_path / "times.csv").write_text(f"0,0,{every}\n")
    rounds = {"algorithm": {"name": "FedAvg", "clients_per_round": 4}, "participation": {"rule": "round"}}
    limits = {"uploads": None, "time": 3.0}
    config = tiny({**rounds, "delay": {"name": "measured", "file": str(tmp_path / "times.csv")}, "run": limits})
    summary = run(config).summary
    assert summary["versions"] == round(3 / every) and summary["uploads"] == 4 * summary["versions"]
    assert (
        run(config.model_copy(update={"run": config.run.model_copy(update={"time": 2.99})})).summary["versions"]
        < summary["versions"]
    )


@pytest.mark.parametrize("fused", [True, False])
def test_torch_s_defaults_of_the_program_change_no_run_and_are_left_as_they_are(fused, tiny):
    config = tiny({"run.fused": fused, "model": {"name": "cnn", "widths": [2, 2]}, "run.uploads": 6})
    plain = run(config).rows
    torch.set_default_dtype(torch.float64)
    torch.set_default_device("meta")
    try:
        assert run(config).rows == plain
        assert torch.get_default_dtype() is torch.float64 and torch.zeros(1).is_meta
    finally:
        torch.set_default_device(None)
        torch.set_default_dtype(torch.float32)


def test_what_a_name_does_not_name_is_said(tiny):
    rounds = {"algorithm": {"name": "FedProx", "clients_per_round": 4}, "participation": {"rule": "round"}}
    assert not run(tiny({**rounds, "client.mu": 0.1})).summary["notes"][1:]
    notes = run(tiny({"algorithm": {"name": "FedAC", "lr": 0.01, "buffer_size": 3}})).summary["notes"]
    assert any("without their control variates" in note for note in notes)
