"""The errors that pages name exist, and each is what is raised."""

from __future__ import annotations

import builtins
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

import fastagg

from .test_snippets import PAGES, ROOT

ERRORS = {
    name for name in fastagg.__all__ if isinstance(one := getattr(fastagg, name), type) and issubclass(one, Exception)
}
THEIRS = {"UFuncTypeError"}  # NumPy's
# What raises an error; or the test that does, where it takes a disk, a device or a federation.
RAISED = {
    "AlreadyCounted": "server.receive('ann', x, task=task.id); server.receive('ann', x, task=task.id)",
    "Busy": "one = fastagg.open('held', make); fastagg.open('held', make)",
    "CacheError": "tests/server/test_tiers.py",
    "CheckpointError": "fastagg.load('nothing')",
    "ConfigError": "fastagg.Server(x, optimizer=Negative())",
    "DTypeMismatch": "server.receive('ann', x.double())",
    "DeviceError": "tests/csrc/test_cuda_road.py",
    "EncodingError": "fastagg.Encoded.from_bytes(b'FAEU')",
    "MemoryError": "tests/native/engine/allocations.cpp",
    "NonFiniteUpdate": "server.receive('ann', x / 0)",
    "NotDurable": "tests/durable/test_room.py",
    "Reentered": "tests/server/test_reentry.py",
    "RunFailed": "tests/integrations/test_session.py",
    "ShapeMismatch": "server.receive('ann', x[:2])",
    "StaleIncarnation": "server.receive('ann', x, task=1)",
    "StopIteration": "tests/integrations/test_session.py",
    "TooSoon": "private.dispatch('ann'); private.receive('ann', x); private.dispatch('ann')",
    "UnknownClient": "server.receive('eve', x)",
    "UnknownVersion": "server.receive('ann', x, version=7)",
    "UpdateTooLarge": "server.receive('ann', x * 3e38)",
}


@dataclass(frozen=True)
class Negative(fastagg.Staleness):
    weighs = True

    def weight(self, delay: int) -> float:
        return -1.0


def make() -> fastagg.Server:
    return fastagg.FedBuff(torch.zeros(3), buffer_size=2)


def test_every_error_that_a_page_names_exists_and_is_tried() -> None:
    named = set()
    for page in PAGES:
        words = re.findall(r"`(?:fastagg\.)?([A-Z]\w+)(?:[ :][^`]*)?`", page.read_text(encoding="utf-8"))
        named |= {word for word in words if word in ERRORS or word.endswith("Error") or hasattr(builtins, word)}
    named -= {"False", "None", "True", "FastaggError"} | THEIRS
    assert not {name for name in named if name not in ERRORS and not hasattr(builtins, name)}
    assert named <= set(RAISED)


@pytest.mark.parametrize("name", RAISED)
def test_it_is_raised_and_the_server_has_not_moved(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = RAISED[name]
    if code.startswith("tests/"):
        assert re.search(name if name != "MemoryError" else "bad_alloc", (ROOT / code).read_text(encoding="utf-8"))
        return
    monkeypatch.chdir(tmp_path)
    server, x = make(), torch.ones(3)
    privacy = fastagg.Gaussian(noise_multiplier=1.0, clip_norm=0.5, min_separation=3)
    private = fastagg.FedBuff(torch.zeros(3), buffer_size=1, privacy=privacy)
    scope = {**globals(), "server": server, "x": x, "private": private, "task": server.dispatch("ann")}
    with pytest.raises(fastagg.FastaggError) as caught:
        exec(code, scope)
    assert type(caught.value).__name__ == name and server.version == 0
    with suppress(fastagg.AlreadyCounted):
        server.receive("ann", x, task=scope["task"].id)
    assert server.version == 0
