"""`checkpoint()` of a sharded server waits for the checkpoints of all ranks, and says what any of them says."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.sharded.processes import play
from torch import distributed

pytestmark = pytest.mark.skipif(not distributed.is_gloo_available(), reason="this torch has no gloo")
RANKS = 3


def test_a_checkpoint_counts_when_all_ranks_have_it(tmp_path: Path) -> None:
    said = play("checkpointed.py", tmp_path, RANKS, range(RANKS))
    refused, written, *checkpoints = said[0].splitlines()
    assert refused.startswith("CheckpointError") and "File too large" in refused, said
    assert checkpoints == [written.removeprefix("written ")] * RANKS, said
