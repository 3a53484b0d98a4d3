"""Records that hold a client's encoded row in place of its update: a recovery from them gives the same bits."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from support import inside
from support.damaged import rewritten
from support.presets import numbers, update
from test_open import again, equal, opened, without_lives

import fastagg
from fastagg._build import native
from fastagg.durable.disk import Disk
from fastagg.durable.doctor import examine
from fastagg.durable.folder import contents, read_checkpoint, read_log
from fastagg.ops.place import emulated

pytestmark = pytest.mark.kernel

SIZE = 1500  # its last block is not whole
FORMATS = ("bf16", "int8", "int4")
BYTES = {"bf16": 2.0, "int8": 1.02, "int4": 0.52}  # of a record, for each parameter
BLOCK = 4096
HEAD = 160  # bytes of a record that do not depend on the size, at most
Make = Callable[[], fastagg.Server]


def kinds(folder: Path) -> dict[str, int]:
    """How many records of answers a recovery reads, by kind."""
    found = examine(folder)
    assert found["healthy"], found["problems"]
    replays: dict[str, int] = found["recovery"]["replays"]
    return {kind: count for kind, count in replays.items() if kind in ("answer", "row")}


def lengths(folder: Path) -> list[int]:
    """The bytes of all records of rows behind the oldest checkpoint."""
    disk = Disk(folder)
    held = contents(disk)
    reader = read_log(disk, held, read_checkpoint(disk, held.checkpoints[0]))
    records = iter(reader.next, None)
    found = [record.length for record in records if record.operation.kind == "row"]
    disk.leave()
    return found


@dataclass(frozen=True)
class Choosy(fastagg.Staleness):
    """Older updates count for less, and the oldest for nothing."""

    weighs = True

    def weight(self, delay: int) -> Any:
        return None if delay > 2 else 1.0 / (1 + delay)

    def rate(self, lr: float, delays: Any) -> float:
        return lr / (1 + max(delays))


@pytest.fixture
def choosy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fastagg.registry, "_parts", dict(fastagg.registry._parts))
    fastagg.register(Choosy)


WAYS: dict[str, dict[str, Any]] = {
    "warm-up": {},
    "partial": {"warmup": "partial"},
    "by samples, clipped": {"weighting": "samples", "clip_norm": 0.5, "warmup": "partial"},
    "moments in 8 bits": {"optimizer": fastagg.AMSGrad(0.01, moments="8bit")},
    "choosy": {"warmup": "partial"},
    "active": {"max_delay": 1, "warmup": "partial"},
    "active, by gradient": {"max_delay": 2, "freshness": "gradient"},
}


def maker(way: str, cache: Any = "int8", size: int = SIZE, **more: Any) -> Make:
    settings = {"lr": 0.1, "num_clients": 4, "cache": cache, "seed": 5, **WAYS[way], **more}
    if way == "choosy":
        direction = fastagg.AllClients(num_clients=4, cache=cache, warmup="partial")
        return lambda: fastagg.Server(numbers(0, size, 22), direction, fastagg.SGD(0.1), Choosy(), seed=5)
    rule = fastagg.ACED if way.startswith("active") else fastagg.ACE
    return lambda: rule(numbers(0, size, 22), **settings)


def play(server: fastagg.Server, first: int, last: int) -> None:
    """Answers of clients that come again soon or late, some of them twice before anybody else; some are bf16."""
    told: dict[int, int] = {}
    for k in range(first, last):
        client = (0, 1, 1, 2, 0, 3, 0, 0, 2, 1, 3, 0, 2)[k % 13]
        if client not in told:
            told[client] = server.dispatch(client).version
        sent = update(k, server.layout.size)
        server.receive(client, sent, told.pop(client), num_samples=1 + k % 3)
        if k % 2:
            told[client] = server.dispatch(client).version
    for client in told:
        server.forget(client)


@pytest.mark.usefixtures("choosy")
@pytest.mark.parametrize("cache", FORMATS)
@pytest.mark.parametrize("way", WAYS)
def test_a_recovery_gives_the_bits_of_a_server_that_was_not_killed(way: str, cache: str, tmp_path: Path) -> None:
    make = maker(way, cache)
    usual, server = make(), opened(tmp_path / "a", make)
    play(usual, 0, 20)
    play(server, 0, 20)
    found = again(server, tmp_path / "b", make)
    assert kinds(tmp_path / "a") == {"row": 20}
    assert torch.equal(found.flat, usual.flat)
    assert equal(without_lives(found), without_lives(server))
    server.checkpoint()
    for one in (server, found):
        play(one, 20, 33)
    third = again(server, tmp_path / "c", make)  # from the rows of the checkpoint, and the records after it
    assert equal(without_lives(found), without_lives(server))
    assert equal(without_lives(third), without_lives(server))
    for one in (server, found, third):
        one.close()


@pytest.mark.parametrize("size", [1, 255, 256, 1024, 70_001, 200_003])
def test_rows_of_every_length_and_with_every_instruction_set(size: int, isa: str, tmp_path: Path) -> None:
    for cache in FORMATS:
        make = maker("active", cache, size)
        server = opened(tmp_path / cache, make)
        play(server, 0, 13)
        found = again(server, tmp_path / f"{cache} again", make)
        assert equal(without_lives(found), without_lives(server))
        server.close()
        found.close()


@pytest.mark.parametrize("cache", FORMATS)
def test_a_record_is_as_small_as_its_row(cache: str, tmp_path: Path) -> None:
    size = 390 * native.scale_block  # whole blocks: the last one is padded
    with opened(tmp_path / "a", maker("partial", cache, size)) as server:
        play(server, 0, 6)
        server.flush()
        found = lengths(tmp_path / "a")
        assert len(found) == 6
        assert max(found) <= BYTES[cache] * size + HEAD
        assert inside.journal(server).written < 6 * (BYTES[cache] * size + HEAD + 4 * BLOCK)


def test_fp32_rows_and_rules_that_need_the_update_keep_it(tmp_path: Path) -> None:
    for name, make in {
        "fp32": maker("partial", "fp32"),
        "CA2FL": lambda: fastagg.CA2FL(torch.zeros(SIZE), num_clients=4, buffer_size=2, cache="int8"),
        "client": lambda: fastagg.ACE(torch.zeros(SIZE), lr=0.1, num_clients=4, mode="client", warmup="partial"),
        "no rows": lambda: fastagg.ASGD(torch.zeros(SIZE), lr=0.1),
    }.items():
        with opened(tmp_path / name, make) as server:
            play(server, 0, 4)
            server.flush()
            assert kinds(tmp_path / name) == {"answer": 4}, name


def test_several_at_once_trained_models_and_uploads(tmp_path: Path) -> None:
    def make() -> fastagg.Server:
        direction = fastagg.AllClients(num_clients=4, cache="int8", warmup="partial", kind="delta")
        return fastagg.Server([torch.zeros(500), torch.ones(1000)], direction)

    server = opened(tmp_path / "a", make)
    tasks = [server.dispatch(client) for client in range(4)]
    server.receive_many([(client, update(client, SIZE), tasks[client].version) for client in (2, 0)])
    server.receive_model(tasks[1], [torch.full((500,), 2.0), torch.full((1000,), 3.0)])
    server.receive_models([(tasks[3], [torch.ones(500), torch.ones(1000)], None)])
    server.dispatch(2)
    sent = update(9, SIZE).float()
    with server.receiving(2) as upload:
        upload.write(sent.numpy().tobytes())
    found = again(server, tmp_path / "b", make)
    assert kinds(tmp_path / "a") == {"row": 5}, "a small upload is recorded as its row, too"
    assert equal(without_lives(found), without_lives(server))
    usual = make()
    for client in range(4):
        usual.dispatch(client)
    for client in (2, 0):
        usual.receive(client, update(client, SIZE))
    usual.receive(1, torch.cat([torch.full((500,), 2.0), torch.full((1000,), 2.0)]))
    usual.receive(3, torch.cat([torch.ones(500), torch.zeros(1000)]))
    usual.dispatch(2)
    usual.receive(2, sent)
    assert torch.equal(usual.flat, found.flat)


@pytest.mark.parametrize("statistics", [3, 4000])
def test_running_statistics_come_with_a_row(statistics: int, tmp_path: Path) -> None:
    """Few numbers are copied into the record, and many are read where their sender has them."""

    def make() -> fastagg.Server:
        named = {"w": numbers(0, 700, 22), "bn.running_mean": torch.zeros(statistics)}
        return fastagg.ACE(
            {**named, "bn.num_batches_tracked": torch.tensor(0)}, lr=0.1, num_clients=4, cache="int4", warmup="partial"
        )

    server = opened(tmp_path / "a", make)
    for k in range(6):
        server.dispatch(k % 4)
        mean = {"bn.running_mean": torch.full((statistics,), float(k)), "bn.num_batches_tracked": torch.tensor(k)}
        server.receive(k % 4, {"w": update(k, 700).float(), **(mean if k % 3 else {})})
    found = again(server, tmp_path / "b", make)
    assert kinds(tmp_path / "a") == {"row": 6}
    assert equal(without_lives(found), without_lives(server))
    assert float(found.parameters()["bn.running_mean"][0]) == 5.0


def test_a_row_that_is_replaced_before_it_is_written_and_an_update_that_its_sender_changes(tmp_path: Path) -> None:
    make = maker("partial")
    server = opened(tmp_path / "a", make, "none")
    sent = torch.ones(SIZE)
    for k in range(20):
        server.dispatch(1)
        server.receive(1, sent)
        sent.fill_(float(k))
    assert server.memory()["journal"] > 0, "some of them still wait"
    found = again(server, tmp_path / "b", make)
    assert equal(without_lives(found), without_lives(server))


@pytest.mark.usefixtures("choosy")
def test_an_update_that_is_dropped_leaves_no_row(tmp_path: Path) -> None:
    make = maker("choosy")
    server = opened(tmp_path / "a", make)
    late = server.dispatch(3)
    for _ in range(4):
        server.dispatch(0)
        server.receive(0, torch.ones(SIZE))
    receipt = server.receive(3, torch.ones(SIZE), late.version)
    assert receipt.weight == 0.0 and not receipt.applied
    found = again(server, tmp_path / "b", make)
    assert min(lengths(tmp_path / "a")) < HEAD
    assert equal(without_lives(found), without_lives(server))


@pytest.mark.parametrize(("cache", "zero", "one"), [("int8", 0, 1), ("int4", 0x88, 0x89)])
def test_a_row_that_a_client_has_made_need_not_use_its_scales(cache: Any, zero: int, one: int, tmp_path: Path) -> None:
    arrays = {name: array.copy() for name, array in fastagg.encode(torch.ones(SIZE), cache, seed=0).arrays().items()}
    arrays["codes"][:] = zero
    arrays["codes"][0] = one
    arrays["scales"][:] = 0.5, *[1e38] * (len(arrays["scales"]) - 1)
    with opened(tmp_path / "a", maker("partial", cache)) as server:
        server.dispatch(0)
        assert server.receive(0, fastagg.Encoded.from_arrays(arrays)).durable
        found = again(server, tmp_path / "b", maker("partial", cache))
        assert kinds(tmp_path / "b") == {"row": 1}
        assert equal(without_lives(found), without_lives(server))


def at(place: int, *values: int) -> Callable[[bytearray], None]:
    """Sets bytes of a record's body; a negative place counts from its end."""

    def change(body: bytearray) -> None:
        for k, value in enumerate(values):
            assert body[place + k] != value or len(values) > 1
            body[place + k] = value

    return change


