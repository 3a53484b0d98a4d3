"""What the doctor says of healthy and damaged folders and files; it never writes."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support import damaged

import fastagg
from fastagg.durable.disk import Disk
from fastagg.durable.doctor import examine
from fastagg.durable.opening import open_on
from fastagg.durable.salvage import salvage


def make() -> fastagg.Server:
    return fastagg.FedBuff(torch.zeros(50), buffer_size=2)


def contents(folder: Path) -> dict[str, tuple[int, int]]:
    return {str(one): (hash(one.read_bytes()), one.stat().st_mtime_ns) for one in folder.rglob("*") if one.is_file()}


def damage(path: Path, number: int, in_head: bool = False) -> None:
    """Change a bit of a record, or of its segment's head. Twice: nothing has changed."""
    for segment in sorted(path.glob("journal-*")):
        data = bytearray(segment.read_bytes())
        for at, _ in damaged.records(data):
            if int.from_bytes(data[at + 16 : at + 24], "little") == number:
                data[60 if in_head else at + 60] ^= 1
                segment.write_bytes(data)


def test_it_says_what_a_recovery_would_do_and_writes_nothing(tmp_path: Path) -> None:
    with fastagg.open(tmp_path / "a", make) as server:
        for client in range(5):
            server.dispatch(client)
            server.receive(client, torch.ones(50))
        server.checkpoint()
        server.save(tmp_path / "one")
        server.dispatch(9)
        server.receive(9, torch.ones(50))
        server.dispatch(10)
    before = contents(tmp_path)
    found = examine(tmp_path / "a")
    assert found["healthy"] and not found["problems"]
    assert found["checkpoints"][-1]["open_tasks"] == 0 and found["recovery"]["would"] == "go on"
    assert found["checkpoints"][-1]["version"] == 2
    json.dumps(found)
    file = examine(tmp_path / "one")
    assert file["healthy"] and file["direction"] == "Buffer" and file["parameters"] == 50
    assert contents(tmp_path) == before

    damage(tmp_path / "a", 12)  # behind the newest checkpoint, with another one behind it
    for replay in (False, True):
        told = examine(tmp_path / "a", replay=replay)
        assert not told["healthy"] and "record 12 is damaged, and it was on the disk" in told["problems"][0]
        assert told["recovery"]["would"] == "be refused"
    with pytest.raises(fastagg.CheckpointError, match="record 12 is damaged"):
        fastagg.open(tmp_path / "a", make)
    data = bytearray((tmp_path / "one").read_bytes())
    data[data.index(b"version")] ^= 1  # between its members there are bytes that mean nothing
    (tmp_path / "one").write_bytes(data)
    assert not examine(tmp_path / "one")["healthy"]
    with pytest.raises(fastagg.CheckpointError, match="there is nothing"):
        examine(tmp_path / "none")


def test_it_reads_what_only_the_older_checkpoint_needs(tmp_path: Path) -> None:
    """An opening needs it if the newest checkpoint turns out to be damaged."""
    with fastagg.open(tmp_path / "a", make) as server:
        for _ in range(3):
            for client in range(3):
                server.dispatch(client)
                server.receive(client, torch.ones(50))
            server.checkpoint()
    found = examine(tmp_path / "a")
    assert found["healthy"] and len(found["checkpoints"]) == 2 and not found["recovery"]["replays"]
    for record, healthy in ((3, True), (15, False)):
        damage(tmp_path / "a", record)
        told = examine(tmp_path / "a")
        damage(tmp_path / "a", record)
        assert told["healthy"] == healthy and told["recovery"]["would"] == "go on"
    assert (
        "record 15 is damaged" in told["problems"][0] and "only checkpoint-00000000000000000012" in told["problems"][0]
    )


