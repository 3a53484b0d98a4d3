"""Encoded updates at a server, and models that are sent rounded. That the bits are those of what they stand for, with
every rule and in every way: tests/fuzz."""

import random
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from support import inside
from support.models import same
from support.reference import rows
from torch import Tensor

import fastagg
from fastagg import TopK, encode
from fastagg._build import native

pytestmark = pytest.mark.kernel

FORMATS: tuple[Any, ...] = ("int8", "int4", "int8-tensor", "sign", "bf16", TopK(0.05), TopK(0.2, "int2"))
SIZE = 5003


def update(seed: int, size: int = SIZE) -> Tensor:
    found = torch.randn(size, generator=torch.Generator().manual_seed(seed)) * 0.1
    found[seed % 5 :: 17] = -0.0
    return found


def bits(server: fastagg.Server) -> list[Any]:
    """The model and the sum, with the signs of zeros."""
    vectors = server.flat, server.state_dict()["direction"].get("acc")
    return [None if vector is None else vector.view(torch.int32).tolist() for vector in vectors]


@pytest.mark.parametrize("cache", ["int8", "int4", "bf16"])
@pytest.mark.parametrize("rule", ["ACE", "ACED", "CA2FL"])
def test_an_upload_in_the_rows_format_is_the_row(rule: str, cache: str) -> None:
    more = {"ACE": {"lr": 0.1}, "ACED": {"lr": 0.1, "max_delay": 3}, "CA2FL": {"lr": 0.1, "buffer_size": 3}}[rule]
    make = getattr(fastagg, rule)
    ours, exact = (make(torch.zeros(SIZE), num_clients=4, cache=kind, **more) for kind in (cache, "fp32"))
    for turn in range(40):
        client = turn * 7 % 4
        for server in (ours, exact):
            server.dispatch(client)
        encoded = encode(update(turn), cache, seed=turn)  # type: ignore[arg-type]
        assert ours.receive(client, encoded) == exact.receive(client, encoded.decode())
        assert torch.equal(ours.flat, exact.flat)


@pytest.mark.parametrize("optimizer", [fastagg.SGD(0.5), fastagg.AMSGrad(0.01, moments="8bit")], ids=["sgd", "8bit"])
@pytest.mark.parametrize("kind", ["delta", "gradient"])
def test_more_than_may_wait_are_added_in_order(kind: Any, optimizer: fastagg.Optimizer) -> None:
    """Dense ones between them. What stands with other settings, and sums and models: tests/fuzz."""
    chance = random.Random(70)
    ours, plain = (fastagg.Server(torch.zeros(SIZE), fastagg.Buffer(70, kind=kind), optimizer) for _ in range(2))
    for turn in range(150):
        for server in (ours, plain):
            server.dispatch(turn)
        dense = update(turn)
        encoded = dense if chance.random() < 0.1 else encode(dense, chance.choice(FORMATS), seed=turn)
        receipt = plain.receive(turn, encoded.decode() if isinstance(encoded, fastagg.Encoded) else encoded)
        assert ours.receive(turn, encoded) == receipt
        if "held" not in ours.state_dict()["direction"]:
            assert bits(ours) == bits(plain)
    assert ours.close_round() == plain.close_round()
    assert torch.equal(ours.flat, plain.flat) and ours.memory()["direction"] <= 4 * SIZE


def test_in_a_folder_it_is_written_as_it_came(tmp_path: Path) -> None:
    """What the folder becomes: tests/fuzz."""
    make = lambda: fastagg.FADAS(torch.zeros(SIZE), lr=0.01, buffer_size=5, delay_threshold=3)  # noqa: E731
    with fastagg.open(tmp_path / "state", make, durability="arrival") as server:
        for turn, format in enumerate(FORMATS):
            encoded, before = encode(update(turn), format, seed=turn), inside.journal(server).written
            server.dispatch(turn)
            server.receive(turn, encoded)
            assert inside.journal(server).written - before < encoded.nbytes + 12_288 < 4 * SIZE + 12_288
    assert fastagg.audit(tmp_path / "state")["same"]


