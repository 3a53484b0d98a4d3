"""What left the package is refused by name, and says what to use instead; what never used it goes on."""

from typing import Any

import pytest
import torch

import fastagg
from fastagg import _checks
from fastagg.removed import REMOVED, SETTINGS
from fastagg.server.loading import server_from

pytestmark = pytest.mark.kernel


def make() -> fastagg.Server:
    return fastagg.FedBuff(torch.zeros(5), buffer_size=2)


@pytest.mark.parametrize(("owner", "name"), [(fastagg, "fastagg.left"), (make(), "fastagg.Server.left")])
def test_a_public_name(owner: object, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(REMOVED, name, "take another")
    with pytest.raises(AttributeError) as refusal:
        owner.left  # type: ignore[attr-defined]  # noqa: B018
    assert str(refusal.value) == f"{name} is gone: take another" == str(_checks.no_attribute(owner, "left"))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda x: fastagg.FedBuff(x, origin=0), "the setting 'origin' is gone: .*parts"),
        (lambda x: fastagg.AsyncFedED(x, lam=1.0, eps=1.0, sketch=1), "the setting 'sketch' is gone: .*distances"),
        (lambda x: fastagg.Tiered("int8", memory="8GB"), "the setting 'memory' is gone: .*page cache"),
        (lambda x: fastagg.Euclidean(sketch=1024), "the setting 'sketch' is gone: .*distances"),
        (lambda x: fastagg.Distillation(None, x, keep_moments=True), "the setting 'keep_moments' is gone: .*zero"),
    ],
)
def test_a_setting(call: Any, words: str) -> None:
    with pytest.raises(fastagg.ConfigError, match=words):
        call(torch.zeros(2))


def test_a_state_that_used_it_is_refused_and_changes_nothing() -> None:
    """Files and folders of older versions, also those that did not use it: durable/test_old.py."""
    server, state = make(), make().state_dict()
    state["config"]["origin"] = 65536
    for load in (server_from, server.load_state_dict):
        with pytest.raises(fastagg.CheckpointError, match=r"origin=65536, which is gone: .*parts"):
            load(state)
    state["config"]["origin"] = 0
    server.load_state_dict(state)


def test_every_setting_that_left_says_what_to_use() -> None:
    assert {f"{name}=" for name in SETTINGS} <= REMOVED.keys()