RULES: dict[str, Make] = {
    "a row": maker("partial", size=300),
    "a row of bf16": maker("partial", "bf16", size=300),
    "an update": lambda: fastagg.ASGD(torch.zeros(300), lr=0.1),
}
LIES = [
    *(
        (of, lie, at(place, value))
        for of in ("a row", "an update")
        for lie, place, value in (
            ("another version", 9, 7), ("a negative share", 24, 0xBF), ("no step", 34, 0), ("no part", 67, 0),
            ("a part of another role", 71, 9), ("another type", 72, 3), ("a part that is shorter", 73, 0),
        )
    ),
    ("an update", "another norm", at(59, 0x41)),
    ("a row", "an outcome that nobody knew", at(33, 0)),
    ("a row", "another weight", at(57, 0x10)),
    ("a row", "a negative norm", at(66, 0xC0)),
    ("a row", "a norm that is too small", at(66, 0x00)),
    ("a row", "a norm that is no number", at(65, 0xF0, 0x7F)),
    ("a row", "an update in its place", at(71, 0)),
    ("a row", "a row longer than the record", at(79, 0x7F)),
    ("a row", "scales that are not finite", at(-4, 0, 0, 0xC0, 0x7F)),
    ("a row", "scales that are too large", at(-2, 0x00, 0x60)),
    ("a row of bf16", "numbers that are not finite", at(90, 0x80, 0x7F)),
]  # fmt: skip


