"""SyncStrategy goes on from its checkpoint: alone, under wrappers, with noise. ClassicStrategy: test_run.py."""

import random
from functools import partial

import numpy as np
import pytest
import torch

import fastagg

pytest.importorskip("flwr")

from flwr.app import Error, MetricRecord
from flwr.common import ndarrays_to_parameters
from flwr.serverapp import strategy as theirs
from support.flower_apps import CollectingGrid, trained
from support.trackers import RowTracker

from fastagg.integrations import flower

MAKE = partial(fastagg.FedAdam, lr=0.1)
NODES = [1, 2, 3]


def initial() -> dict[str, torch.Tensor]:
    return {"w": torch.linspace(-1, 1, 12).view(3, 4), "b": torch.zeros(5)}


def strategy(file=None, **settings) -> flower.SyncStrategy:
    return flower.SyncStrategy(MAKE, deterministic=True, fraction_evaluate=0.0, checkpoint=file, **settings)


def evaluate(number, arrays):
    return MetricRecord({"sum": float(flower.read(arrays)["w"].sum())})


class Crash(Exception):
    pass


def test_a_run_that_was_killed_goes_on_to_the_same_bits_and_history(tmp_path) -> None:
    whole = strategy()
    want = whole.start(CollectingGrid(trained, NODES), flower.write(initial()), num_rounds=6, evaluate_fn=evaluate)

    def killed(number, arrays):
        if number == 4:
            raise Crash
        return evaluate(number, arrays)

    file = tmp_path / "server.pt"
    with pytest.raises(Crash):
        strategy(file).start(CollectingGrid(trained, NODES), flower.write(initial()), num_rounds=6, evaluate_fn=killed)
    assert fastagg.load(file).version == 4, "the step was made; only its evaluation is done again"
    grid, rest = CollectingGrid(trained, NODES), strategy(file)
    got = rest.start(grid, flower.write(initial()), num_rounds=6, evaluate_fn=evaluate)
    assert [message.content["config"]["server-round"] for _, message in grid.log] == [5] * 3 + [6] * 3
    assert torch.equal(rest.server.flat, whole.server.flat) and rest.server.version == 6
    assert got.evaluate_metrics_serverapp == want.evaluate_metrics_serverapp
    assert got.train_metrics_clientapp == want.train_metrics_clientapp
    assert rest.session.tally.updates == 18

    again = strategy(file)
    same = again.start(CollectingGrid(trained, NODES), flower.write(initial()), num_rounds=6, evaluate_fn=evaluate)
    assert torch.equal(again.server.flat, whole.server.flat), "nothing is left to do, and nothing is overwritten"
    assert torch.equal(flower.read(same.arrays)["w"], flower.read(got.arrays)["w"])


def test_a_file_of_the_server_alone_will_do(tmp_path) -> None:
    file = tmp_path / "server.pt"
    first = strategy()
    first.start(CollectingGrid(trained, NODES), flower.write(initial()), num_rounds=2)
    first.server.save(file)
    rest = strategy(file)
    rest.start(CollectingGrid(trained, NODES), flower.write(initial()), num_rounds=3)
    assert rest.server.version == 3


def wrapped(inner: flower.SyncStrategy):
    return theirs.DifferentialPrivacyServerSideFixedClipping(inner, 0.5, 1.0, len(NODES))


def test_under_a_wrapper_the_file_holds_the_model_with_its_noise(tmp_path) -> None:
    file, grid = tmp_path / "server.pt", CollectingGrid(trained, NODES)
    random.seed(0)
    np.random.seed(0)
    inner = strategy(file)
    result = wrapped(inner).start(grid, inner.resumed(flower.write(initial())), num_rounds=3)
    kept = fastagg.load(file)
    assert kept.version == 3
    for name, array in flower.read(result.arrays).items():
        assert torch.equal(kept.parameters()[name], array), "what is on the disk never lacks the noise"

    again = strategy(file)
    grid = CollectingGrid(trained, NODES)
    wrapped(again).start(grid, again.resumed(flower.write(initial())), num_rounds=2)
    first = flower.read(grid.log[0][1].content["arrays"])
    assert all(torch.equal(first[name], array) for name, array in flower.read(result.arrays).items())
    assert again.server.version == 5


