"""Slices on CUDA devices give the bits of one process on the CPU: on one card or two, or emulated (tests/emulation)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from support.sharded import cards
from support.sharded.processes import play

from fastagg._build import native

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.cuda,
    pytest.mark.skipif(
        not (torch.cuda.is_available() and native.cuda_architectures) and not native.cuda_emulated,
        reason="needs a GPU, or a build that emulates one",
    ),
    pytest.mark.skipif(not cards.dist.is_gloo_available(), reason="this torch has no gloo"),
]
RANKS = cards.ranks_here()


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """One start of all processes: what each rank found."""
    folder: Path = tmp_path_factory.mktemp("cards")
    logs = play("cards.py", folder, RANKS, range(RANKS))
    files = [folder / f"found-{rank}.json" for rank in range(RANKS)]
    assert all(file.exists() for file in files), logs
    return [json.loads(file.read_text()) for file in files]


@pytest.mark.parametrize("case", [*cards.cases(RANKS), "restarted"])
def test_bits_are_those_of_one_process_on_the_cpu(found: list[dict[str, Any]], case: str) -> None:
    assert found[0][case] == ""


@pytest.mark.parametrize("name", [cards.FAILS, cards.RESTARTED])
def test_what_one_card_refuses_no_rank_applies(found: list[dict[str, Any]], name: str) -> None:
    seen = found[0]["refused"][name]
    assert sorted(seen) == ["0", "1", "same"]
    assert seen["0"] == ["RunFailed: MemoryError: none left on the card", True]
    assert seen["1"][0].startswith("NonFiniteUpdate: ") and seen["1"][1]
    assert seen["same"]


@pytest.mark.skipif(not cards.own_cards(RANKS), reason="needs two GPUs and NCCL")
def test_distributed_tensors_stay_on_their_cards(found: list[dict[str, Any]]) -> None:
    for one in found:
        assert one["mesh"]["same"] and one["mesh"]["device"] == one["mesh"]["expected"]
