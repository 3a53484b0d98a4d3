"""Checks an installed package: imports it, makes a step and a checkpoint. Must not run in the checkout's folder."""

import sys
import tempfile
from pathlib import Path

import torch

import fastagg

assert "site-packages" in fastagg.__file__, fastagg.__file__
server = fastagg.FedBuff(torch.zeros(4), lr=1.0, buffer_size=2)
for client in (0, 1):
    server.dispatch(client)
    receipt = server.receive(client, torch.full((4,), 1.0 + client))
assert receipt.applied and server.version == 1
assert server.parameters().tolist() == [1.5] * 4, server.parameters()
with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "server.pt"
    server.save(path)
    assert torch.equal(fastagg.load(path).flat, server.flat)
info = fastagg.build_info()
versions = f"fastagg {info['version']}, Python {sys.version.split()[0]}, torch {torch.__version__}, {info['isa']}"
print(f"{versions}: one step is right")
