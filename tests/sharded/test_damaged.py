"""A record that a disk has damaged in one slice's log costs one answer, and all slices pass over it alike."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from support.presets import model
from support.sharded import damaged
from support.sharded.processes import play
from support.sharded.ranks import SIZE

from fastagg.durable.disk import Disk
from fastagg.durable.folder import contents, read_checkpoint, read_log

pytestmark = pytest.mark.skipif(not damaged.dist.is_gloo_available(), reason="this torch has no gloo")
RANKS = 3


def life(folder: Path, first: int, last: int, ranks: int = RANKS) -> tuple[Any, str]:
    """Play some answers. Return what rank 0 had then, None if it did not come there, and what all printed."""
    own = folder / f"{first}-{last}"
    own.mkdir()
    logs = play("damaged.py", own, ranks, range(ranks))
    found = own / "found.pt"
    return torch.load(found) if found.exists() else None, "".join(logs.values())


def damage(folder: Path, slice_: int, answer: int) -> None:
    """Flip a bit in the record of an answer."""
    path = sorted((folder / "state").glob("cut-*/slice-*"))[slice_]
    found = contents(Disk(path))
    reader = read_log(Disk(path), found, read_checkpoint(Disk(path), found.checkpoints[-1]))
    answers = 0
    while answers <= answer:
        answers += reader.next().operation.kind == "answer"
    segment, place = reader.end
    with (path / list(found.segments.values())[segment]).open("r+b") as file:
        file.seek(place - 1000)  # in the update
        byte = file.read(1)[0]
        file.seek(-1, 1)
        file.write(bytes([byte ^ 4]))


def without(*lost: int, last: int) -> torch.Tensor:
    server = damaged.make(model(SIZE))
    for number in range(last):
        if number not in lost:
            damaged.play(server, number)
    return server.parameters()


def test_damaged_records_cost_one_answer_each_on_all_slices(tmp_path: Path) -> None:
    life(tmp_path, 0, 12)
    for slice_, answer in ((1, 7), (0, 3), (2, 8)):
        damage(tmp_path, slice_, answer)
    _, said = life(tmp_path, 12, 12, ranks=2)
    assert "open it once with 3 ranks" in said
    for first, last in ((12, 14), (14, 16)):  # the second one does not meet the damage again
        (version, parameters), said = life(tmp_path, first, last)
        assert version == last
        assert torch.equal(parameters, without(3, 7, 8, last=last))
        assert said.count("damaged, and it was on the disk") == (3 if first == 12 else 0)