def test_it_reads_every_upload_that_a_record_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That of the last record before the newest checkpoint, too."""
    monkeypatch.setattr("fastagg.durable.log.SMALL", 0)
    with fastagg.open(tmp_path / "a", make) as server:
        for _ in range(3):
            for client in range(3):
                server.dispatch(client)
            for client in range(3):
                with server.receiving(client) as upload:
                    upload.write(bytes(200))
            server.checkpoint()
    files = sorted((tmp_path / "a").glob("upload-*"))
    assert len(files) == 3 and examine(tmp_path / "a")["healthy"]
    for path in files:
        whole = path.read_bytes()
        path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        told = examine(tmp_path / "a")
        path.write_bytes(whole)
        assert len(told["problems"]) == 1 and "needs it" in told["problems"][0], path


def test_the_command(tmp_path: Path) -> None:
    runner = pytest.importorskip("typer.testing").CliRunner()
    from fastagg.cli.app import app

    fastagg.open(tmp_path / "a", make).close()
    done = runner.invoke(app, ["doctor", str(tmp_path / "a"), "--json"])
    assert done.exit_code == 0 and json.loads(done.stdout)["healthy"]
    told = runner.invoke(app, ["doctor", str(tmp_path / "a")])
    assert told.exit_code == 0 and "{" not in told.stdout and max(map(len, told.stdout.splitlines()[1:])) < 80
    for words in (": healthy", "50 parameters", "checkpoint-0", "would go on: from the checkpoint"):
        assert words in told.stdout
    (tmp_path / "file").write_bytes(b"nothing")
    assert runner.invoke(app, ["doctor", str(tmp_path / "file")]).exit_code == 1
    assert runner.invoke(app, ["doctor", str(tmp_path / "none")]).exit_code == 2


# -- salvage -----------------------------------------------------------------------------------------------------------

RULES: dict[str, Callable[[], fastagg.Server]] = {
    "FedBuff": make,
    "ASGD": lambda: fastagg.ASGD(torch.zeros(50), lr=1.0),
    "ACE int8": lambda: fastagg.ACE(torch.zeros(50), lr=0.5, num_clients=6, cache="int8", warmup="partial"),
    "FedAvg": lambda: fastagg.FedAvg(
        {"w": torch.zeros(50), "bn.running_mean": torch.zeros(3)}, clients_per_round=2, weighting="samples"
    ),
}


def answered(server: fastagg.Server, client: int) -> None:
    task = server.dispatch(client)
    sent: Any = torch.full((50,), 1.0 + client)
    if "bn" in str(server.layout.spec()):
        sent = {"w": sent, "bn.running_mean": torch.full((3,), float(client))}
    server.receive(client, sent, task.version, num_samples=2 + client)


@pytest.mark.parametrize("place", ["a record", "a head"])
@pytest.mark.parametrize("name", RULES)
def test_salvage_takes_what_is_readable_to_a_new_folder(name: str, place: str, tmp_path: Path) -> None:
    """The state before the damage, and the answers behind it as new ones: what a server does that had no others."""
    lost, clients = 4, [0, 1, 2, 3, 4, 0, 1, 2]
    with open_on(Disk(tmp_path / "a", create=True), RULES[name], "arrival", segment=1 << 15) as server:
        for client in clients:
            answered(server, client)
    damage(tmp_path / "a", 2 * lost + 2, place == "a head")  # each answer has a dispatch before it
    before = contents(tmp_path / "a")
    with pytest.raises(fastagg.CheckpointError):
        fastagg.open(tmp_path / "a", RULES[name])
    found = salvage(tmp_path / "a", tmp_path / "b")
    if place == "a record":
        assert "is damaged" in found["problem"] and found["last"] == 2 * lost + 1
        expected, taken = [client for k, client in enumerate(clients) if k != lost], len(clients) - lost - 1
    else:
        assert found["last"] == 0 and "its head is damaged" in found["problem"]
        expected, taken = clients, len(clients)
    assert found["refused"] == [] and found["taken"] == taken
    assert fastagg.audit(tmp_path / "b")["same"], "the new folder's log has what was given in again"
    assert {key: held for key, held in contents(tmp_path / "a").items() if "lock" not in key} == {
        key: held for key, held in before.items() if "lock" not in key
    }
    usual = RULES[name]()
    for client in expected:
        answered(usual, client)
    with fastagg.open(tmp_path / "b", RULES[name]) as server:
        assert server.version == usual.version == found["version"]
        torch.testing.assert_close(server.flat, usual.flat)
    with pytest.raises(fastagg.CheckpointError, match="empty folder"):
        salvage(tmp_path / "a", tmp_path / "b")


def test_salvage_goes_on_with_the_rate_and_its_folder_is_made_with_the_first_one(tmp_path: Path) -> None:
    with fastagg.open(tmp_path / "a", RULES["ASGD"]) as server:
        server.lr = 0.25
        answered(server, 0)
        server.checkpoint()
        for client in (1, 2):
            answered(server, client)
    damage(tmp_path / "a", 5)  # an answer
    assert salvage(tmp_path / "a", tmp_path / "b")["taken"] == 1
    with fastagg.open(tmp_path / "b", RULES["ASGD"]) as server:
        assert server.lr == 0.25
        torch.testing.assert_close(server.flat, torch.full((50,), -0.25 * (1.0 + 3.0)))


def test_salvage_knows_no_limits_and_ends_the_tasks_whose_answers_it_gives_in(tmp_path: Path) -> None:
    def one_at_a_time() -> fastagg.Server:
        return fastagg.FedBuff(torch.zeros(50), buffer_size=1, max_open_per_client=1)

    with fastagg.open(tmp_path / "a", one_at_a_time) as server:
        tasks = [server.dispatch(client) for client in range(3)]
        for task in tasks:
            server.receive(task.client, torch.ones(50), task=task.id)
    damage(tmp_path / "a", 4)  # the first answer
    found = salvage(tmp_path / "a", tmp_path / "b")
    assert found["taken"] == 2 and found["refused"] == []
    with fastagg.open(tmp_path / "b", one_at_a_time) as server:
        for task in tasks[1:]:
            with pytest.raises(fastagg.UnknownVersion):  # it counts already
                server.receive(task.client, torch.ones(50), task=task.id)
        assert server.receive(0, torch.ones(50), task=tasks[0].id).version == 3  # it was lost


def test_the_command_salvages(tmp_path: Path) -> None:
    runner = pytest.importorskip("typer.testing").CliRunner()
    from fastagg.cli.app import app

    with fastagg.open(tmp_path / "a", make) as server:
        for client in range(4):
            answered(server, client)
    damage(tmp_path / "a", 4)
    done = runner.invoke(app, ["doctor", str(tmp_path / "a"), "--salvage", str(tmp_path / "b")])
    assert done.exit_code == 0 and "2 answers were given in again" in done.stdout
    assert runner.invoke(app, ["doctor", str(tmp_path / "b"), "--replay"]).exit_code == 0
