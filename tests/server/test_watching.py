"""A server's log and its Prometheus metrics. A server that is not watched has neither."""

import contextlib
import logging
from pathlib import Path

import pytest
import torch
from support.models import Residual, same
from support.operations import CHANGES

import fastagg
from fastagg import ConfigError


def refuse(server: fastagg.Server, times: int) -> None:
    for _ in range(times):
        with pytest.raises(fastagg.UnknownClient):
            server.receive("nobody", torch.ones(5))


def test_refusals_are_said_once_a_second(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("fastagg.server.watching.time.monotonic", lambda: now[0])
    server = fastagg.watch(fastagg.ASGD(torch.zeros(5), lr=0.1), slow=1e-9)
    with caplog.at_level(logging.WARNING, "fastagg"):
        refuse(server, 50)
        assert len(caplog.records) == 1 and "UnknownClient" in caplog.text
        now[0] += 1.5
        refuse(server, 1)
        assert len(caplog.records) == 2 and "49 more" in caplog.text
        for client in (1, 2):
            server.dispatch(client)
        answers = [(1, torch.ones(5)), (2, torch.ones(5)), (1, torch.full((5,), float("inf")))]
        server.receive_many(answers)
    assert "slow: 2 answers" in caplog.text and "refused: UnknownVersion" in caplog.text


def test_an_opened_server_says_what_it_does(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "fastagg"):
        with fastagg.open(tmp_path / "a", lambda: fastagg.ASGD(torch.zeros(5), lr=0.1)) as server:
            refuse(server, 1)
        fastagg.open(tmp_path / "a", lambda: fastagg.ASGD(torch.zeros(5), lr=0.1)).close()
    assert "checkpoint of version 0" in caplog.text and "recovered version 0" in caplog.text
    assert "refused: UnknownClient" in caplog.text


def test_numbers(tmp_path: Path) -> None:
    prometheus = pytest.importorskip("prometheus_client")
    registry = prometheus.CollectorRegistry()

    def make() -> fastagg.Server:
        return fastagg.FedBuff(torch.zeros(5), buffer_size=2, lease=60.0)

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"fastagg_{name}", labels)

    with fastagg.open(tmp_path / "a", make) as server:
        assert fastagg.watch(server, registry) is server
        server.dispatch(1)
        server.dispatch(2)
        server.dispatch(3)
        server.receive(1, torch.ones(5))
        server.receive_many([(2, torch.ones(5)), (9, torch.ones(5))])
        refuse(server, 3)
        assert value("arrivals_total") == 2 and value("delay_versions_count") == 2
        assert value("refusals_total", reason="UnknownClient") == 4
        assert value("version") == 1 and value("open_tasks") == 1 and value("finite") == 1
        assert (value("oldest_task_seconds") or 0.0) > 0
        assert value("memory_bytes", part="model") == 20
        assert value("journal_durable") == value("journal_last") == 5
        assert (value("wait_seconds_sum") or 0.0) > 0 and value("step_seconds_count") == 2
        with pytest.raises(ConfigError, match="has one already"):
            fastagg.watch(server, registry)


@pytest.mark.parametrize("what", [name for name in CHANGES if name not in ("lr", "load_state_dict")])
def test_whatever_is_refused_is_said(what: str, caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    server = fastagg.watch(fastagg.open(tmp_path / "a", lambda: fastagg.FedBuff(torch.zeros(5))))
    server.dispatch(1)
    server.close()
    with caplog.at_level(logging.WARNING, "fastagg"), contextlib.suppress(fastagg.FastaggError):
        CHANGES[what](server, 1, 0)
    assert [message for message in caplog.messages if "refused: " in message]


D = 300


def test_differences_of_every_array() -> None:
    """As FLARE's DIFF: BatchNorm's statistics and counters come as differences too."""
    start, trained = Residual(), Residual()
    with torch.no_grad():
        for value in trained.state_dict().values():
            value.add_(2)
    task = fastagg.FedBuff(start).dispatch(0)
    difference = {name: value - start.state_dict()[name] for name, value in trained.state_dict().items()}
    restored, delta = task.from_difference(difference), task.delta(trained)
    assert all(torch.equal(restored[name], delta[name]) for name in delta)
    assert [restored[name].dtype for name in delta] == [delta[name].dtype for name in delta]
    parameters = {name: value for name, value in difference.items() if "running" not in name and "num" not in name}
    assert same(task.from_difference(parameters), parameters)
    for wrong, error in (
        ({**difference, "more": torch.zeros(1)}, fastagg.ShapeMismatch),
        ({**difference, "stem.1.running_mean": torch.zeros(9)}, fastagg.ShapeMismatch),
    ):
        with pytest.raises(error):
            task.from_difference(wrong)
    flat = torch.zeros(D)
    assert fastagg.FedBuff(flat).dispatch(0).from_difference(flat) is flat
