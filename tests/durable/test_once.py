"""A restart forgets neither ids nor offsets."""

from pathlib import Path
from typing import Any

import pytest
import torch
from test_open import again, opened

import fastagg
from fastagg import AlreadyCounted, StaleIncarnation

D = 8


def make() -> fastagg.Server:
    return fastagg.FedBuff(torch.zeros(D), buffer_size=3)


def ace() -> fastagg.Server:
    return fastagg.ACE(torch.zeros(D), lr=0.1, num_clients=4, cache="int8")


@pytest.mark.parametrize("checkpoint", [False, True])
def test_ids_and_offsets_after_a_restart(tmp_path: Path, checkpoint: bool) -> None:
    server = opened(tmp_path / "0", make)
    counted = [server.dispatch(client) for client in ("ann", "bob", "eve", "sum")]
    server.receive("ann", torch.ones(D), task=counted[0].id, offset=1)
    server.receive_model(counted[1], torch.ones(D), offset=2)
    with server.receiving("eve", task=counted[2].id, offset=3) as upload:
        upload.write(torch.ones(D).numpy().tobytes())
    server.receive_partial("sum", fastagg.Partial(torch.ones(D), 1, 1.0), task=counted[3].id, offset=4)
    if checkpoint:
        server.checkpoint()
    open_tasks = [server.dispatch("ann"), server.dispatch("bob"), server.dispatch("tom")]
    handed = server.hand_on(open_tasks[0], "ida")
    server.forget("tom")
    for life in range(2):
        server = again(server, tmp_path / str(life + 1), make)
        assert server.offset == 4
        for task in counted:
            with pytest.raises(AlreadyCounted) as error:
                server.receive(task.client, torch.ones(D), task=task.id)
            assert error.value.version in (0, 1) and error.value.applied == (task is counted[2])
            assert isinstance(server.receive_models([(task, torch.ones(D), None)])[0], AlreadyCounted)
        with pytest.raises(AlreadyCounted):
            server.receive("ann", torch.ones(D), task=open_tasks[0].id, offset=4)
        with pytest.raises(fastagg.UnknownVersion, match="forgotten"):
            server.receive("tom", torch.ones(D), task=open_tasks[2].id)
    server.receive("ann", torch.ones(D), task=open_tasks[0].id, offset=5)
    server.receive("bob", torch.ones(D), task=open_tasks[1].id)
    server.receive("ida", torch.ones(D), task=handed.id)
    assert server.offset == 5


def test_a_task_that_a_crash_has_lost_is_no_other_one(tmp_path: Path) -> None:
    server = opened(tmp_path / "0", make)
    server.dispatch("ann")
    after = again(server, tmp_path / "1", make)
    lost = server.dispatch("bob")  # in a record that the copy lacks
    fresh = after.dispatch("bob")
    assert (lost.version, lost.client) == (fresh.version, fresh.client) and lost.id != fresh.id
    with pytest.raises(StaleIncarnation):
        after.receive("bob", torch.ones(D), task=lost.id)
    after.receive("bob", torch.ones(D), task=fresh.id)


def test_offsets_are_with_rows_too(tmp_path: Path) -> None:
    server = opened(tmp_path / "0", ace)
    for offset in range(6):
        task = server.dispatch(offset % 4)
        server.receive(offset % 4, torch.ones(D), task=task.id, offset=offset)
    found: Any = again(server, tmp_path / "1", ace)
    assert found.offset == 5 and torch.equal(found.flat, server.flat)
    with pytest.raises(AlreadyCounted):
        found.receive(task.client, torch.ones(D), task=task.id)
