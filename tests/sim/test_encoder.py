"""Runs whose clients encode their updates: what is counted and not sent yet (resumed: test_resume.py)."""

from typing import Any

import pytest
import torch

from fastagg.model import Layout, ModelState
from fastagg.sim import run
from fastagg.sim.clients.encoder import UpdateEncoder
from fastagg.sim.comparison.groups import grouped
from fastagg.sim.recipes.config import Config, from_toml
from fastagg.sim.recipes.sections import Encoding
from fastagg.sim.recipes.tables import Cell
from fastagg.sim.runs.simulation import Simulation
from fastagg.sim.show import series

from .conftest import TINY

SIZE = 650  # parameters of the logistic model on digits


def config(model: dict[str, Any] | None = None, delay: dict[str, Any] | None = None, **encoding: Any) -> Config:
    changes = {"model": model or {"name": "logistic"}, "delay": delay or {"name": "exponential"}, "encoding": encoding}
    return from_toml(TINY, "test", {**changes, "participation": {"rule": "all"}})


def played(given: Config) -> Simulation:
    simulation = Simulation(given)
    for _ in range(40):
        simulation.step()
    return simulation


@pytest.mark.parametrize("feedback", [False, True])
@pytest.mark.parametrize(
    ("format", "nbytes"),
    [("bf16", 64 + 2 * 768), ("int8", 64 + 768 + 12), ("int8-tensor", 848), ("sign", 64 + 128 + 12), ("topk", 640)],
)
def test_bytes_of_updates_are_counted(format: str, nbytes: int, feedback: bool) -> None:
    encoded, plain = played(config(format=format, feedback=feedback)), played(config())
    assert len(encoded._encoder._feedback) == (len(encoded.client_uploads) if feedback else 0)
    assert (encoded.bytes_up, plain.bytes_up) == (40 * nbytes, 40 * 4 * SIZE)
    assert not torch.equal(encoded.server.flat, plain.server.flat)


@pytest.mark.parametrize("form", ["vector", "by name"])
def test_what_is_not_sent_comes_later(form: str) -> None:
    model = {"a": torch.zeros(30, 10), "b": torch.zeros(7)}
    layout = Layout.of(model)
    encoder = UpdateEncoder(Encoding(format="topk", share=0.1, values="int2", feedback=True), layout, 5)
    given, sent = torch.zeros(2, 307), torch.zeros(2, 307)
    for number in range(6):
        for client in range(2):
            update = torch.randn(307, generator=torch.Generator().manual_seed(10 * number + client))
            named = {"a": update[:300].view(30, 10), "b": update[300:]}
            found = encoder(client, number, ModelState(update, torch.zeros(0), []) if form == "vector" else named)
            given[client] += update
            sent[client] += found.decode()  # type: ignore[union-attr]
    kept = torch.stack([encoder.state_dict()[client]["residual"] for client in range(2)])
    assert torch.allclose(sent + kept, given, atol=1e-5) and bool((kept != 0).any())


def test_bytes_take_time_on_their_way() -> None:
    """Where uploads take time, encoded ones take less."""
    delay = {"name": "exponential", "speed": 1e9, "up": 100.0}
    slow, fast = (played(config(delay=delay, **more)) for more in ({}, {"format": "int8"}))
    assert fast.schedule.now < 0.5 * slow.schedule.now


@pytest.mark.parametrize(("download", "nbytes"), [("bf16", 64 + 2 * 768), ("int8", 64 + 768 + 64)])
@pytest.mark.parametrize("more", [{}, {"delay": {"name": "version", "tau_max": 3}}, {"encoding": {"format": "int8"}}])
def test_models_are_sent_in_a_format(download: str, nbytes: int, more: dict[str, Any]) -> None:
    delay, encoding = more.get("delay"), more.get("encoding", {})
    encoded, plain = played(config(delay=delay, download=download, **encoding)), played(config(delay=delay))
    sent = encoded.server.dispatch(0, format=download).encoded
    assert sent is not None and sent.nbytes <= nbytes
    assert (encoded.bytes_down, plain.bytes_down) == (40 * sent.nbytes, 40 * 4 * SIZE)
    assert not torch.equal(encoded.server.flat, plain.server.flat)


def test_accuracy_is_drawn_over_bytes_where_formats_differ() -> None:
    plain, up, down = (run(config(**more)) for more in ({}, {"format": "int8"}, {"download": "int8"}))
    for results, drawn in (([plain, up], {"bytes_up"}), ([plain, down], {"bytes_down"}), ([plain], set())):
        axes = series.x_axes(grouped([(Cell(one.config), one) for one in results]))
        assert axes.keys() - {"time", "version", "uploads"} == drawn