def test_a_wrapper_that_starts_from_another_model_than_the_checkpoints_is_told(tmp_path) -> None:
    file = tmp_path / "server.pt"
    strategy(file).start(CollectingGrid(trained, NODES), flower.write(initial()), num_rounds=2)
    before = file.read_bytes()
    inner = strategy(file)
    for _ in range(2):
        with pytest.raises(fastagg.ConfigError, match=r"start from strategy.resumed\(initial_arrays\)"):
            wrapped(inner).start(CollectingGrid(trained, NODES), flower.write(initial()), num_rounds=2)
    assert file.read_bytes() == before


def test_what_a_wrapper_would_ignore_raises(tmp_path) -> None:
    inner = strategy(best=tmp_path / "best.pt", trackers=[])
    with pytest.raises(fastagg.ConfigError, match="best, trackers: a wrapper runs the rounds"):
        wrapped(inner).start(CollectingGrid(trained, NODES), flower.write(initial()), num_rounds=2)


# -- goals and failures in rounds --------------------------------------------------------------------------------


def test_goals_trackers_and_stop_iteration_in_rounds(tmp_path) -> None:
    kept, seen = RowTracker(), []
    run = strategy(
        stop={"metric": "score", "target": 3}, best=tmp_path / "best.pt", trackers=[kept],
        on_version=lambda version, metrics, model: seen.append(version),
    )  # fmt: skip
    result = run.start(
        CollectingGrid(trained, NODES), flower.write(initial()), num_rounds=9,
        evaluate_fn=lambda number, arrays: MetricRecord({"score": number}),
    )  # fmt: skip
    assert sorted(result.evaluate_metrics_serverapp) == [0, 1, 2, 3] == seen == [step for _, step in kept.rows]
    assert kept.rows[3][0]["score"] == 3 and kept.rows[3][0]["train/loss"] == pytest.approx(2.0)
    assert torch.equal(torch.load(tmp_path / "best.pt")["w"], run.server.parameters()["w"])
    assert "score reached 3" in run.session.over

    def enough(number, arrays):
        if number == 2:
            raise StopIteration(MetricRecord({"score": 7}))

    result = strategy().start(CollectingGrid(trained, NODES), flower.write(initial()), num_rounds=9, evaluate_fn=enough)
    assert result.evaluate_metrics_serverapp == {2: {"score": 7}} and len(result.train_metrics_clientapp) == 2


def test_clients_that_all_crash_end_a_run_of_rounds_with_their_message() -> None:
    run = strategy(max_in_a_row=7)
    with pytest.raises(fastagg.RunFailed, match=r"7 failures in a row.*error 2: CUDA out of memory"):
        run.start(
            CollectingGrid(lambda m: Error(2, "CUDA out of memory"), NODES), flower.write(initial()), num_rounds=100
        )
    assert run.server.version == 0 and not len(run.server.state_dict()["tasks"]["task_client"])


@pytest.mark.parametrize("name", ["max_failures", "retry_after", "evaluate_aside"])
def test_what_rounds_would_ignore_raises(name: str) -> None:
    with pytest.raises(fastagg.ConfigError, match=name):
        strategy(**{name: 1})


def test_the_earlier_api_is_to_begin_from_its_checkpoint(tmp_path) -> None:
    MAKE([np.ones((3, 4), np.float32)], clients_per_round=None).save(tmp_path / "server.pt")
    start = ndarrays_to_parameters([np.zeros((3, 4), np.float32)])
    with pytest.raises(fastagg.ConfigError, match="initialize_parameters"):
        flower.ClassicStrategy(MAKE, checkpoint=tmp_path / "server.pt").configure_fit(1, start, None)
