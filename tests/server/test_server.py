"""A server as a whole: its memory, threads, processes, the variables that it reads, a learning rate that changes."""

import pytest
import torch
from support import inside

import fastagg

pytestmark = pytest.mark.kernel


def test_memory_is_what_it_says() -> None:
    server = fastagg.ACE(torch.zeros(1000), lr=0.1, num_clients=5, cache="int8", optimizer=fastagg.AMSGrad())
    rows = 5 * (1024 + 4 * 4)
    assert server.memory() == {
        "model": 4000, "moments": 12000, "direction": rows + 4000 + 8 * 5, "versions": 0, "clients": 5 * 8,
        "buffers": 0,
        "total": 16000 + rows + 4000 + 40 + 40,
    }  # fmt: skip


def test_a_model_that_was_read_and_dropped_costs_later_updates_nothing() -> None:
    """A version that somebody holds stays, and the next step writes to other memory; all later ones are in place."""
    server = fastagg.ASGD(torch.nn.Linear(3, 2), lr=0.5)
    for client in range(4):
        server.dispatch(client)
    for held in (server.flat, *server.parameters().values()):
        before, at = held.clone(), server.flat.data_ptr()
        del at
    places = []
    for client in range(4):
        server.receive(client, torch.ones(8))
        places.append(inside.engine(server).model.data_ptr())
    assert torch.equal(held, before) and held.data_ptr() != places[0] and len(set(places)) == 1


@pytest.mark.parametrize("name", ["FedAsync", "ASGD"])
def test_memory_has_every_version_that_somebody_holds(name: str) -> None:
    """Also the first one, which is torch's memory, and one of which only a view is left; each once."""
    server = getattr(fastagg, name)({"w": torch.zeros(100)}, **({"lr": 0.1} if name == "ASGD" else {}))
    server.dispatch("late")  # FedAsync keeps version 0 for it
    held = []
    for version in range(20):
        held.append(server.parameters()["w"][:1] if version % 2 else server.flat)
        server.dispatch("ann")
        server.receive("ann", torch.ones(100))
        assert server.memory()["versions"] == 400 * len(held)
    keeps = 400 * (name == "FedAsync")
    del held[:10]
    assert server.memory()["versions"] == 4000 + keeps
    held.clear()
    assert server.memory()["versions"] == keeps
    server.forget("late")
    assert server.memory()["versions"] == 0
