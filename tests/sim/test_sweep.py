import csv
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time

import pytest

from fastagg.errors import ConfigError, DataError
from fastagg.sim.many import cells as cells_module
from fastagg.sim.many.cells import cells, run_cells
from fastagg.sim.many.compare import compare
from fastagg.sim.one.simulation import Simulation
from fastagg.sim.recipes.config import parse_choices
from fastagg.sim.recipes.tables import Cell


class Silent:
    """A watcher that remembers what it was told."""

    def __init__(self):
        self.told = []

    def started(self, cell):
        self.told.append(("started", cell.name))

    def advanced(self, cell, share):
        pass

    def ended(self, cell, outcome):
        self.told.append(("failed" if isinstance(outcome, str) else "ended", cell.name))


@pytest.fixture
def recipe(tmp_path, tiny_toml):
    path = tmp_path / "tiny.toml"
    path.write_text(tiny_toml)
    return str(path)


@pytest.mark.parametrize(
    ("text", "key", "values"),
    [
        ("client.lr=0.1", "client.lr", [0.1]),
        ("client.lr=0.1,0.3, 1", "client.lr", [0.1, 0.3, 1]),
        ("model.widths=[64, 32]", "model.widths", [[64, 32]]),
        ("model.widths=[64],[64,32]", "model.widths", [[64], [64, 32]]),
        ("algorithm.name=FADAS,FedBuff", "algorithm.name", ["FADAS", "FedBuff"]),
        ('label="a, b"', "label", ["a, b"]),
        ('label="a, b",c', "label", ["a, b", "c"]),
        ('delay={name="exponential", mean=2.0},{name="size-tied"}', "delay",
         [{"name": "exponential", "mean": 2.0}, {"name": "size-tied"}]),
    ],
)  # fmt: skip
def test_several_values_are_parted_at_commas_outside_of_brackets_and_quotes(text, key, values):
    assert parse_choices(text) == (key, values)


@pytest.mark.parametrize("text", ["client.lr", "=1,2", "client.lr=1,", "client.lr=,1"])
def test_a_malformed_change_is_refused(text):
    with pytest.raises(ConfigError, match="expected key=value"):
        parse_choices(text)


def test_cells_are_methods_times_grid_times_seeds(recipe, tmp_path, tiny_toml):
    other = tmp_path / "other.toml"
    other.write_text(tiny_toml.replace("tiny", "other"))
    grid = {"client.lr": [0.1, 0.3], "data.alpha": [0.1, 1.0]}
    found = cells([recipe, str(other)], {"run.uploads": 6, "seed": 4}, grid, seeds=3)
    assert len(found) == len({cell.name for cell in found}) == 2 * 4 * 3
    assert found[0].name == "tiny,client.lr=0.1,data.alpha=0.1/seed4"
    assert {cell.config.seed for cell in found} == {4, 5, 6}
    assert {(cell.config.client.lr, cell.config.data.alpha) for cell in found} == {
        (lr, alpha) for lr in (0.1, 0.3) for alpha in (0.1, 1.0)
    }
    assert {cell.config.run.uploads for cell in found} == {6}


def test_folders_hold_no_slashes_of_values_and_are_distinct(recipe):
    (cell,) = {c.name.rpartition("/")[0] for c in cells([recipe], {}, {"label": ["a/b: c"]}, 1)}
    assert cell == "tiny,label=a_b_c"
    with pytest.raises(ConfigError, match="given more than once"):
        cells([recipe], {}, {"label": ["a/b", "a:b"]}, 1)
    with pytest.raises(ConfigError, match="given more than once"):
        cells([recipe, recipe], {}, {}, 1)


def test_wrong_keys_are_refused_before_anything_runs(recipe):
    with pytest.raises(ConfigError, match=r"unknown key client\.speed"):
        cells([recipe], {}, {"client.speed": [1, 2]}, 1)
    with pytest.raises(ConfigError, match=r"client\.lr"):
        cells([recipe], {}, {"client.lr": [0.1, -1.0]}, 1)