def test_bytes_of_many_threads_are_let_go_when_their_step_is_made(tmp_path: Path) -> None:
    """Each thread drops what it has sent before the round ends, in a folder also before the log is written."""
    size, count = 70_000, 24
    data = [encode(update(turn, size), "int8", seed=turn).to_bytes() for turn in range(count)]
    before = [sys.getrefcount(one) for one in data]

    def make() -> fastagg.Server:
        return fastagg.FedBuff(torch.zeros(size), lr=1.0, buffer_size=count)

    def send(server: fastagg.Server, client: int) -> None:
        for turn in range(client, count, 4):
            buffer = bytearray(data[turn])
            given = fastagg.Encoded.from_bytes(data[turn] if turn % 2 else buffer)
            buffer[:] = bytes(len(buffer))
            server.dispatch(turn)
            server.receive(turn, given)

    plain, held = make(), make()
    folder = fastagg.open(tmp_path / "state", make)
    for server in (held, folder):
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(partial(send, server), range(4)))
        assert server.version == 1 and [sys.getrefcount(one) for one in data] == before
    for turn in range(count):
        plain.dispatch(turn)
        plain.receive(turn, fastagg.Encoded.from_bytes(data[turn]).decode())
    for server in (held, folder):  # whose updates came in other orders
        torch.testing.assert_close(server.flat, plain.flat, rtol=0, atol=1e-6)
    model = folder.flat.clone()
    folder.close()
    with fastagg.open(tmp_path / "state", make) as again:
        assert torch.equal(again.flat, model) and again.version == 1


def test_what_waits_needs_no_vector_of_the_models_size() -> None:
    size = 1 << 20
    server = fastagg.FedBuff(torch.zeros(size), buffer_size=8)
    uploads = [
        encode(update(i, size), format, seed=i) for i, format in enumerate(("int8", "int4", "sign", TopK(0.01)) * 2)
    ]
    for client, encoded in enumerate(uploads):
        task = server.dispatch(client)
        del task
        native.memory.fail_after(1000)
        server.receive(client, encoded)
        made = 1000 - native.memory.left_to_fail()
        native.memory.fail_after(-1)
        assert made <= (client == 7)  # the next version alone
        assert server.memory()["direction"] == (0 if client == 7 else sum(one.nbytes for one in uploads[: client + 1]))


def test_a_damaged_one_in_a_state_is_refused() -> None:
    server = fastagg.FedBuff(torch.zeros(SIZE), buffer_size=3)
    server.dispatch(0)
    server.receive(0, encode(update(0), "int8", seed=0))
    state = server.state_dict()
    damaged = {**state, "direction": {**state["direction"], "held": [dict(state["direction"]["held"][0])]}}
    damaged["direction"]["held"][0]["update"] = [damaged["direction"]["held"][0]["update"][0][:-8]]
    with pytest.raises(fastagg.CheckpointError):
        server.load_state_dict(damaged)
    assert same(server.state_dict(), state)


@pytest.mark.parametrize("look_ahead", [False, True])
@pytest.mark.parametrize("format", ["bf16", "int8"])
def test_a_rounded_model_is_what_its_delta_is_taken_from(format: Any, look_ahead: bool) -> None:
    """It follows from the version and the seed, so all clients have one. After restarts: tests/fuzz."""
    optimizer = fastagg.Nesterov(0.5, momentum=0.6, look_ahead=look_ahead)
    server = fastagg.Server(update(99), fastagg.Buffer(3), optimizer, seed=5)
    for turn in range(9):
        task, other = (server.dispatch(client, format=format) for client in (turn, -1))
        assert task.flat.data_ptr() == other.flat.data_ptr() and not torch.equal(task.flat, server.flat)
        assert task.encoded.format == format and torch.equal(task.encoded.decode(), task.flat)
        if not look_ahead:
            bits = rows.random_bits(5, server.version, 2**32 - 2, SIZE)
            assert torch.equal(task.flat, rows.decode(*rows.encode(server.flat, bits, format), format, SIZE))
        back = fastagg.Dispatch.from_state(task.state_dict(), server.layout)
        for copy in (back, server.hand_on(task, f"{turn} too")):
            assert torch.equal(copy.flat, task.flat) and repr(copy.encoded) == repr(task.encoded)
        assert torch.equal(back.delta(task.flat + update(turn)), (task.flat + update(turn)) - task.flat)
        server.receive_model(back, task.flat + update(turn))
    assert server.version == 3


@pytest.mark.parametrize("format", ["bf16", "int8"])
def test_a_rounded_model_is_the_model_on_average(format: Any) -> None:
    x, turns = update(7, 600), 400
    found = torch.stack([fastagg.ASGD(x, lr=0.1, seed=n).dispatch(0, format=format).flat for n in range(turns)])
    error, exponent = (found.double() - x).mean(0), torch.frexp(x.double())[1]
    # between two numbers that it may become
    step = 2.0 ** (exponent - 8) if format == "bf16" else x.abs().max().double().expand(600) / 127
    assert bool((error.abs() <= 5.5 * step / 2 / turns**0.5).all())
    assert bool((found - x).abs().le(step * 1.001).all()) and not torch.equal(found[0], found[1])
