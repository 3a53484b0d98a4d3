"""Trackers: what their own programs read back, and what is refused."""

import logging
import sys
from pathlib import Path

import pytest
from support.trackers import RowTracker

import fastagg
from fastagg import trackers

ROWS = [({"accuracy": 0.5, "run/updates": 3}, 1), ({"accuracy": 0.75, "run/updates": 6}, 2)]


def write(given) -> None:
    all_of_them = trackers.Trackers(given)
    for row, step in ROWS:
        all_of_them.log({**row, "name": "words are not drawn"}, step)
    all_of_them.close()


def test_tensorboard_reads_it_back(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    write({"tensorboard": str(tmp_path)})
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert sorted(events.Tags()["scalars"]) == ["accuracy", "run/updates"]
    assert [(event.step, event.value) for event in events.Scalars("accuracy")] == [(1, 0.5), (2, 0.75)]


def test_mlflow_reads_it_back(tmp_path: Path) -> None:
    mlflow = pytest.importorskip("mlflow")
    pytest.importorskip("sqlalchemy")
    settings = {"experiment": "digits", "uri": f"sqlite:///{tmp_path}/runs.db", "run_name": "fadas"}
    write({"mlflow": settings})
    client = mlflow.MlflowClient(tracking_uri=settings["uri"])
    [run] = client.search_runs([client.get_experiment_by_name("digits").experiment_id])
    assert run.info.status == "FINISHED" and run.info.run_name == "fadas"
    history = client.get_metric_history(run.info.run_id, "accuracy")
    assert [(point.step, point.value) for point in history] == [(1, 0.5), (2, 0.75)]
    again = trackers.MLflow(uri=settings["uri"], run_id=run.info.run_id)
    again.log({"accuracy": 1.0}, 3)
    assert len(client.get_metric_history(run.info.run_id, "accuracy")) == 3, "a resumed run goes on"


def test_wandb_keeps_what_comes_out_of_order(tmp_path: Path) -> None:
    wandb = pytest.importorskip("wandb")
    tracker = trackers.WandB("digits", mode="offline", dir=str(tmp_path), settings=wandb.Settings(silent=True))
    for row, step in [*ROWS, ({"clients/accuracy": 0.25}, 1)]:
        tracker.log(row, step)
    summary = dict(tracker._run.summary)
    tracker.close()
    assert summary["accuracy"] == 0.75 and summary["clients/accuracy"] == 0.25
    assert list(tmp_path.glob("wandb/offline-run-*/*.wandb")), "wandb sync sends this file"


def test_a_tracker_that_fails_says_so_once_and_the_others_go_on(caplog: pytest.LogCaptureFixture) -> None:
    good = RowTracker()
    with caplog.at_level(logging.WARNING, "fastagg"):
        write([RowTracker(fails=True), good])
    assert good.rows == ROWS and caplog.text.count("no route to host") == 1


@pytest.mark.parametrize(
    ("name", "module"), [("tensorboard", "torch.utils.tensorboard"), ("mlflow", "mlflow"), ("wandb", "wandb")]
)
def test_a_missing_client_says_what_to_install(name: str, module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(fastagg.MissingDependency, match=rf"pip install 'fastagg\[{name}\]'"):
        trackers.made({name: {}} if name != "tensorboard" else {name: "x"})


def test_trackers_files_are_in_the_apps_folder(tmp_path: Path) -> None:
    given = {"csv": "all.csv", "tensorboard": {"folder": "runs"}, "mlflow": {"experiment": "digits"}}
    placed = {"csv": {"file": f"{tmp_path}/all.csv"}, "tensorboard": {"folder": f"{tmp_path}/runs"}}
    assert trackers.placed(given, tmp_path) == {**given, **placed}
    assert trackers.placed(None, tmp_path) is None
