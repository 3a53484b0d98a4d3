"""Adapters of unequal rank: what is cut, padded and multiplied out is the same update."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.properties import examples
from support.replay import taken

import fastagg
from fastagg import lora

SHAPES = {"0.weight": (6, 5), "2.weight": (3, 6)}


def adapters(rank: int, seed: int = 0) -> dict[str, torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    found = {}
    for weight, (out, into) in SHAPES.items():
        layer = "base_model.model." + weight.removesuffix(".weight")
        found[f"{layer}.lora_A.weight"] = torch.randn(rank, into, generator=draw)
        found[f"{layer}.lora_B.weight"] = torch.randn(out, rank, generator=draw)
    return found


@given(st.integers(1, 6), st.integers(0, 4))
@examples(25)
def test_padding_changes_no_product_and_cutting_takes_it_off_again(rank: int, more: int) -> None:
    own = adapters(rank)
    wide = lora.padded(own, rank + more)
    assert {a.shape[0] for n, a in wide.items() if "lora_A" in n} == {rank + more}
    for name, product in lora.products(wide, SHAPES).items():
        torch.testing.assert_close(product, lora.products(own, SHAPES)[name])
    for name, array in lora.cut(wide, rank).items():
        assert torch.equal(array, own[name])


def test_products_are_weights_with_their_scale_and_others_are_zero() -> None:
    own = {name: array for name, array in adapters(2).items() if ".0." in name}
    found = lora.products(own, {**SHAPES, "bias": (4,)}, scale=2.0)
    a, b = own["base_model.model.0.lora_A.weight"], own["base_model.model.0.lora_B.weight"]
    torch.testing.assert_close(found["0.weight"], 2 * b @ a)
    assert not found["2.weight"].any() and found["bias"].shape == (4,) and not found["bias"].any()


def test_a_mixture_of_ranks_is_the_product_of_the_stacks() -> None:
    """FLoRA: the server's mean of the products is [p1 B1, p2 B2] [A1; A2]."""
    base = {name: torch.zeros(shape) for name, shape in SHAPES.items()}
    server = fastagg.FedAvg(base, clients_per_round=3)
    ranks, samples = {"a": 1, "b": 2, "c": 4}, {"a": 10, "b": 30, "c": 60}
    sent = {client: adapters(rank, seed=rank) for client, rank in ranks.items()}
    scaled = {"stated": {"fastagg-scale": 0.5}}
    answers = [
        (server.dispatch(client), sent[client], {"kind": "lora", "samples": samples[client], **scaled})
        for client in ranks
    ]
    assert all(isinstance(outcome, fastagg.Receipt) for outcome in taken(server, *answers))
    for weight, model in server.parameters().items():
        layer = "base_model.model." + weight.removesuffix(".weight")
        tall = torch.cat([sent[c][f"{layer}.lora_A.weight"] for c in ranks])
        wide = torch.cat([0.5 * samples[c] / 100 * sent[c][f"{layer}.lora_B.weight"] for c in ranks], dim=1)
        torch.testing.assert_close(model, wide @ tall)


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ({"0.lora_A.weight": torch.ones(2, 5)}, "lora_B"),
        ({"0.lora_A.weight": torch.ones(2, 5), "0.lora_B.weight": torch.ones(6, 3)}, "no adapters of '0.weight'"),
        ({"9.lora_A.weight": torch.ones(2, 5), "9.lora_B.weight": torch.ones(6, 2)}, "has no '9.weight'"),
        ({"0.weight": torch.ones(6, 5)}, "expected <layer>"),
        ({"0.lora_B.weight": torch.ones(6, 2)}, "expected <layer>"),
    ],
)
def test_what_is_no_adapter_is_refused_and_changes_nothing(bad: dict, words: str) -> None:
    server = fastagg.FedBuff({name: torch.zeros(shape) for name, shape in SHAPES.items()}, buffer_size=1)
    [outcome] = taken(server, (server.dispatch("a"), bad, {"kind": "lora"}))
    assert isinstance(outcome, fastagg.ShapeMismatch) and words in str(outcome)
    assert server.version == 0 and not server.flat.any()