def killed(of: str, tmp_path: Path) -> tuple[Path, torch.Tensor]:
    """The segment of a server that was killed after one answer, so that nothing vouches for its record; its model."""
    with opened(tmp_path / "b", RULES[of]) as server:
        server.dispatch(0)
        server.receive(0, torch.ones(300))
        shutil.copytree(tmp_path / "b", tmp_path / "a")
        return next((tmp_path / "a").glob("journal-*")), server.flat.clone()


@pytest.mark.parametrize(("of", "lie", "change"), LIES)
def test_a_record_that_lies_stops_the_opening(
    of: str, lie: str, change: Callable[[bytearray], None], tmp_path: Path
) -> None:
    path, _ = killed(of, tmp_path)
    rewritten(path, change)
    held = path.read_bytes()
    with pytest.raises(fastagg.CheckpointError, match="record 2 of the log cannot be executed"):
        opened(tmp_path / "a", RULES[of])
    assert path.read_bytes() == held


@pytest.mark.parametrize("known", [0, 1])
def test_an_outcome_that_a_device_decided_later_is_not_known(known: int, tmp_path: Path) -> None:
    """Its record has zeros. Format 3 called them known."""
    path, model = killed("an update", tmp_path)
    rewritten(path, lambda body: body.__setitem__(slice(33, 67), bytes([known]) + bytes(33)))
    with opened(tmp_path / "a", RULES["an update"]) as server:
        assert torch.equal(server.flat, model) and server.version == 1


@pytest.mark.skipif(not native.cuda_emulated, reason="needs a build that emulates CUDA")
def test_a_device_records_updates_and_refuses_rows_by_name(tmp_path: Path) -> None:
    make = maker("partial")
    with emulated():
        with opened(tmp_path / "there", make) as server:
            play(server, 0, 4)
            state = server.flat.clone()
        assert kinds(tmp_path / "there") == {"answer": 4}
    with opened(tmp_path / "there", make) as server:
        assert torch.equal(server.flat, state)
    with opened(tmp_path / "here", make) as server:
        play(server, 0, 4)
    shutil.copytree(tmp_path / "here", tmp_path / "copy")
    with emulated(), pytest.raises(fastagg.CheckpointError, match="open the folder with a server on the CPU"):
        opened(tmp_path / "copy", make)
    with opened(tmp_path / "here", make) as server:
        server.checkpoint()
        state = server.flat.clone()
    with emulated(), opened(tmp_path / "here", make) as server:
        assert torch.equal(server.flat, state)