@pytest.mark.parametrize("jobs", [1, 2])
def test_all_cells_run_and_leave_what_a_run_leaves(recipe, tmp_path, jobs):
    found = cells([recipe], {}, {}, seeds=2)
    watcher = Silent()
    done = compare(found, tmp_path / "out", watcher, jobs=jobs)
    assert sorted(watcher.told) == [(what, f"tiny/seed{s}") for what in ("ended", "started") for s in (0, 1)]
    assert done.failed == {}
    for result, cell in zip(done.results, found, strict=True):
        again = Simulation(cell.config)
        assert result.rows[0] == again.evaluate()
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {"tiny", "comparison.csv", "table.md", "accuracy.png", "delays.png", "report.html"}
    lines = list(csv.DictReader((tmp_path / "out" / "comparison.csv").open()))
    assert [(line["name"], line["seed"]) for line in lines] == [("tiny", "0"), ("tiny", "1")]


def test_the_results_do_not_depend_on_the_number_of_processes(recipe, tmp_path):
    found = cells([recipe], {}, {"client.lr": [0.1, 0.3]}, seeds=2)
    for jobs in (1, 3):
        run_cells(found, tmp_path / str(jobs), jobs, Silent())
    for cell in found:
        one, three = ((tmp_path / jobs / cell.name / "metrics.csv").read_bytes() for jobs in ("1", "3"))
        assert one == three


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_finished_cell_is_not_run_again(recipe, tmp_path, jobs):
    run_cells(cells([recipe], {}, {}, seeds=2), tmp_path, 1, Silent())
    stamps = {p: p.stat().st_mtime_ns for p in tmp_path.glob("tiny/*/*")}
    outcomes = run_cells(cells([recipe], {}, {}, seeds=3), tmp_path, jobs, Silent())
    assert len(outcomes) == 3
    assert {p: p.stat().st_mtime_ns for p in stamps} == stamps


def test_a_half_finished_cell_goes_on_where_it_was(recipe, tmp_path, monkeypatch):
    found = cells([recipe], {"run.checkpoint_every": 0.0}, {}, seeds=1)
    step, calls = Simulation.step, []

    def counting(self):
        calls.append(self.uploads)
        if len(calls) == 10:
            raise KeyboardInterrupt
        return step(self)

    monkeypatch.setattr(Simulation, "step", counting)
    with pytest.raises(KeyboardInterrupt):
        run_cells(found, tmp_path, 1, Silent())
    outcome = run_cells(found, tmp_path, 1, Silent())["tiny/seed0"]
    assert calls == [*range(10), *range(9, 30)]
    assert outcome.summary["uploads"] == 30


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_failing_cell_is_named_and_does_not_stop_the_others(recipe, tmp_path, jobs):
    found = cells([recipe], {}, {"data.clients": [12, 5000, 13]}, seeds=1)
    done = compare(found, tmp_path, Silent(), jobs=jobs)
    assert list(done.failed) == ["tiny,data.clients=5000/seed0"]
    assert [group.label for group in done.groups] == ["Tiny, clients 12", "Tiny, clients 13"]
    assert not (tmp_path / "tiny,data.clients=5000").exists()
    for page in ("table.md", "report.html"):
        text = (tmp_path / page).read_text()
        assert "not in these tables" in text and "tiny,data.clients=5000/seed0" in text


@pytest.mark.parametrize(
    ("key", "values", "words"),
    [
        ("algorithm.buffer_size", [3, 0], "buffer_size"),
        ("algorithm.bufer_size", [3], "bufer_size"),
        ("algorithm.name", ["FedBuff", "ACE"], "client.steps must be 1|no such keyword"),
        ("delay", [{"name": "three-class", "counts": [1, 2, 3]}], "counts"),
        ("dropout.share", [0.0, 0.99], "must stay"),
        ("run.device", ["cpu", "gpu"], "run.device"),
        ("own.loss", ["tests.nothing:loss"], "own.loss"),
    ],
)
def test_every_cell_is_checked_before_the_first_runs(recipe, tmp_path, key, values, words):
    watcher = Silent()
    with pytest.raises(ConfigError, match=words):
        compare(cells([recipe], {}, {key: values}, 2), tmp_path / "out", watcher)
    assert watcher.told == [] and not (tmp_path / "out").exists()


def test_the_target_of_the_comparison_is_that_of_all_its_tables(recipe, tmp_path):
    done = compare(cells([recipe], {}, {}, 2), tmp_path, Silent(), target=0.2)
    lines = list(csv.DictReader((tmp_path / "comparison.csv").open()))
    for line, result in zip(lines, done.results, strict=True):
        first = next((row.time for row in result.rows if row.accuracy >= 0.2), None)
        assert line["target_accuracy"] == "0.2" and line["time_to_target"] == ("" if first is None else str(first))


