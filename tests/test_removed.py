"""What left the package is refused by name, and says what to use instead; what never used it goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import fastagg
from fastagg.removed import REMOVED, SETTINGS
from fastagg.server.loading import server_from

SERVER = "fastagg.Server."


def make() -> fastagg.Server:
    return fastagg.FedBuff(torch.zeros(5), buffer_size=2)


@pytest.mark.parametrize("name", [name for name in REMOVED if name.startswith("fastagg.") and name.count(".") == 1])
def test_a_public_name(name: str) -> None:
    with pytest.raises(AttributeError) as refusal:
        getattr(fastagg, name.removeprefix("fastagg."))
    assert str(refusal.value) == f"{name} is gone: {REMOVED[name]}"


@pytest.mark.parametrize("name", [name for name in REMOVED if name.startswith(SERVER)])
def test_a_method_of_a_server(name: str) -> None:
    with pytest.raises(AttributeError) as refusal:
        getattr(make(), name.removeprefix(SERVER))
    assert str(refusal.value) == f"{name} is gone: {REMOVED[name]}"


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda x: fastagg.FedBuff(x, origin=0), "the setting 'origin' is gone: .*parts"),
        (lambda x: fastagg.AsyncFedED(x, lam=1.0, eps=1.0, sketch=1), "the setting 'sketch' is gone: .*distances"),
        (lambda x: fastagg.Euclidean(sketch=1024), "the setting 'sketch' is gone: .*distances"),
    ],
)
def test_a_setting(call: Any, words: str) -> None:
    with pytest.raises(fastagg.ConfigError, match=words):
        call(torch.zeros(2))


@pytest.mark.parametrize("k", [None, 1024])
def test_a_rule_of_a_checkpoint(k: int | None) -> None:
    def asked() -> fastagg.Server:
        return fastagg.AsyncFedED(torch.zeros(2), lam=1.0, eps=1.0)

    state = asked().state_dict()
    state["config"]["staleness"]["sketch"], state["staleness"] = k, {}
    server = asked()
    if k is None:
        assert server_from(state).staleness == server.staleness
        server.load_state_dict(state)
        return
    for load in (server_from, server.load_state_dict):
        with pytest.raises(fastagg.CheckpointError, match=r"sketch=1024, which is gone: .*distances"):
            load(state)


def stored(value: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """A state as an older version wrote it, and the settings that its folder was made with."""
    state = make().state_dict()
    state["config"]["origin"] = value
    return state, {"origin": value}


def test_a_checkpoint_that_did_not_use_it_is_loaded_and_one_that_did_is_not() -> None:
    state, _ = stored(0)
    assert server_from(state).version == 0
    make().load_state_dict(state)
    state, _ = stored(65536)
    with pytest.raises(fastagg.CheckpointError, match=r"origin=65536, which is gone: .*parts"):
        server_from(state)
    server = make()
    with pytest.raises(fastagg.CheckpointError, match=r"origin=65536, which is gone: .*parts"):
        server.load_state_dict(state)


@pytest.mark.parametrize(("value", "opens"), [(0, True), (65536, False)])
def test_a_folder(tmp_path: Path, value: int, opens: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    from fastagg.durable import opening, recovery

    with monkeypatch.context() as then:
        then.setattr(opening, "made_of", lambda server: recovery.made_of(server) | stored(value)[1])
        fastagg.open(tmp_path, make).close()
    assert any(f'"origin":{value}' in path.read_text() for path in tmp_path.rglob("*.json"))
    if opens:
        fastagg.open(tmp_path, make).close()
        return
    with pytest.raises(fastagg.ConfigError, match=r"origin=65536, which is gone: .*parts"):
        fastagg.open(tmp_path, make)


def test_a_folder_of_slices(tmp_path: Path) -> None:
    (tmp_path / "cut-000001").mkdir()
    with pytest.raises(fastagg.CheckpointError, match=r"a server in slices, which are gone: .*parts"):
        fastagg.open(tmp_path, make)


def test_every_setting_that_left_says_what_to_use() -> None:
    assert {f"{name}=" for name in SETTINGS} <= REMOVED.keys()
