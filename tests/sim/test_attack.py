"""Clients that lie: who, what they send, what they train on (a run that is resumed: test_resume.py)."""

from typing import Any

import pytest
import torch

from fastagg.errors import ConfigError
from fastagg.model import ModelState
from fastagg.sim.clients.attack import Liars, liars_of, with_flipped_labels
from fastagg.sim.data.federated import FederatedData, Samples
from fastagg.sim.recipes.config import Config, from_toml
from fastagg.sim.recipes.sections import Attack
from fastagg.sim.runs.simulation import Simulation

from .conftest import TINY

CLIENTS = 10


def config(**attack: Any) -> Config:
    return from_toml(TINY, "test", {"data.clients": CLIENTS, "model.name": "logistic", "attack": attack})


def state(values: list[float]) -> ModelState:
    return ModelState(torch.tensor(values), torch.zeros(0), [])


def known(name: Any, **more: Any) -> tuple[Liars, int]:
    """Liars that know two honest updates, and who one of them is."""
    attack = Attack(name=name, **more)
    liars = liars_of(attack, CLIENTS, 1)
    found = Liars(attack, CLIENTS, 1, ["w"])
    honest = [client for client in range(CLIENTS) if client not in liars]
    for client, values in zip(honest, ([1.0, 2.0], [3.0, 2.0]), strict=False):
        assert found(client, state(values)).flat.tolist() == values
    return found, min(liars)


def test_who_lies_is_drawn_by_the_seed() -> None:
    attack = Attack(name="sign_flip", share=0.2)
    assert [len(liars_of(attack, CLIENTS, seed)) for seed in range(5)] == [2] * 5
    assert liars_of(attack, CLIENTS, 0) == liars_of(Attack(name="alie", share=0.2), CLIENTS, 0)
    assert len({liars_of(attack, CLIENTS, seed) for seed in range(9)}) > 1
    assert not liars_of(Attack(), CLIENTS, 0)


@pytest.mark.parametrize(
    ("name", "more", "sent"),
    [
        ("sign_flip", {}, [-5.0, 4.0]),
        ("scaling", {"strength": 3.0}, [15.0, -12.0]),
        ("inner_product", {}, [-1.0, -1.0]),
        ("alie", {"strength": 2.0}, [0.0, 2.0]),
        ("label_flip", {}, [5.0, -4.0]),
    ],
)
def test_what_a_liar_sends(name: str, more: dict[str, float], sent: list[float]) -> None:
    liars, liar = known(name, **more)
    assert liars(liar, state([5.0, -4.0])).flat.tolist() == sent  # type: ignore[union-attr]
    update = {"w": torch.tensor([[5.0, -4.0]]), "bn.running_mean": torch.ones(1)}
    found = liars(liar, update)
    assert isinstance(found, dict) and found["w"].tolist() == [sent] and found["bn.running_mean"].tolist() == [1.0]


def test_flipped_labels_are_those_of_liars_alone() -> None:
    samples = Samples(torch.zeros(3, 1), torch.tensor([0, 1, 9]))
    data = FederatedData([samples] * CLIENTS, samples, 10)
    attack = Attack(name="label_flip", share=0.3)
    flipped = with_flipped_labels(data, attack, 1)
    liars = liars_of(attack, CLIENTS, 1)
    for client, theirs in enumerate(flipped.clients):
        assert theirs.y.tolist() == ([9, 8, 0] if client in liars else [0, 1, 9])
    assert flipped.test is data.test
    numbers = Samples(torch.zeros(3, 1), torch.zeros(3))
    with pytest.raises(ConfigError, match="one class for each sample"):
        with_flipped_labels(FederatedData([numbers], numbers, 1), attack, 1)


@pytest.mark.parametrize(
    ("name", "share"), [("sign_flip", 0.0), ("sign_flip", 0.2), ("alie", 0.2), ("label_flip", 0.2)]
)
def test_a_run_is_another_one_only_with_liars(name: str, share: float) -> None:
    plain, lying = Simulation(config()), Simulation(config(name=name, share=share))
    for _ in range(40):
        plain.step(), lying.step()
    assert torch.equal(plain.server.flat, lying.server.flat) == (not share)
