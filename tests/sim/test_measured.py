"""Durations of a real federation: a server writes them, and runs take as long."""

import contextlib
import csv
import logging
import resource
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from support import inside

import fastagg
from fastagg import ConfigError, DataError
from fastagg.sim import run
from fastagg.sim.clock.delays import MeasuredDelay, Population, Times, read_times

HEADER = "client,dispatched,answered"


def test_a_server_writes_when_tasks_were_sent_and_answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("fastagg.server.watching.time.monotonic", lambda: now[0])
    monkeypatch.setattr("fastagg.server.watching.time.time", lambda: now[0] + 5000.0)
    path = tmp_path / "times.csv"
    server = fastagg.watch(fastagg.FedBuff(torch.zeros(3), buffer_size=2), times=path)
    ann, comma = server.dispatch("ann"), server.dispatch('a,"b"')
    now[0] += 2.0
    assert server.dispatch("ann").id == ann.id  # once more, at the same version: the first time counts
    server.receive("ann", torch.ones(3))
    now[0] += 1.5
    server.receive(comma.client, torch.ones(3), task=comma.id)
    with pytest.raises(fastagg.AlreadyCounted):
        server.receive(comma.client, torch.ones(3), task=comma.id)
    server.dispatch("ann")
    now[0] += 0.25
    server.receive_many([("ann", torch.ones(3))])
    assert path.read_text().splitlines() == [
        HEADER, "ann,5100.000000,5102.000000", '"a,""b""",5100.000000,5103.500000', "ann,5103.500000,5103.750000",
    ]  # fmt: skip
    again = fastagg.watch(fastagg.ASGD(torch.zeros(3), lr=0.1), times=path)  # a restart goes on in the file
    again.dispatch(7)
    now[0] += 1.0
    again.receive(7, torch.ones(3))
    assert read_times(path) == {
        "ann": [2.0, 0.25], 'a,"b"': [3.5], "7": [1.0],
    }  # fmt: skip


def test_a_folder_s_server_writes_times_and_a_client_id_may_break_lines(tmp_path: Path) -> None:
    path = tmp_path / "times.csv"
    with fastagg.open(tmp_path / "state", lambda: fastagg.ASGD(torch.zeros(3), lr=0.1)) as server:
        fastagg.watch(server, times=path)
        for client in ("two\nlines", "a\u2028b"):
            server.dispatch(client)
            server.receive(client, torch.ones(3))
    assert read_times(path).keys() == {"two\nlines", "a\u2028b"}


def test_a_server_that_was_watched_before_its_folder_was_opened_writes_times_and_every_kind_of_answer(
    tmp_path: Path,
) -> None:
    path = tmp_path / "times.csv"

    def make() -> fastagg.Server:
        return fastagg.watch(fastagg.FedBuff(torch.zeros(5), buffer_size=2), times=path)

    for life in range(2):
        with fastagg.open(tmp_path / "state", make) as server:
            server.receive_model(server.dispatch("model"), torch.ones(5))
            server.receive_many([fastagg.Answer.to(server.dispatch("models"), torch.ones(5))])
            server.dispatch("chunks")
            with server.receiving("chunks") as upload:
                upload.write(bytes(20))
            server.dispatch(f"lost {life}")  # with the restart
    found = read_times(path)
    assert found.keys() == {"model", "models", "chunks"}
    assert all(len(own) == 2 for own in found.values())


def test_threads_write_whole_lines(tmp_path: Path) -> None:
    server = fastagg.watch(fastagg.ASGD(torch.zeros(3), lr=1e-6), times=tmp_path / "times.csv")

    def work(client: int) -> None:
        for _ in range(200):
            task = server.dispatch(client)
            server.receive(client, torch.ones(3), task=task.id)

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(work, range(6)))
    lines = list(csv.reader((tmp_path / "times.csv").open()))
    assert len(lines) == 1 + 6 * 200 and all(len(line) == 3 for line in lines)