def test_a_crash_takes_only_its_own_cell(recipe, tmp_path):
    """A delay file that is a pipe without a writer makes a cell hang, so that the test can kill its process."""
    os.mkfifo(tmp_path / "pipe")
    hanging = {"name": "version", "file": str(tmp_path / "pipe")}
    found = cells([recipe], {"participation": {"rule": "all"}}, {"delay": [hanging, {"name": "exponential"}]}, 1)
    others = multiprocessing.active_children()

    class Killing(Silent):
        def ended(self, cell, outcome):
            super().ended(cell, outcome)
            if cell is found[1]:  # so the process that is left is the one that hangs
                while not (left := [child for child in multiprocessing.active_children() if child not in others]):
                    time.sleep(0.05)
                for child in left:
                    child.kill()

    outcomes = run_cells(found, tmp_path / "out", 2, Killing())
    assert outcomes[found[0].name] == "its process died"
    assert outcomes[found[1].name].summary["stopped"] == "finished"


def test_a_folder_with_another_run_is_refused_unless_it_may_be_replaced(recipe, tmp_path):
    run_cells(cells([recipe], {}, {}, 1), tmp_path, 1, Silent())
    longer = cells([recipe], {"run.uploads": 33}, {}, 1)
    refused = run_cells(longer, tmp_path, 1, Silent())["tiny/seed0"]
    assert "other settings (run.uploads)" in refused
    assert json.loads((tmp_path / "tiny" / "seed0" / "summary.json").read_text())["uploads"] == 30
    replaced = run_cells(longer, tmp_path, 1, Silent(), replace=True)["tiny/seed0"]
    assert replaced.summary["uploads"] == 33


def test_a_missing_data_folder_is_said_once_and_before_anything_runs(recipe, tmp_path):
    missing = cells(["cifar8-quick", recipe], {}, {}, 1)
    watcher = Silent()
    with pytest.raises(DataError, match="name it with --data-dir"):
        compare(missing, tmp_path / "out", watcher)
    assert watcher.told == [] and not (tmp_path / "out").exists()


def test_tables_that_cannot_be_written_are_said(recipe, tmp_path, monkeypatch):
    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("fastagg.sim.show.findings.comparison_csv", full)
    with pytest.raises(DataError, match=r"cannot write results to .*No space left"):
        compare(cells([recipe], {}, {}, 1), tmp_path / "out", Silent())
    assert not list((tmp_path / "out").glob("*.partial"))


def test_an_unknown_baseline_is_refused_before_anything_runs(recipe, tmp_path):
    with pytest.raises(ConfigError, match=r"no baseline 'FedAvg'.*known: tiny"):
        compare(cells([recipe], {}, {}, 1), tmp_path / "out", Silent(), baseline="FedAvg")
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_ctrl_c_keeps_what_is_there_and_the_same_command_ends_as_if_unbroken(recipe, tmp_path):
    changes = ["--set", "run.uploads=8000", "--set", "run.evaluate_every=250"]
    program = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    program += "from fastagg.cli import main\nif __name__ == '__main__': main()"
    command = [sys.executable, "-c", program, "compare", recipe, "--seeds", "3", "-j", "2", *changes]
    process = subprocess.Popen([*command, "--out", "cut"], cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    while not (tmp_path / "cut" / "tiny" / "seed0" / "config.toml").exists():
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate()
    assert process.returncode == 130, errors
    assert "Traceback" not in errors and "Interrupted" in errors
    assert json.loads((tmp_path / "cut" / "tiny" / "seed0" / "summary.json").read_text())["interrupted"] is True
    done = subprocess.run([*command, "--out", "cut"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    whole = cells([recipe], {"run.uploads": 8000, "run.evaluate_every": 250}, {}, seeds=3)
    compare(whole, tmp_path / "whole", Silent())
    cut, whole = ((tmp_path / folder / "comparison.csv").read_text() for folder in ("cut", "whole"))
    assert cut == whole


def test_the_message_of_any_error_reaches_the_user(recipe, tmp_path, monkeypatch):
    def broken(*args, **keywords):
        raise ZeroDivisionError("by zero")

    monkeypatch.setattr(cells_module, "run", broken)
    outcomes = run_cells([Cell(cells([recipe], {}, {}, 1)[0].config)], tmp_path, 1, Silent())
    assert outcomes == {"tiny/seed0": "ZeroDivisionError: by zero"}
