"""Clients' own metrics, gathered; and settings that configuration files name."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

import fastagg
from fastagg.integrations import resolved
from fastagg.integrations.evaluation import Window


def test_the_mean_is_said_of_the_newest_version_among_those_evaluated() -> None:
    server, window = fastagg.FedAsync(torch.zeros(2)), Window()
    old = server.dispatch("a")
    server.receive("b", torch.ones(2), server.dispatch("b").version)
    new = server.dispatch("c")
    assert window.end(0) is None
    for task, metrics in (
        (new, {"accuracy": 0.5, "loss": 2.0, "note": "text"}),
        (old, {"accuracy": 1.0, "loss": math.nan}),
        (old, None),
    ):
        assert window.end(3) is None
        window.add(task, metrics)
    found = window.end(3)
    assert found is not None and found[0] is new and found[1] == {"accuracy": 0.75, "loss": 2.0}  # NaN is left out
    assert window.end(1) is None, "it begins anew"


def test_a_setting_that_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "echo_of_test.py").write_text(
        "import fastagg, torch\n\n\ndef data():\n"
        "    return fastagg.Distillation(torch.nn.Linear(3, 2), torch.zeros(5, 3))\n\n\ndef other():\n    return 3\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    found = resolved({"lr": 1.0, "distill": "echo_of_test:data"})
    assert isinstance(found["distill"], fastagg.Distillation) and found["lr"] == 1.0
    assert resolved(None) == {} and resolved({"distill": found["distill"]}) == {"distill": found["distill"]}
    for name in ("echo_of_test", "echo_of_test:none", "no_such_module:data", ":data", ""):
        with pytest.raises(fastagg.ConfigError, match="expected 'module:function'"):
            resolved({"distill": name})
    with pytest.raises(fastagg.ConfigError, match="returned a int"):
        resolved({"distill": "echo_of_test:other"})