@contextlib.contextmanager
def room_for(nbytes: int) -> Iterator[None]:
    """No file may be larger: a write beyond it is cut short, and the next one fails, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_on_a_full_disk_the_server_goes_on_and_says_so_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "times.csv"
    server = fastagg.watch(fastagg.ASGD(torch.zeros(3), lr=0.1), times=path)
    room = len(HEADER) + 1 + 2 * len(f"0,{1e9:.6f},{1e9:.6f}\n") + 10  # the third line does not fit
    with caplog.at_level(logging.ERROR, "fastagg"):
        for client in range(5):
            server.dispatch(client)
            with room_for(room):
                assert server.receive(client, torch.ones(3)).applied
        server.dispatch(0)
        server.receive(0, torch.ones(3))  # there is room again, but lines are missing already
    assert server.version == 6
    assert [record.message.partition(": ")[0] for record in caplog.records] == ["times"]
    assert f"{path}: " in caplog.text and "nothing more is written" in caplog.text
    assert read_times(path).keys() == {"0", "1"} and path.read_bytes().endswith(b"\n")


def test_a_full_disk_is_named_before_anything_is_watched(tmp_path: Path) -> None:
    server, path = fastagg.ASGD(torch.zeros(3), lr=0.1), tmp_path / "times.csv"
    with room_for(5), pytest.raises(ConfigError, match="cannot write"):
        fastagg.watch(server, times=path)
    assert not inside.is_watched(server) and path.read_bytes() == b""
    fastagg.watch(server, times=path)
    assert path.read_text() == HEADER + "\n"


def test_times_that_cannot_be_written_are_refused(tmp_path: Path) -> None:
    server = fastagg.ASGD(torch.zeros(3), lr=0.1)
    (tmp_path / "other.csv").write_text("a,b\n")
    with pytest.raises(ConfigError, match="holds something else"):
        fastagg.watch(server, times=tmp_path / "other.csv")
    with pytest.raises(ConfigError, match="cannot write"):
        fastagg.watch(server, times=tmp_path)
    assert not inside.is_watched(server)
    fastagg.watch(server, times=tmp_path / "times.csv")
    with pytest.raises(ConfigError, match="already"):
        fastagg.watch(server, times=tmp_path / "more.csv")


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ([], "got none"),
        ([HEADER], "got none"),
        ([HEADER, "a,1"], "line 2: .*got 'a,1'"),
        ([HEADER, "a,1,2", "a,3,2"], "line 3: .*got 'a,3,2'"),
        ([HEADER, "a,inf,inf"], "line 2"),
        ([HEADER, "a,1,nan"], "line 2"),
        (["0,1,inf", "1,2,3"], "line 1"),
        (["0,1,2", "1,2"], "line 2"),
        (["ann,1,failed", "bob,1,2"], "line 1"),
    ],
)
def test_a_bad_file_is_named_with_its_line(lines: list[str], words: str, tmp_path: Path, tiny: Any) -> None:
    (tmp_path / "times.csv").write_text("\n".join(lines))
    with pytest.raises(DataError, match=f"times.csv.*{words}"):
        run(tiny({"delay": {"name": "measured", "file": str(tmp_path / "times.csv")}}))


def test_a_byte_order_mark_is_no_part_of_the_first_line(tmp_path: Path) -> None:
    for head in ("", HEADER + "\n", "Client, dispatched, answered\n"):
        (tmp_path / "a.csv").write_text(f"{head}0,1,6\n1,2,8\n1,1,4\n", encoding="utf-8-sig")
        assert read_times(tmp_path / "a.csv") == {"0": [5.0], "1": [3.0, 6.0]}


@pytest.fixture
def measured(tmp_path: Path) -> Any:
    """``measured(times, clients, seed)``: the law of a file in which each client's tasks took these times."""

    def build(times: dict[str, list[float]], clients: int, seed: int = 0) -> Times:
        lines = [f"{name},{n},{n + time}" for name, own in times.items() for n, time in enumerate(own)]
        (tmp_path / "times.csv").write_text("\n".join(lines))
        return Times(MeasuredDelay(name="measured", file="times.csv"), Population([1] * clients, seed, str(tmp_path)))

    return build


def test_clients_take_what_those_of_the_same_name_took(measured: Any) -> None:
    times = {"1": [9.0, 1.0, 2.0], "0": [4.0]}
    for seed in range(3):
        drawn, again = measured(times, 2, seed), measured(times, 2, seed)
        assert [drawn.duration(0, n) for n in range(3)] == [4, 4, 4]
        assert drawn.duration(1, 0) == 9  # a real client has loaded its libraries then
        assert {drawn.duration(1, n) for n in range(1, 60)} == {1, 2}
        assert [drawn.duration(1, n) for n in range(9)] == [again.duration(1, n) for n in range(9)]


def test_slow_ones_are_taken_in_the_same_proportion_and_stay_slow(measured: Any) -> None:
    times = {"slow": [500.0, 50.0, 60.0], **{name: [500.0, 1.0, 2.0, 3.0] for name in "abc"}}
    for clients, slow in ((4, 1), (40, 10), (2, 0)):  # as far as whole clients allow
        delays = measured(times, clients)
        drawn = [{delays.duration(client, number) for number in range(1, 60)} for client in range(clients)]
        assert all(own in ({50.0, 60.0}, {1.0, 2.0, 3.0}) for own in drawn)
        assert sum(own == {50.0, 60.0} for own in drawn) == slow
    places = [[measured(times, 40, seed).duration(client, 1) > 9 for client in range(40)] for seed in (0, 1)]
    assert places[0] != places[1]
