"""Models whose tensors are distributed (DTensor, FSDP2): taken and given back as such, with the bits of one process."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from support.sharded import distributed
from support.sharded.processes import play

from fastagg.shards.placing import moves

Found = list[dict[str, Any]]
needs_gloo = pytest.mark.skipif(not distributed.dist.is_gloo_available(), reason="this torch has no gloo")


@pytest.fixture(scope="module")
def play_once(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Start each number of processes once for all cases: what each rank found."""
    seen: dict[int, Found] = {}

    def of(ranks: int) -> Found:
        if ranks not in seen:
            folder: Path = tmp_path_factory.mktemp("distributed")
            logs = play("distributed.py", folder, ranks, range(ranks))
            files = [folder / f"found-{rank}.json" for rank in range(ranks)]
            assert all(file.exists() for file in files), logs
            seen[ranks] = [json.loads(file.read_text()) for file in files]
        return seen[ranks]

    return of


@needs_gloo
@pytest.mark.parametrize("ranks", distributed.ONE_DIMENSION)
def test_an_fsdp_module_takes_the_new_weights_and_its_training_goes_on(play_once: Any, ranks: int) -> None:
    for found in play_once(ranks):
        assert found["version"] == [2, 2]
        assert found["taken back"] and found["goes on"] and found["taken again"]


@needs_gloo
@pytest.mark.parametrize("ranks", distributed.ONE_DIMENSION)
def test_no_rank_ever_has_the_whole_model(play_once: Any, ranks: int) -> None:
    for found in play_once(ranks):
        assert found["size"] > 2 * 65_536 >= found["slice"] > 0
        assert max(found["largest at the start"], found["largest at the end"]) <= found["slice"]
        sent, needed = found["traffic"]  # only what lies on another rank is sent
        assert needed <= sent < needed + 30_000


@needs_gloo
@pytest.mark.parametrize("form", ["state_dict", "list", "flat", "module"])
@pytest.mark.parametrize("ranks", [*distributed.ONE_DIMENSION, distributed.TWO_DIMENSIONS])
def test_every_form_comes_back_on_its_mesh_with_the_bits_of_one_process(play_once: Any, ranks: int, form: str) -> None:
    assert [found[form] for found in play_once(ranks)] == [""] * ranks


@needs_gloo
@pytest.mark.parametrize("ranks", distributed.ONE_DIMENSION)
@pytest.mark.parametrize(
    ("case", "said"),
    {
        "Shard(1)": "model: 'w' is placed (Shard(dim=1),)",
        "Partial": "model: 'w' is placed (Partial(",
        "another mesh": "model: 'w' is on the ranks [0]; expected those of the server's group, in order: [0, 1",
        "another order": "model: 'w' is on the ranks [",
        "one has it whole": "placed.w: rank 1 has (Shard(dim=0),) on the ranks [0, 1",
        "no numbers": "w: expected a dense array of real numbers, got torch.float32 (meta)",
        "another placement": "placed.w: rank 1 has (Shard(dim=0),) on the ranks [0, 1",
    }.items(),
)
def test_other_placements_are_refused_by_name_on_all_ranks(play_once: Any, ranks: int, case: str, said: str) -> None:
    words = [found[case] for found in play_once(ranks)]
    assert len(set(words)) == 1 and words[0].split(": ", 1)[1].startswith(said)
    assert words[0].split(": ")[0] == ("DTypeMismatch" if case == "no numbers" else "ConfigError")


def test_every_rank_gets_what_it_wants_from_a_rank_that_has_it() -> None:
    draw = random.Random(7)
    for _ in range(200):
        size, ranks = draw.randint(1, 40), draw.randint(1, 5)
        at = sorted(draw.randint(0, size) for _ in range(ranks - 1))
        have = list(zip([0, *at], [*at, size], strict=True))  # some are empty
        if draw.random() < 0.5:
            have[draw.randrange(ranks)] = (0, size)  # one has all of it
        want = [tuple(sorted((draw.randint(0, size), draw.randint(0, size)))) for _ in range(ranks)]
        got: list[list[int]] = [[] for _ in range(ranks)]
        covered = [set(range(*one)) for one in have]
        for source, target, begin, end in moves(have, want):
            assert set(range(begin, end)) <= covered[source]
            assert source == target or begin not in covered[target]
            got[target] += range(begin, end)
        assert [list(range(*one)) for one in want] == got
