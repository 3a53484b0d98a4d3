"""Slices on several processes give the bits of one process: every preset, also after a restart with other numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.sharded import ranks
from support.sharded.processes import play

import fastagg
from fastagg.server import engine

pytestmark = pytest.mark.skipif(not ranks.dist.is_gloo_available(), reason="this torch has no gloo")
RANKS = 4


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """One start of four processes for all cases: what differs from one process, case by case."""
    folder: Path = tmp_path_factory.mktemp("ranks")
    logs = play("ranks.py", folder, RANKS, range(RANKS))
    assert (folder / "found.json").exists(), logs
    said: dict[str, str] = json.loads((folder / "found.json").read_text())
    return said


@pytest.mark.parametrize("case", [*ranks.cases(RANKS), *(f"{name}, restarted" for name in ranks.RESTARTED)])
def test_bits_are_those_of_one_process(found: dict[str, str], case: str) -> None:
    assert found[case] == ""


@pytest.mark.parametrize("own", [True, False])
def test_a_shared_vector_is_free_when_receive_returns(found: dict[str, str], own: bool) -> None:
    assert found[f"reused, {own}"] == ""


class Own:
    """What `tensors` needs: the state of this rank's slice."""

    def __init__(self, server: fastagg.Server) -> None:
        self.server = server

    def state_dict(self, copy: bool) -> Any:
        return engine.whole(self.server._parts, self.server._running)


@pytest.mark.parametrize("which", ["receipts", "model", "refused", "control"])
def test_several_answers_chunks_and_sums_of_leaves_are_taken_as_by_one_process(
    found: dict[str, str], which: str
) -> None:
    assert found[f"methods, {which}"] == ""


def test_a_difference_is_seen(tmp_path: Path) -> None:
    """Checks that the comparison includes everything: each change must be noticed."""
    name = "ACE, int8"  # whose rows are all in use, so that they are not copied
    server = ranks.fastagg.sharded(ranks.make(name), ranks.model(ranks.SIZE))
    said = [ranks.play(server, call, name, ranks.shared) for call in ranks.run(name)]
    server.save(tmp_path)
    assert ranks.difference(name, tmp_path, said, server) == ""
    assert "receipts" in ranks.difference(name, tmp_path, [None] * len(said), server)
    for tensor in ("sum", "rows", "scales"):
        held = ranks.tensors(Own(server))[tensor]  # type: ignore[arg-type]
        before = held.clone()
        held.view(-1)[-3] += 1
        server.save(tmp_path)
        assert ranks.difference(name, tmp_path, said, server) == f"{tensor} differs"
        held.copy_(before)
