"""Tasks with leases: all ranks use rank 0's clock, so their ledgers end the same tasks as one process does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.sharded.processes import play
from torch import distributed

pytestmark = pytest.mark.skipif(not distributed.is_gloo_available(), reason="this torch has no gloo")
RANKS = 3


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder: Path = tmp_path_factory.mktemp("leases")
    logs = play("leased.py", folder, RANKS, range(RANKS))
    files = [folder / f"found-{rank}.json" for rank in range(RANKS)]
    assert all(file.exists() for file in files), logs
    return [json.loads(file.read_text()) for file in files]


def test_every_answer_and_refusal_is_that_of_one_process(found: list[dict[str, Any]]) -> None:
    assert found[0]["differ"] is None
    assert found[0]["steps"] > 10 and all(found[0]["refused"].values())  # all of it happened


def test_all_ledgers_are_that_of_one_process(found: list[dict[str, Any]]) -> None:
    assert [one["ledger"][:2] for one in found] == [found[0]["alone"][:2]] * RANKS
    ids = found[0]["ledger"][2]
    assert len(ids["ended"]) > 10 and all(one["ledger"][2] == ids for one in found)
