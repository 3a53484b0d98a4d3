"""If one rank fails, all raise the same error, nobody waits forever, and all ranks take an answer or none does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.sharded import faults
from support.sharded.processes import play

pytestmark = pytest.mark.skipif(not faults.dist.is_gloo_available(), reason="this torch has no gloo")
Seen = dict[int, dict[str, Any]]


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    """One start of four processes: what each of them saw."""
    folder: Path = tmp_path_factory.mktemp("faults")
    logs = play("faults.py", folder, 4, [0, faults.LEADS, faults.DIES])
    files = {rank: folder / f"seen-{rank}.json" for rank in range(3)}
    assert all(file.exists() for file in files.values()), logs
    return {rank: json.loads(file.read_text()) for rank, file in files.items()}


def test_ranks_with_different_settings_are_refused_by_name(seen: Seen) -> None:
    for rank in (0, 1):
        said, _ = seen[rank]["settings"]
        assert said == "ConfigError: optimizer.lr: rank 1 has 0.02, rank 0 has 0.01"


def test_ranks_with_different_models_are_refused(seen: Seen) -> None:
    """Each rank takes its slice from its own model, so an unseeded one would be half of another one."""
    for rank in (0, 1):
        said, _ = seen[rank]["model"]
        assert said.startswith("ConfigError: values of the model (seed it alike on all ranks")


def test_a_rank_that_cannot_make_its_server_ends_all(seen: Seen) -> None:
    assert seen[0]["make"][0] == "RunFailed: OSError: no such plan"
    assert seen[1]["make"][0] == "OSError: no such plan"


@pytest.mark.parametrize(
    ("case", "error"),
    {
        "lacks": "NotSharded: receive_models: not in a group",
        "fails between": "RunFailed: MemoryError: none left",
        "nan": "NonFiniteUpdate: ",
        "too large": "UpdateTooLarge: ",
        "not delivered": "NotDelivered: rank 0 does not hold its slice of client 7's answer to version 0",
        "shape": "ShapeMismatch: ",
        "gone": "ShapeMismatch: update: no shared vector at ",
        "unknown": "UnknownClient: ",
        "no checkpoint": "CheckpointError: ",
        "damaged": "CheckpointError: ",
        "closed": "RankLost: ",
    }.items(),
)
def test_what_is_refused_has_a_name(seen: Seen, case: str, error: str) -> None:
    assert seen[0][case][0].startswith(error)
    assert len(seen[0][case][0]) < 500


def test_what_is_refused_changes_nothing_on_any_rank(seen: Seen) -> None:
    assert seen[0]["unchanged"]
    assert seen[0]["goes on"]  # equal to one process that never saw the bad ones
    assert seen[0]["still"]
    assert seen[1]["version"] == 2 - 1


def test_other_ranks_are_not_driven(seen: Seen) -> None:
    assert seen[1]["drives"][0].startswith("NotSharded: dispatch: rank 0 is driven")


def test_an_arrival_is_a_few_hundred_bytes_between_ranks(seen: Seen) -> None:
    found, groups = seen[0]["traffic"]
    assert found <= 8 * groups + 1024


def test_a_checkpoint_may_take_longer_than_a_message(seen: Seen) -> None:
    said, seconds = seen[0]["slow checkpoint"]
    assert said == "" and seconds > faults.TIMEOUT / 2


@pytest.mark.parametrize(
    ("case", "ranks"), [("falls behind", (0, 1)), ("stops", (0, 1)), ("dies", (0, 2)), ("leader stops", (2,))]
)
def test_a_rank_that_is_lost_makes_the_others_raise(seen: Seen, case: str, ranks: tuple[int, ...]) -> None:
    for rank in ranks:
        said, seconds = seen[rank][case]
        assert said.startswith("RankLost: ")
        assert seconds < 10 * faults.TIMEOUT  # that it ends at all, on a machine that does much else
        assert case != "dies" or seconds < faults.LONG / 4  # nobody waits for a timeout: 0.05 s on a quiet machine
        again, _ = seen[rank][f"{case}, again"]
        assert again.startswith("RankLost: ")
