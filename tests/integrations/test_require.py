"""A framework that is missing or too old is one clear line."""

import subprocess
import sys

import pytest

import fastagg
from fastagg import integrations


def test_missing() -> None:
    with pytest.raises(fastagg.MissingDependency) as caught:
        integrations.require("no-such-framework", "1.2", "nosuch")
    assert "pip install 'fastagg[nosuch]'" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert isinstance(caught.value, ImportError)


@pytest.mark.parametrize(
    ("found", "least", "ok"), [("1.9.2", "1.41", False), ("1.41.0", "1.41", True), ("2.0rc1", "1.41", True)]
)
def test_versions_are_compared_as_numbers(monkeypatch, found: str, least: str, ok: bool) -> None:
    monkeypatch.setattr(integrations, "version", lambda package: found)
    if ok:
        integrations.require("flwr", least, "flower")
    else:
        with pytest.raises(fastagg.MissingDependency, match=r"flwr 1\.9\.2 is too old"):
            integrations.require("flwr", least, "flower")


def test_presets_go_by_name() -> None:
    for name in ("FADAS", "FedAvg"):
        assert integrations.preset(name) is getattr(fastagg, name)
    for name, words in (("fadas", "did you mean 'FADAS'"), ("Server", "got 'Server'"), (3, "got 3"), ([], r"got \[\]")):
        with pytest.raises(fastagg.ConfigError, match=f"algorithm: expected one of .*{words}"):
            integrations.preset(name)


def test_the_package_imports_no_framework() -> None:
    frameworks = "{'flwr', 'nvflare', 'appfl'}"
    code = f"import sys, fastagg, fastagg.integrations; sys.exit(bool({frameworks} & sys.modules.keys()))"
    subprocess.run([sys.executable, "-P", "-c", code], check=True)  # -P: not the checkout, which may not be built
