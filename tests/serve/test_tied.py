"""A model with tied parameters, by the command of the page."""

import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
pytest.importorskip("safetensors")
pytest.importorskip("prometheus_client")
import safetensors.torch

import fastagg
from fastagg.clients import HttpClient

ROOT = Path(__file__).parents[2]


class Tied(nn.Module):
    """The shape of GPT-2: its last layer is the first one's table, and an attention's mask is a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.transformer = nn.ModuleDict({"wte": nn.Embedding(32, 8), "h": nn.Linear(8, 8), "ln_f": nn.LayerNorm(8)})
        self.register_buffer("bias", torch.ones(4, 4, dtype=torch.bool).tril())
        self.lm_head = nn.Linear(8, 32, bias=False)
        self.lm_head.weight = self.transformer["wte"].weight


def test_the_pages_commands_serve_a_tied_model(tmp_path: Path) -> None:
    model = Tied()
    page = (ROOT / "docs" / "operations.md").read_text()
    (save,) = re.findall(r"`(safetensors\.torch\.save\w+\([^`]*\))`", page)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    (command,) = re.findall(r"^(fastagg serve model.safetensors .*--port) 8000$", page, re.MULTILINE)
    environment: dict[str, Any] = {**os.environ, "PYTHONPATH": str(Path(fastagg.__file__).parents[1])}
    before = os.getcwd()
    os.chdir(tmp_path)
    try:
        exec(save, {"safetensors": safetensors, "model": model})
    finally:
        os.chdir(before)
    line = [sys.executable, "-P", "-m", *shlex.split(command), str(port), "--parts", "2"]
    with open(tmp_path / "log", "wb") as log:
        server = subprocess.Popen(line, cwd=tmp_path, env=environment, stderr=log)
    try:
        start, states = parameters_to_vector(model.parameters()).detach().clone(), []
        ann, bob, eve, zoe = (
            HttpClient(f"http://127.0.0.1:{port}", name, names=dict(model.named_parameters()), patience=60, timeout=20)
            for name in ("ann", "bob", "eve", "zoe")
        )
        assert torch.equal(ann.task(), start)
        update = torch.arange(len(start)) / len(start)
        for client in (ann, bob, eve, zoe):
            client.task()
            client.send(update)
        vector_to_parameters(ann.task().clone(), model.parameters())
        torch.testing.assert_close(parameters_to_vector(model.parameters()), start + update)
        states.append(safetensors.torch.load(bytes(ann._repeat("model")[1])))
        fresh = Tied()
        fresh.load_state_dict(states[0])
        assert torch.equal(parameters_to_vector(fresh.parameters()), parameters_to_vector(model.parameters()))
        assert torch.equal(states[0]["lm_head.weight"], states[0]["transformer.wte.weight"])
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(20)
    assert "Traceback" not in (tmp_path / "log").read_text()
